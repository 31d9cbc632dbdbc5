// SPDX-License-Identifier: Apache-2.0
// Finds the copies of sealed pages that have to be written again: readers note what did not verify
// (mirror_frames.h), of requests of many pages all of them; here each is read alone, from either
// server. For the repairer's thread, which may wait; allocates nothing.
#pragma once

#include <array>
#include <atomic>
#include <span>

#include "runtime/tier/mirror_frames.h"
#include "runtime/transport/fetch_channel.h"

namespace tidepool {

class MirrorMender {
 public:
  /// Frames of one look.
  static constexpr size_t kMost = 128;

  /// For the copies on a side, by membership `now`, of which no side is lost or being filled.
  MirrorMender(MirrorFrames& frames, Membership now, size_t side)
      : frames_(frames), now_(now), side_(side) {}

  /// Looks at the first frames that are noted, through channels to the side and to the other one,
  /// with nothing else in flight. False: some are left to look at, for there are more, `stop` is
  /// set, or a channel has failed, which is then of no more use.
  bool look(FetchChannel& channel, FetchChannel& other, const std::atomic<bool>& stop);
  /// Of those, the frames that the other side alone holds now: to be copied from there.
  std::span<const FrameIndex> bad() const { return std::span(bad_).first(count_); }
  /// They have been copied.
  void forgetBad();

 private:
  enum class Copy : uint8_t { kGood, kBad, kUnknown };
  Copy judge(FrameIndex frame, FetchChannel& channel, FetchChannel& other);

  MirrorFrames& frames_;
  const Membership now_;
  const size_t side_;
  std::array<FrameIndex, kMost> bad_;
  size_t count_ = 0;
};

}  // namespace tidepool
