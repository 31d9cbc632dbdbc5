// SPDX-License-Identifier: Apache-2.0
// Stores of tensors for tests: over an emulated pool, over a memory server in this process, and
// over a fetch tier in memory that holds requests back, or fails them, as a test says.
#pragma once

#include <gtest/gtest.h>
#include <sys/eventfd.h>

#include <cstring>
#include <deque>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "allocator/tensors/tensor_store.h"
#include "runtime/base/unique_fd.h"
#include "runtime/tier/frame_table.h"
#include "tests/table/table_fixture.h"

namespace tidepool {

using Tensor = std::vector<std::byte>;

inline Tensor someBytes(size_t size, uint64_t seed) {
  Tensor tensor(size);
  std::mt19937_64 random(seed);
  for (size_t i = 0; i + 8 <= size; i += 8) {
    const uint64_t word = random();
    memcpy(&tensor[i], &word, 8);
  }
  for (size_t i = size / 8 * 8; i < size; ++i) tensor[i] = static_cast<std::byte>(random());
  return tensor;
}

inline std::unique_ptr<TensorStore> storeIn(Tier& tier, TensorStoreOptions options = {}) {
  auto store = TensorStore::create(tier, options);
  EXPECT_TRUE(store) << store.error().text();
  return std::move(*store);
}

inline Status ended(TensorTransfer& transfer) {
  const auto waited = transfer.wait(std::nullopt);
  EXPECT_TRUE(waited && *waited == TensorTransfer::Waited::kOver);
  return transfer.outcome();
}

inline Status put(TensorStore& store, const std::string& name, const Tensor& tensor) {
  auto transfer = store.put(name, "bytes", tensor);
  return transfer ? ended(**transfer) : tl::unexpected(transfer.error());
}

inline Result<Tensor> get(TensorStore& store, const std::string& name) {
  auto value = store.find(name);
  if (!value) return tl::unexpected(value.error());
  Tensor tensor((*value)->size().value());
  auto transfer = store.get(std::move(*value), tensor);
  if (!transfer) return tl::unexpected(transfer.error());
  TP_TRY(ended(**transfer));
  return tensor;
}

/// What is in its frames is written and read when poll() is called and nothing is held.
class HeldTier final : public FetchTier {
 public:
  explicit HeldTier(PageCount frames)
      : memory_(toBytes(frames).value()), ready_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
    auto table = FrameTable::create(frames);
    EXPECT_TRUE(table);
    table_ = std::move(*table);
    release();
  }

  /// No request ends from here on.
  void hold() {
    held_ = true;
    eventfd_t count;
    eventfd_read(ready_.get(), &count);
  }
  void release() {
    held_ = false;
    eventfd_write(ready_.get(), 1);
  }
  /// After `good` requests the next one ends with the code; kUnreachable breaks the channel.
  void failAfter(int good, ErrorCode code) {
    code_ = code;
    good_ = good;
  }
  /// No channel can be opened any more.
  void lose() { lost_ = true; }
  int channels() const { return channels_; }
  size_t submitted() const { return submitted_; }

  const char* name() const override { return "held"; }
  Bytes capacity() const override { return Bytes(memory_.size()); }
  Bytes used() const override { return toBytes(table_->used()); }
  Result<FrameRun> allocate(PageCount wanted) override { return table_->allocate(wanted); }
  void release(FrameRun run) override { table_->release(run); }
  Status read(FrameRun, std::byte*) override { return fail(ErrorCode::kInternal, "not used"); }
  Status write(FrameRun, const std::byte*) override {
    return fail(ErrorCode::kInternal, "not used");
  }
  FrameTable& table() override { return *table_; }
  Nanoseconds pageRoundTrip() const override { return Nanoseconds(1); }
  Result<std::unique_ptr<FetchChannel>> openChannel() override {
    if (lost_) return fail(ErrorCode::kLost, "held: the region is gone");
    ++channels_;
    return std::unique_ptr<FetchChannel>(new Channel(*this));
  }

 private:
  class Channel final : public FetchChannel {
   public:
    explicit Channel(HeldTier& tier) : tier_(tier) {}
    Status submitRead(uint64_t tag, FrameRun run, std::byte* to) override {
      return submit({tag, run, to, nullptr});
    }
    Status submitWrite(uint64_t tag, FrameRun run, const std::byte* from) override {
      return submit({tag, run, nullptr, from});
    }
    Status submitReadScattered(uint64_t, std::span<const FrameIndex>, std::byte*) override {
      return fail(ErrorCode::kUnsupported, "held: tables ask for runs");
    }
    Status submitWriteScattered(uint64_t, std::span<const FrameIndex>, const std::byte*) override {
      return fail(ErrorCode::kUnsupported, "held: tables ask for runs");
    }
    Status flush() override { return {}; }
    size_t poll(std::span<FetchCompletion> out) override {
      size_t count = 0;
      for (; !tier_.held_ && count < out.size() && !requests_.empty(); ++count) {
        out[count] = {requests_.front().tag, serve(requests_.front())};
        requests_.pop_front();
      }
      return count;
    }
    int fd() const override { return tier_.ready_.get(); }
    short events() const override { return 1; }
    size_t inFlight() const override { return requests_.size(); }
    Nanoseconds timeToDeadline() const override { return Nanoseconds(60'000'000'000); }

   private:
    struct Request {
      uint64_t tag;
      FrameRun run;
      std::byte* to;
      const std::byte* from;
    };
    Status submit(const Request& request) {
      if (broken_) return fail(ErrorCode::kUnreachable, "held: broken");
      requests_.push_back(request);
      ++tier_.submitted_;
      return {};
    }
    ErrorCode serve(const Request& request) {
      if (broken_) return ErrorCode::kUnreachable;
      if (tier_.code_ != ErrorCode{} && tier_.good_-- == 0) {
        broken_ = tier_.code_ == ErrorCode::kUnreachable;
        return tier_.code_.exchange(ErrorCode{});
      }
      std::byte* const frames = &tier_.memory_[request.run.first.value() * kPageSize];
      const size_t size = toBytes(request.run.count).value();
      if (request.to != nullptr) memcpy(request.to, frames, size);
      if (request.from != nullptr) memcpy(frames, request.from, size);
      return {};
    }
    HeldTier& tier_;
    bool broken_ = false;
    std::deque<Request> requests_;
  };

  std::vector<std::byte> memory_;
  UniqueFd ready_;
  std::unique_ptr<FrameTable> table_;
  std::atomic<bool> held_{false}, lost_{false};
  std::atomic<int> good_{0}, channels_{0};
  std::atomic<ErrorCode> code_{ErrorCode{}};
  std::atomic<size_t> submitted_{0};
};

}  // namespace tidepool
