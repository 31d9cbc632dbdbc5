// SPDX-License-Identifier: Apache-2.0
// The homes of granules in direct tiers. A granule has one home, a granule's worth of frames, which
// it keeps while any of its pages is there (kDirect) or came from there (kLocal with kFlagShadow).
#pragma once

#include <optional>

#include "runtime/migrate/core/core.h"
#include "runtime/migrate/direct/closing_granules.h"
#include "runtime/migrate/direct/granule_pages.h"

namespace tidepool {

struct Home {
  uint8_t tier;
  FrameIndex first;
  FrameRun frames() const { return {first, PageCount(kPagesPerGranule)}; }
};

/// Finds, maps and gives up homes, and says what can lie in one. Has no state but the words of
/// pages: any thread that holds the granule's lock; never touches managed memory.
class GranuleHomes {
 public:
  GranuleHomes(Core& core, ClosingGranules& closing) : core_(core), closing_(closing) {}

  /// The granule's home, if it has one.
  std::optional<Home> of(const GranuleLock& granule) const;
  /// What a home has to take: all of a granule at once will do, or it has to be single pages.
  enum class Takes : uint8_t { kGranule, kPages };
  /// A free home in the tier that the granule is placed in, or else in any direct tier. It goes
  /// back by release(), unless it becomes the granule's.
  std::optional<Home> find(GranuleIndex granule, Takes takes = Takes::kGranule) const;
  void release(const Home& home) { core_.tiers.tier(home.tier).release(home.frames()); }
  /// Frees the granule's home if no page needs it any more.
  void releaseIfUnused(const GranuleLock& granule, const Home& home) {
    if (!of(granule)) release(home);
  }
  /// Makes it the home of the granule's local pages, which give up their far copies.
  void adopt(const GranuleLock& granule, const Home& home);
  /// Its local pages have no home any more.
  void forget(const GranuleLock& granule);
  /// Maps the frames of these pages, which are direct then, and wakes who waits for one. False:
  /// there are no mappings left.
  bool map(const GranuleLock& granule, PageIndex first, uint64_t pages, const Home& home);
  /// Gives the granule the home `to`, with copies of its direct pages, which nobody may write to
  /// meanwhile.
  void move(const GranuleLock& granule, const Home& home, const Home& to);
  /// Sees to it that nobody else holds the granule's home, by a copy if need be. False if there is
  /// no room for one; else `home` is the one it has now.
  bool own(const GranuleLock& granule, Home& home);
  /// Lets writers to the direct pages of [from, end) go on, a part of one granule.
  void openToWriters(PageIndex from, PageIndex end);
  /// True if other processes hold this home as well.
  bool frozen(const Home& home) const { return heldByOthers(core_, home.tier, home.first); }
  /// True while it must be neither read nor written to (Tier::suspend()).
  bool suspended(const Home& home) const { return core_.tiers.tier(home.tier).suspended(); }
  bool suspended(const GranuleLock& granule) const {
    const std::optional<Home> home = of(granule);
    return home && suspended(*home);
  }
  /// True if what is there cannot be erased now.
  bool keeps(const Home& home) const { return suspended(home) || frozen(home); }

  // Devices such as device-DAX are mapped in whole granules: see WholeGranules.

  bool mapsWhole(const Home& home) const {
    return core_.tiers.direct(home.tier)->mapUnit() > PageCount(1);
  }
  /// True if any tier is of that kind. The caller holds a granule's lock, or the one of the set of
  /// tiers, or is the migrator.
  bool anyMapsWhole() const;
  /// True if the granule lies in such a tier: all of its pages do.
  bool liesWhole(const GranuleLock& granule) const;

  /// Whether these pages of one granule can have their place in a direct tier: plain memory,
  /// readable and writable.
  bool movable(const GranuleLock& granule, PageIndex first, uint64_t count) const;
  PageSet movablePages(const GranuleLock& granule) const;

 private:
  std::optional<Home> findIn(uint8_t number, Takes takes) const;

  Core& core_;
  ClosingGranules& closing_;
};

}  // namespace tidepool
