// SPDX-License-Identifier: Apache-2.0
// A fetch tier in this process's own memory whose reads end when a test lets them.
#pragma once

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <functional>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "runtime/tier/frame_table.h"
#include "runtime/tier/tier.h"

namespace tidepool {

inline constexpr uint64_t kStallingFrames = 1024;

/// Far memory in this process, whose reads wait while it is stalled. What a read brings was there
/// when it was asked for.
class StallingTier final : public FetchTier {
 public:
  explicit StallingTier(const char* name) : name_(name), store_(kStallingFrames * kPageSize) {
    frames_ = std::move(*FrameTable::create(PageCount(kStallingFrames)));
  }
  const char* name() const override { return name_; }
  Bytes capacity() const override { return toBytes(PageCount(kStallingFrames)); }
  Bytes used() const override { return toBytes(frames_->used()); }
  Result<FrameRun> allocate(PageCount wanted) override { return frames_->allocate(wanted); }
  void release(FrameRun run) override { frames_->release(run); }
  FrameTable& table() override { return *frames_; }
  Status read(FrameRun run, std::byte* memory) override {
    if (during_read) std::exchange(during_read, nullptr)();
    memcpy(memory, &store_[run.first.value() * kPageSize], run.count.value() * kPageSize);
    if (read_fails) return fail(ErrorCode::kLost, "the test says so");
    return {};
  }
  Status write(FrameRun run, const std::byte* memory) override {
    memcpy(&store_[run.first.value() * kPageSize], memory, run.count.value() * kPageSize);
    return {};
  }
  Nanoseconds pageRoundTrip() const override { return Nanoseconds(1000); }
  Result<std::unique_ptr<FetchChannel>> openChannel() override {
    return std::unique_ptr<FetchChannel>(std::make_unique<Channel>(*this));
  }

  void stall() { stalled_.store(true); }
  /// What has waited ends now, with this error if one is given.
  void letEnd(ErrorCode error = ErrorCode{}) {
    error_.store(error);
    stalled_.store(false);
    const uint64_t one = 1;
    ASSERT_EQ(::write(bell_, &one, sizeof one), static_cast<ssize_t>(sizeof one));
  }
  void awaitReads(uint64_t count) const {
    while (reads_.load() != count) std::this_thread::yield();
  }
  uint64_t held() const { return frames_->heldHere().value(); }

  std::function<void()> during_read;  // of read(): once
  bool read_fails = false;

 private:
  class Channel final : public FetchChannel {
   public:
    explicit Channel(StallingTier& tier) : tier_(tier) {}
    Status submitRead(uint64_t tag, FrameRun run, std::byte* to) override {
      TP_TRY(tier_.read(run, to));
      reads_.push_back(tag);
      ++tier_.reads_;
      return {};
    }
    Status submitWrite(uint64_t tag, FrameRun run, const std::byte* from) override {
      written_.push_back(tag);
      return tier_.write(run, from);
    }
    Status submitReadScattered(uint64_t tag, std::span<const FrameIndex> frames,
                               std::byte* to) override {
      for (size_t i = 0; i < frames.size(); ++i) {
        TP_TRY(tier_.read({frames[i], PageCount(1)}, to + i * kPageSize));
      }
      reads_.push_back(tag);
      ++tier_.reads_;
      return {};
    }
    Status submitWriteScattered(uint64_t tag, std::span<const FrameIndex> frames,
                                const std::byte* from) override {
      written_.push_back(tag);
      for (size_t i = 0; i < frames.size(); ++i) {
        TP_TRY(tier_.write({frames[i], PageCount(1)}, from + i * kPageSize));
      }
      return {};
    }
    Status flush() override { return {}; }
    size_t poll(std::span<FetchCompletion> out) override {
      size_t count = 0;
      while (!written_.empty() && count < out.size()) {
        out[count++] = {written_.back(), ErrorCode{}};
        written_.pop_back();
      }
      while (!tier_.stalled_ && !reads_.empty() && count < out.size()) {
        out[count++] = {reads_.back(), tier_.error_.load()};
        reads_.pop_back();
        --tier_.reads_;
      }
      return count;
    }
    int fd() const override { return tier_.bell_; }
    short events() const override { return POLLIN; }
    size_t inFlight() const override { return reads_.size() + written_.size(); }
    Nanoseconds timeToDeadline() const override { return Nanoseconds(1'000'000'000'000); }

   private:
    StallingTier& tier_;
    std::vector<uint64_t> reads_, written_;
  };

  const char* const name_;
  std::vector<std::byte> store_;
  std::unique_ptr<FrameTable> frames_;
  const int bell_ = eventfd(0, EFD_CLOEXEC);
  std::atomic<bool> stalled_{false};
  std::atomic<ErrorCode> error_{};
  std::atomic<uint64_t> reads_{0};
};

}  // namespace tidepool
