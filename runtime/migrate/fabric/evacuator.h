// SPDX-License-Identifier: Apache-2.0
// Takes a tier out of use: moves what lies there elsewhere, while the program runs, or says that it
// is lost. The tier is closed, so that nothing is added; a hand goes over the space until nothing
// of it is named there. Runs on the migrator's thread alone; never touches managed memory.
#pragma once

#include <array>
#include <memory>

#include "runtime/base/clock.h"
#include "runtime/migrate/core/core.h"
#include "runtime/migrate/core/far_move.h"
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
  /// Goes on moving for about `slice`. To other tiers of the kind; what has no room there, to local
  /// memory as far as the budget has, and from there on to a direct tier.
  Progress moveOff(uint8_t tier, Nanoseconds slice);
  /// Frames from `from` on are gone: whatever lies there is lost. Returns how many pages.
  uint64_t lose(uint8_t tier, FrameIndex from);

 private:
  Evacuator(Core& core, GranuleMover& mover, FarMove moving)
      : core_(core), mover_(mover), moving_(std::move(moving)) {}
  /// Whether there will be room in local memory, which there is not now.
  bool roomIsComing() const;
  bool namesTier(GranuleIndex granule, uint8_t tier) const;
  /// Returns whether anything moved.
  bool moveGranule(GranuleIndex granule, uint8_t tier);
  /// Claims the granule's far pages in the tier, and drops what else refers to it.
  void claim(GranuleIndex granule, uint8_t tier);
  /// Reads what was claimed; on failure it is given back, or lost.
  bool fetch(uint8_t tier);
  /// Whether what has no room in local memory can go on from there to a direct tier at once.
  bool passesOn(GranuleIndex granule);
  /// What found no other place comes to local memory, as far as the budget has room. Beyond it,
  /// all comes if it can be passed on: one granule at the most is too much for that long.
  void install(Budget::Beyond beyond);
  /// Pages of one granule that local memory has no room for go to its place in a direct tier.
  void passOn(GranuleIndex granule, const PageSet& pages);
  void loseClaimed(uint8_t tier, ErrorCode error);

  Core& core_;
  GranuleMover& mover_;
  FarMove moving_;  // of one granule
  // By the tier's number: the hand, and whether anything moved in its turn over the space.
  std::array<GranuleIndex, TierSet::kMost + 1> hands_{};
  std::array<bool, TierSet::kMost + 1> moved_{};
};

}  // namespace tidepool
