// SPDX-License-Identifier: Apache-2.0
// One frame of a mirror, of some parts, whose copy is made on side 1 while writers use it: what the
// repairer does, each of whose steps is one choice of the random numbers.
#pragma once

#include <array>
#include <memory>
#include <random>

#include "runtime/tier/mirror_frames.h"
#include "runtime/tier/mirror_state.h"

namespace tidepool {

template <size_t kParts>
class RepairedFrame {
 protected:
  static constexpr FrameIndex kFrame{0};
  enum class Changes : uint8_t { kHeeded, kIgnored };

  RepairedFrame(uint64_t seed, Changes changes) : random_(seed), changes_(changes) {
    constexpr std::array<const char*, 3> kNames = {"a:1", "b:2", "c:3"};
    state_ = std::move(*MirrorState::create(kNames));
    frames_ = std::move(*MirrorFrames::create(PageCount(1)));
  }
  void repair() {
    switch (repairer_) {
      case Repairer::kJoins:
        state_->join(1, 2, {});
        stored_[1].fill(~uint64_t{0});
        now_ = state_->look();
        repairer_ = Repairer::kScans;
        return;
      case Repairer::kScans:
        begun_ = frames_->beginCopy(kFrame, now_, 1);
        if (begun_.need == MirrorFrames::Need::kCopy) repairer_ = Repairer::kReads;
        repaired_ |= begun_.need == MirrorFrames::Need::kNone;
        return;
      case Repairer::kReads:
        read_ = stored_[0];
        repairer_ = Repairer::kWrites;
        return;
      case Repairer::kWrites:
        if (random_() % 2 == 0) {  // it takes its time, and lands in parts
          const size_t part = random_() % kParts;
          stored_[1][part] = read_[part];
          return;
        }
        stored_[1] = read_;
        if (changes_ == Changes::kIgnored) {
          frames_->endWrite(kFrame, now_.number(), 3);
          frames_->abandonCopy(kFrame);
        } else {
          frames_->endCopy(kFrame, begun_.word, now_);
        }
        repairer_ = Repairer::kScans;
    }
  }

  std::mt19937_64 random_;
  std::unique_ptr<MirrorState> state_;
  std::unique_ptr<MirrorFrames> frames_;
  std::array<std::array<uint64_t, kParts>, 2> stored_{};  // by side
  bool repaired_ = false;

 private:
  enum class Repairer : uint8_t { kJoins, kScans, kReads, kWrites };
  const Changes changes_;
  Repairer repairer_ = Repairer::kJoins;
  Membership now_;
  MirrorFrames::Begun begun_{};
  std::array<uint64_t, kParts> read_{};
};

/// Of so many runs of `OneFrame`, one a seed, those in which something was wrong.
template <typename OneFrame, typename Without>
uint64_t wrongRunsOf(uint64_t runs, Without without) {
  uint64_t wrong = 0;
  for (uint64_t seed = 0; seed < runs; ++seed) wrong += OneFrame(seed, without).run() ? 0 : 1;
  return wrong;
}

}  // namespace tidepool
