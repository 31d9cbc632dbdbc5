// SPDX-License-Identifier: Apache-2.0
// A fetch tier over memory of this process: the smallest one there is, and the pattern for a new
// one. With its line in the table of kinds it is all that runtime, command and tests need to have
// `--far memory:SIZE`. Thread-safe as tier.h and fetch_channel.h say.
#include <algorithm>
#include <array>
#include <cstring>

#include "runtime/base/mapping.h"
#include "runtime/base/raw_calls.h"
#include "runtime/base/unique_fd.h"
#include "runtime/tier/far_kind.h"
#include "runtime/tier/frame_table.h"

namespace tidepool {
namespace {

/// Requests are done when they are queued; the descriptor counts those that poll() has not told of.
class MemoryChannel final : public FetchChannel {
 public:
  MemoryChannel(UniqueFd done, Tier& tier) : done_fd_(std::move(done)), tier_(tier) {
    done_fd_.keep();
  }

  Status submitRead(uint64_t tag, FrameRun run, std::byte* to) override {
    TP_TRY(begin());
    return end(tag, tier_.read(run, to));
  }
  Status submitWrite(uint64_t tag, FrameRun run, const std::byte* from) override {
    TP_TRY(begin());
    return end(tag, tier_.write(run, from));
  }
  Status submitReadScattered(uint64_t tag, std::span<const FrameIndex> frames,
                             std::byte* to) override {
    return scattered(tag, frames,
                     [&](FrameRun page, size_t i) { return tier_.read(page, to + i * kPageSize); });
  }
  Status submitWriteScattered(uint64_t tag, std::span<const FrameIndex> frames,
                              const std::byte* from) override {
    return scattered(tag, frames, [&](FrameRun page, size_t i) {
      return tier_.write(page, from + i * kPageSize);
    });
  }
  Status flush() override { return {}; }
  size_t poll(std::span<FetchCompletion> out) override {
    const size_t count = std::min(out.size(), done_count_);
    std::copy_n(done_.begin(), count, out.begin());
    std::copy(done_.begin() + count, done_.begin() + done_count_, done_.begin());
    done_count_ -= count;
    uint64_t told = 0;
    if (done_count_ == 0) (void)raw::read(done_fd_.get(), &told, sizeof told);
    return count;
  }
  int fd() const override { return done_fd_.get(); }
  short events() const override { return POLLIN; }
  size_t inFlight() const override { return done_count_; }
  Nanoseconds timeToDeadline() const override {
    return Nanoseconds(done_count_ == 0 ? UINT64_MAX : 0);
  }

 private:
  Status begin() const {
    if (done_count_ < done_.size()) return {};
    return fail(ErrorCode::kNoSpace, "memory: too many requests in flight: poll() first");
  }
  template <typename Move>
  Status scattered(uint64_t tag, std::span<const FrameIndex> frames, Move move) {
    if (frames.empty() || frames.size() > kMostScattered) {
      return fail(ErrorCode::kInvalidArgument, "memory: 1 to %zu frames a request", kMostScattered);
    }
    TP_TRY(begin());
    Status outcome;
    for (size_t i = 0; outcome && i < frames.size(); ++i) {
      outcome = move(FrameRun{frames[i], PageCount(1)}, i);
    }
    return end(tag, outcome);
  }
  Status end(uint64_t tag, const Status& outcome) {
    const uint64_t one = 1;
    if (raw::write(done_fd_.get(), &one, sizeof one) != sizeof one) {
      return failErrno(ErrorCode::kUnreachable, "memory: cannot count a request");
    }
    done_[done_count_++] = {tag, outcome ? ErrorCode{} : outcome.error().code()};
    return {};
  }

  UniqueFd done_fd_;
  Tier& tier_;
  std::array<FetchCompletion, 256> done_;  // fixed: faults are served without allocating
  size_t done_count_ = 0;
};

class MemoryTier final : public FetchTier {
 public:
  static Result<std::unique_ptr<Tier>> open(const FarSpec& spec, const Patience&) {
    const PageCount pages = toPages(spec.size);
    auto frames = FrameTable::create(pages);
    if (!frames) return tl::unexpected(frames.error());
    auto store = Mapping::sharedAnonymous(toBytes(pages));  // with children of fork()
    if (!store) return tl::unexpected(store.error());
    return std::unique_ptr<Tier>(new MemoryTier(std::move(*frames), std::move(*store)));
  }

  const char* name() const override { return "memory"; }
  Bytes capacity() const override { return toBytes(frames_->capacity()); }
  Bytes used() const override { return toBytes(frames_->used()); }
  Result<FrameRun> allocate(PageCount wanted) override { return frames_->allocate(wanted); }
  void release(FrameRun run) override { frames_->release(run); }
  Status read(FrameRun run, std::byte* memory) override {
    memcpy(memory, at(run), toBytes(run.count).value());
    traffic_.reads_bytes += toBytes(run.count).value();
    return {};
  }
  Status write(FrameRun run, const std::byte* memory) override {
    memcpy(at(run), memory, toBytes(run.count).value());
    traffic_.writes_bytes += toBytes(run.count).value();
    return {};
  }
  FrameTable& table() override { return *frames_; }
  FrameTable* frames() override { return frames_.get(); }

  Result<std::unique_ptr<FetchChannel>> openChannel() override {
    UniqueFd done(raw::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
    if (!done.valid()) return failErrno(ErrorCode::kNoMemory, "memory: no descriptor");
    return std::unique_ptr<FetchChannel>(new MemoryChannel(std::move(done), *this));
  }
  Nanoseconds pageRoundTrip() const override { return Nanoseconds(1'000); }

 private:
  MemoryTier(std::unique_ptr<FrameTable> frames, Mapping store)
      : frames_(std::move(frames)), store_(std::move(store)) {}
  std::byte* at(FrameRun run) const { return store_.data() + run.first.value() * kPageSize; }

  std::unique_ptr<FrameTable> frames_;
  Mapping store_;
};

}  // namespace

extern constinit const FarKind kMemoryKind{
    .name = "memory",
    .form = "memory:SIZE",
    .help = "Memory of the process itself: for tests.",
    .parse = [](const SpecText& text, FarSpec& spec) { return setSize(spec, text.body); },
    .open = MemoryTier::open,
    .check = [](const FarSpec&, const TierCheck&) -> Result<TierReport> {
      return TierReport{.detail = "memory of the process itself"};
    }};

}  // namespace tidepool
