// SPDX-License-Identifier: Apache-2.0
// Managed memory from the preload library, and its far tiers for tables of rows, through the table
// that it exports (run_api.h). Thread-safe but for channels, which one thread uses at a time.
#include <dlfcn.h>

#include <algorithm>

#include "allocator/memory_source.h"
#include "allocator/run_api.h"
#include "runtime/tier/tier.h"

namespace tidepool {
namespace {

Status toStatus(const TidepoolRunError& error) {
  if (error.code == 0) return {};
  return fail(static_cast<ErrorCode>(error.code), "%s", error.text);
}

/// The table's functions tell of errors in their last argument.
template <typename Function, typename... Arguments>
Status call(Function* function, Arguments... arguments) {
  TidepoolRunError error{};
  function(arguments..., &error);
  return toStatus(error);
}

FetchCompletion completionOf(const TidepoolRunCompletion& plain) {
  return {plain.tag, static_cast<ErrorCode>(plain.error)};
}

class RunChannel final : public RowChannel {
 public:
  RunChannel(const TidepoolRunApi& api, void* channel, const RowArea& area, size_t most_rows)
      : api_(api), channel_(channel), area_(area), most_rows_(most_rows) {}
  ~RunChannel() override { api_.closeChannel(channel_); }

  size_t mostRows() const override { return most_rows_; }
  const RowArea& area() const override { return area_; }
  Status submitRead(uint64_t tag, std::span<const uint64_t> rows, std::byte* to) override {
    return call(api_.submitRead, channel_, tag, rows.data(), rows.size(), to);
  }
  Status submitWrite(uint64_t tag, std::span<const uint64_t> rows, const std::byte* from) override {
    return call(api_.submitWrite, channel_, tag, rows.data(), rows.size(), from);
  }
  Status flush() override { return call(api_.flush, channel_); }
  size_t poll(std::span<FetchCompletion> out) override {
    TidepoolRunCompletion completions[64];
    const uint64_t count =
        api_.poll(channel_, completions, std::min<uint64_t>(out.size(), std::size(completions)));
    std::transform(completions, completions + count, out.begin(), completionOf);
    return count;
  }
  FetchCompletion wait() override {
    TidepoolRunCompletion completion{};
    api_.wait(channel_, &completion);
    return completionOf(completion);
  }
  size_t inFlight() const override { return state().in_flight; }
  bool failed() const override { return state().failed != 0; }
  const char* reason() const override { return state().reason; }

 private:
  const TidepoolRunChannelState& state() const {
    api_.channelState(channel_, &state_);
    return state_;
  }
  const TidepoolRunApi& api_;
  void* const channel_;
  const RowArea area_;
  const size_t most_rows_;
  mutable TidepoolRunChannelState state_{};  // as it was last asked for
};

class RunStore final : public RowStore {
 public:
  RunStore(const TidepoolRunApi& api, void* store, TierKind kind)
      : api_(api), store_(store), kind_(kind) {}
  ~RunStore() override { api_.closeStore(store_); }

  TierKind kind() const override { return kind_; }
  Result<FrameRun> allocate(Bytes size) override {
    TidepoolRunError error{};
    uint64_t first = 0, count = 0;
    void* const memory = api_.allocateRows(store_, size.value(), &first, &count, &error);
    TP_TRY(toStatus(error));
    const FrameRun run{FrameIndex(first), PageCount(count)};
    if (memory != nullptr) {
      // All frames of a direct tier lie one behind the other.
      first_frame_ = static_cast<std::byte*>(memory) - first * kPageSize;
    }
    return run;
  }
  void release(FrameRun run) override {
    api_.releaseRows(store_, run.first.value(), run.count.value());
  }
  void preferHuge(FrameRun run) override {
    api_.preferHugeRows(store_, run.first.value(), run.count.value());
  }
  std::byte* memory(FrameRun run) const override {
    std::byte* const first = first_frame_.load(std::memory_order_relaxed);
    return first == nullptr ? nullptr : first + run.first.value() * kPageSize;
  }
  Result<std::unique_ptr<RowChannel>> openRows(const RowArea& area) override {
    const TidepoolRunArea plain{area.frames.first.value(), area.frames.count.value(),
                                area.offset.value(), area.row.value(), area.rows};
    TidepoolRunError error{};
    uint64_t most_rows = 0;
    void* const channel = api_.openChannel(store_, &plain, &most_rows, &error);
    TP_TRY(toStatus(error));
    return std::make_unique<RunChannel>(api_, channel, area, most_rows);
  }

 private:
  const TidepoolRunApi& api_;
  void* const store_;
  const TierKind kind_;
  std::atomic<std::byte*> first_frame_{nullptr};  // relaxed: every thread stores the same
};

/// Errors: as Runtime::rowStore().
Result<std::unique_ptr<RowStore>> openRunRows(const TidepoolRunApi& api, size_t far_tier) {
  TidepoolRunError error{};
  uint8_t kind = 0;
  void* const store = api.openStore(static_cast<uint32_t>(far_tier), &kind, &error);
  TP_TRY(toStatus(error));
  return std::make_unique<RunStore>(api, store, static_cast<TierKind>(kind));
}

class RunMemory final : public MemorySource {
 public:
  explicit RunMemory(const TidepoolRunApi& api) : api_(api) {
    setRange(api.base, Bytes(api.bytes));
  }

  Result<void*> allocate(Bytes size, Bytes alignment) override {
    TidepoolRunError error{};
    void* const address = api_.allocate(size.value(), alignment.value(), &error);
    TP_TRY(toStatus(error));
    return address;
  }
  Status release(void* address, Bytes size) override {
    return call(api_.release, address, size.value());
  }
  Status discard(void* address, Bytes size) override {
    return call(api_.discard, address, size.value());
  }
  Status renew(void* address, Bytes size) override {
    return call(api_.renew, address, size.value());
  }
  Status place(void* address, Bytes size, Placement placement) override {
    return call(api_.place, address, size.value(), placement.raw());
  }
  Result<Residency> residency(const void* address, Bytes size) const override {
    TidepoolRunError error{};
    TidepoolRunResidency found{};
    api_.residency(address, size.value(), &found, &error);
    TP_TRY(toStatus(error));
    Residency out;
    out.empty = PageCount(found.empty);
    out.local = PageCount(found.local);
    out.leaving = PageCount(found.leaving);
    out.coming = PageCount(found.coming);
    out.lost = PageCount(found.lost);
    out.in_place = PageCount(found.in_place);
    for (size_t tier = 0; tier < out.far.size(); ++tier) out.far[tier] = PageCount(found.far[tier]);
    return out;
  }
  void willNeed(void* address, Bytes size) override { api_.willNeed(address, size.value()); }
  void cold(void* address, Bytes size) override { api_.cold(address, size.value()); }
  void pageOut(void* address, Bytes size) override { api_.pageOut(address, size.value()); }
  Status chargeLocal(Bytes size) override { return call(api_.chargeLocal, size.value()); }
  void dischargeLocal(Bytes size) override { api_.dischargeLocal(size.value()); }
  void noteRowsShort(Nanoseconds saved) override { api_.noteRowsShort(saved.value()); }
  Result<std::unique_ptr<RowStore>> rowStore(size_t far_tier) override {
    return openRunRows(api_, far_tier);
  }
  const StatsPage* stats() override {
    const auto* page = static_cast<const StatsPage*>(api_.stats());
    return page->schema == kStatsSchema ? page : nullptr;
  }

 private:
  const TidepoolRunApi& api_;  // the preload library's: for the life of the process
};

/// Null: this process is not one of `tidepool run`, or its memory is not managed.
Result<const TidepoolRunApi*> findApi() {
  const auto entry = reinterpret_cast<TidepoolRunEntry>(dlsym(RTLD_DEFAULT, kTidepoolRunSymbol));
  const TidepoolRunApi* const api = entry != nullptr ? entry() : nullptr;
  if (api != nullptr && (api->version != kTidepoolRunVersion || api->size < sizeof *api)) {
    return fail(ErrorCode::kUnsupported,
                "libtidepool and the preload library of `tidepool run` are of different versions; "
                "install the same one of both");
  }
  return api;
}

}  // namespace

Result<std::unique_ptr<MemorySource>> findRunMemory() {
  const auto api = findApi();
  if (!api) return tl::unexpected(api.error());
  if (*api == nullptr) return nullptr;
  return std::make_unique<RunMemory>(**api);
}

Result<Options> runOptions() {
  const auto api = findApi();
  if (!api) return tl::unexpected(api.error());
  char text[kConfTextCapacity];
  if (*api == nullptr || !(*api)->conf(text, sizeof text)) {
    return fail(ErrorCode::kInternal, "the options of the run cannot be read");
  }
  return parseOptions(text, nullptr);
}

}  // namespace tidepool
