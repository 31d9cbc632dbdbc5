// SPDX-License-Identifier: Apache-2.0
// A fetch tier in this process's memory whose requests end when the test says so, and how it says.
// Bytes are copied at the end of a request: until then its memory must be there. One thread.
#pragma once

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/eventfd.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <memory>
#include <vector>

#include "runtime/tier/frame_table.h"
#include "runtime/tier/tier.h"

namespace tidepool {

class FakeTier final : public FetchTier {
 public:
  struct Request {
    FetchChannel* channel;
    uint64_t tag;
    FrameRun run;
    std::byte* memory;
    bool writes;
    std::vector<FrameIndex> scattered;  // of a scattered request; its run is the first frame
  };

  explicit FakeTier(PageCount frames, const char* name = "fake")
      : name_(name), store_(frames.value() * kPageSize) {
    frames_ = std::move(*FrameTable::create(frames));
  }

  /// What has been submitted and has not ended, the longest first.
  const std::vector<Request>& requests() const { return requests_; }
  /// The first `count` requests end, with this error if one is given; poll() tells of it.
  void end(size_t count, ErrorCode error = ErrorCode{}) {
    ASSERT_LE(count, requests_.size());
    for (size_t i = 0; i < count; ++i) finish(requests_[i], error);
    requests_.erase(requests_.begin(), requests_.begin() + static_cast<ptrdiff_t>(count));
  }
  void endAll(ErrorCode error = ErrorCode{}) { end(requests_.size(), error); }

  /// The first word of a frame.
  uint64_t word(FrameIndex frame) const {
    uint64_t value;
    memcpy(&value, &store_[frame.value() * kPageSize], sizeof value);
    return value;
  }
  uint64_t held() const { return frames_->heldHere().value(); }

  // Knobs.
  bool opens = true;                // openChannel()
  bool shares = true;               // its frames, with a child
  uint64_t submits = ~uint64_t{0};  // so many more are taken; then kUnreachable
  ErrorCode read_error{};           // of read()
  ErrorCode write_error{};          // of write()
  /// Called before each read() and write(), and may act as another thread.
  std::function<void(FrameRun, bool writes)> before;
  Nanoseconds deadline{7'000'000'000};
  const TransportCensus* census = nullptr;
  void countTraffic(Bytes read, Bytes written) {
    traffic_.reads_bytes += read.value();
    traffic_.writes_bytes += written.value();
  }
  // Counts.
  uint64_t channels = 0;  // that are open
  uint64_t opened = 0;    // so far
  uint64_t flushes = 0;
  uint64_t again = 0;  // submitAgain()

  const char* name() const override { return name_; }
  Bytes capacity() const override { return toBytes(frames_->capacity()); }
  Bytes used() const override { return toBytes(frames_->used()); }
  Result<FrameRun> allocate(PageCount wanted) override { return frames_->allocate(wanted); }
  void release(FrameRun run) override { frames_->release(run); }
  FrameTable& table() override { return *frames_; }
  FrameTable* frames() override { return shares ? frames_.get() : nullptr; }
  Status read(FrameRun run, std::byte* memory) override {
    if (before) before(run, false);
    if (read_error != ErrorCode{}) return fail(read_error, "the test says so");
    memcpy(memory, at(run), toBytes(run.count).value());
    return {};
  }
  Status write(FrameRun run, const std::byte* memory) override {
    if (before) before(run, true);
    if (write_error != ErrorCode{}) return fail(write_error, "the test says so");
    memcpy(at(run), memory, toBytes(run.count).value());
    return {};
  }
  Nanoseconds pageRoundTrip() const override { return Nanoseconds(1000); }
  const TransportCensus* transports() const override { return census; }
  Result<std::unique_ptr<FetchChannel>> openChannel() override {
    if (!opens) return fail(ErrorCode::kUnreachable, "the test says so");
    return std::unique_ptr<FetchChannel>(std::make_unique<Channel>(*this));
  }

 private:
  class Channel final : public FetchChannel {
   public:
    explicit Channel(FakeTier& tier) : tier_(tier) {
      ++tier_.channels;
      ++tier_.opened;
    }
    ~Channel() override { --tier_.channels; }
    Status submitRead(uint64_t tag, FrameRun run, std::byte* to) override {
      return submit({this, tag, run, to, false, {}});
    }
    Status submitWrite(uint64_t tag, FrameRun run, const std::byte* from) override {
      return submit({this, tag, run, const_cast<std::byte*>(from), true, {}});
    }
    Status submitAgain(uint64_t tag, FrameIndex frame, const std::byte* from) override {
      ++tier_.again;
      return submitWrite(tag, {frame, PageCount(1)}, from);
    }
    Status submitReadScattered(uint64_t tag, std::span<const FrameIndex> frames,
                               std::byte* to) override {
      return submit(
          {this, tag, {frames[0], PageCount(1)}, to, false, {frames.begin(), frames.end()}});
    }
    Status submitWriteScattered(uint64_t tag, std::span<const FrameIndex> frames,
                                const std::byte* from) override {
      return submit({this,
                     tag,
                     {frames[0], PageCount(1)},
                     const_cast<std::byte*>(from),
                     true,
                     {frames.begin(), frames.end()}});
    }
    Status flush() override {
      ++tier_.flushes;
      return {};
    }
    size_t poll(std::span<FetchCompletion> out) override {
      const size_t count = std::min(out.size(), ended_.size());
      std::copy_n(ended_.begin(), count, out.begin());
      ended_.erase(ended_.begin(), ended_.begin() + static_cast<ptrdiff_t>(count));
      in_flight_ -= count;
      return count;
    }
    int fd() const override { return bell_.get(); }
    short events() const override { return POLLIN; }
    size_t inFlight() const override { return in_flight_; }
    Nanoseconds timeToDeadline() const override { return tier_.deadline; }

   private:
    friend class FakeTier;
    Status submit(const Request& request) {
      if (tier_.submits == 0) return fail(ErrorCode::kUnreachable, "the test says so");
      --tier_.submits;
      tier_.requests_.push_back(request);
      ++in_flight_;
      return {};
    }
    FakeTier& tier_;
    std::vector<FetchCompletion> ended_;
    size_t in_flight_ = 0;
    UniqueFd bell_{eventfd(0, EFD_CLOEXEC)};
  };

  std::byte* at(FrameRun run) { return &store_[run.first.value() * kPageSize]; }
  Status copy(const Request& request, FrameRun run, std::byte* memory) {
    return request.writes ? write(run, memory) : read(run, memory);
  }
  void finish(const Request& request, ErrorCode error) {
    if (error == ErrorCode{}) {
      if (request.scattered.empty()) {
        ASSERT_TRUE(copy(request, request.run, request.memory));
      }
      for (size_t i = 0; i < request.scattered.size(); ++i) {
        ASSERT_TRUE(
            copy(request, {request.scattered[i], PageCount(1)}, request.memory + i * kPageSize));
      }
    }
    static_cast<Channel*>(request.channel)->ended_.push_back({request.tag, error});
  }

  const char* const name_;
  std::vector<std::byte> store_;
  std::unique_ptr<FrameTable> frames_;
  std::vector<Request> requests_;
};

}  // namespace tidepool
