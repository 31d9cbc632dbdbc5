// SPDX-License-Identifier: Apache-2.0
// The tier that keeps every page on two memory servers, in the same frame of each, and goes on with
// one when the other is lost. Thread-safe; every FetchChannel belongs to the thread that opened it
// and must not outlive the tier. Nothing makes a second copy again: see docs/limits.md.
#pragma once

#include <array>
#include <atomic>
#include <memory>

#include "runtime/tier/mirror_state.h"
#include "runtime/tier/remote_tier.h"

namespace tidepool {

class MirrorTier final : public FetchTier {
 public:
  /// Opens a region on each of the two servers of far.target (HOST:PORT+HOST:PORT), of far.size
  /// (0: all that each has free, of which as much is used as the smaller has). `patience`
  /// holds for each later request as well, but a server that is silent for two timeouts is lost.
  /// Errors: as RemoteTier::open(), of whichever server it was.
  static Result<std::unique_ptr<MirrorTier>> open(const FarSpec& far, const Patience& patience);

  const char* name() const override { return name_; }
  Bytes capacity() const override { return smaller().capacity(); }
  Bytes used() const override { return smaller().used(); }
  Result<FrameRun> allocate(PageCount wanted) override { return smaller().allocate(wanted); }
  void release(FrameRun run) override { smaller().release(run); }
  /// As RemoteTier's, of the servers that are not lost; an error is of the last one.
  Status read(FrameRun run, std::byte* memory) override;
  Status write(FrameRun run, const std::byte* memory) override;

  /// Requests in flight and their lengths are bounded as in RemoteTier::openChannel().
  Result<std::unique_ptr<FetchChannel>> openChannel() override;
  Nanoseconds pageRoundTrip() const override {
    return std::max(sides_[0]->pageRoundTrip(), sides_[1]->pageRoundTrip());
  }
  const TransportCensus* transports() const override { return &census_; }
  MirrorState* mirror() const override { return state_.get(); }

  /// One for both; it is here, and outlives either server.
  FrameTable& table() override { return smaller().table(); }
  FrameTable* frames() override { return smaller().frames(); }
  void afterForkInChild() override {
    for (const auto& side : sides_) side->afterForkInChild();
  }

 private:
  using Sides = std::array<std::unique_ptr<RemoteTier>, MirrorState::kSides>;
  MirrorTier() = default;
  RemoteTier& smaller() const { return *sides_[smaller_]; }
  bool goesOnWithout(size_t side, ErrorCode error);

  char name_[160] = {};
  TransportCensus census_;  // of the connections to both
  std::unique_ptr<MirrorState> state_;
  Sides sides_;
  size_t smaller_ = 0;              // whose frames are both's
  std::atomic<uint32_t> reads_{0};  // of read(), to take turns
};

/// The two servers of a target, each with the rest of the spec. Errors: kInvalidArgument when both
/// are the same.
Result<std::array<FarSpec, MirrorState::kSides>> sidesOf(const FarSpec& far);

}  // namespace tidepool
