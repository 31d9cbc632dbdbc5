// SPDX-License-Identifier: Apache-2.0
// RowStore and RowChannel, passed on.
#include "allocator/run_rows.h"

#include <algorithm>
#include <cstring>

namespace tidepool {
namespace {

Status toStatus(const TidepoolRunError& error) {
  if (error.code == 0) return {};
  return fail(static_cast<ErrorCode>(error.code), "%s", error.text);
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
    TidepoolRunError error{};
    api_.submitRead(channel_, tag, rows.data(), rows.size(), to, &error);
    return toStatus(error);
  }
  Status submitWrite(uint64_t tag, std::span<const uint64_t> rows, const std::byte* from) override {
    TidepoolRunError error{};
    api_.submitWrite(channel_, tag, rows.data(), rows.size(), from, &error);
    return toStatus(error);
  }
  Status flush() override {
    TidepoolRunError error{};
    api_.flush(channel_, &error);
    return toStatus(error);
  }
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
  int fd() const override { return state().fd; }
  short events() const override { return static_cast<short>(state().events); }
  size_t inFlight() const override { return state().in_flight; }
  Nanoseconds timeToDeadline() const override { return Nanoseconds(state().to_deadline_ns); }
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
  std::atomic<std::byte*> first_frame_{nullptr};  // relaxed: the same whoever stores it
};

}  // namespace

Result<std::unique_ptr<RowStore>> openRunRows(const TidepoolRunApi& api, size_t far_tier) {
  TidepoolRunError error{};
  uint8_t kind = 0;
  void* const store = api.openStore(static_cast<uint32_t>(far_tier), &kind, &error);
  TP_TRY(toStatus(error));
  return std::make_unique<RunStore>(api, store, static_cast<TierKind>(kind));
}

}  // namespace tidepool
