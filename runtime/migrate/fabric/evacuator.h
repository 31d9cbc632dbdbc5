// SPDX-License-Identifier: Apache-2.0
// Takes a tier out of use: moves what lies there elsewhere, while the program runs, or says that it
// is lost. The tier is closed, so that nothing is added; a hand goes over the space until nothing
// of it is named there. Runs on the migrator's thread alone; never touches managed memory.
#pragma once

#include <array>
#include <memory>

#include "runtime/base/clock.h"
#include "runtime/base/mapping.h"
#include "runtime/migrate/core/core.h"
#include "runtime/migrate/core/far_claim.h"
#include "runtime/migrate/direct/granule_mover.h"

namespace tidepool {

class Evacuator {
 public:
  /// Both must outlive the evacuator. Errors: kNoMemory.
  static Result<std::unique_ptr<Evacuator>> create(Core& core, GranuleMover& mover);

  enum class Progress : uint8_t {
    kMoved,  // something; there is more to do
    kWaits,  // nothing just now: local memory has to be made room in first, which goes on
    kStuck,  // a whole turn moved nothing: there is no room for what is left, or it cannot move now
    kDone,   // nothing of this process is there any more
  };
  /// Goes on moving for about `slice`. To other tiers; what has no room there, to local memory as
  /// far as the budget has.
  Progress moveOff(uint8_t tier, Nanoseconds slice);
  /// Frames from `from` on are gone: whatever lies there is lost. Returns how many pages.
  uint64_t lose(uint8_t tier, FrameIndex from);
  /// To be called when a tier has come.
  void tierCame() { mover_.whole.tierCame(); }

 private:
  /// Far pages of one granule, on their way to other frames.
  struct Moving {
    GranuleIndex granule;
    uint64_t count = 0;
    std::array<FarClaim, kPagesPerGranule> pages;  // of one page each
    std::array<FrameIndex, kPagesPerGranule> to;
    std::array<uint8_t, kPagesPerGranule> to_tier;
  };
  Evacuator(Core& core, GranuleMover& mover, Mapping bytes)
      : core_(core), mover_(mover), bytes_(std::move(bytes)) {}
  /// Whether there will be room in local memory, which there is not now.
  bool fetchTierTakesPages() const;
  bool roomIsComing() const;
  bool namesTier(GranuleIndex granule, uint8_t tier) const;
  /// Returns whether anything moved.
  bool moveGranule(GranuleIndex granule, uint8_t tier);
  /// Claims the granule's far pages in the tier, and drops what else refers to it.
  void claim(GranuleIndex granule, uint8_t tier);
  /// Reads what was claimed; on failure it is given back, or lost.
  bool fetch(uint8_t tier);
  /// Frames in other tiers for the claimed pages from `at` on; returns how many have one then.
  uint64_t findFrames(uint64_t at, uint8_t tier);
  bool writeOut(uint64_t begin, uint64_t end);
  void settle(uint64_t begin, uint64_t end);
  uint64_t install(uint64_t begin);
  void unclaim(uint64_t begin);
  void loseClaimed(uint8_t tier, ErrorCode error);
  std::byte* bytesOf(uint64_t index) const { return bytes_.data() + index * kPageSize; }

  Core& core_;
  GranuleMover& mover_;
  Mapping bytes_;  // of one granule
  Moving moving_;
  // By the tier's number: the hand, and whether anything moved in its turn over the space.
  std::array<GranuleIndex, TierSet::kMost + 1> hands_{};
  std::array<bool, TierSet::kMost + 1> moved_{};
};

}  // namespace tidepool
