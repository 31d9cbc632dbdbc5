// SPDX-License-Identifier: Apache-2.0
// Shows which pages of a granule the program uses within a window. Long runs of direct pages are
// hidden: their page table entries are moved aside and moved back, so that only pages used
// meanwhile cost a fault. Short ones are taken out of the page table, each for a fault when next
// used; local pages are armed against writes. One thread.
#pragma once

#include <array>
#include <memory>

#include "runtime/base/mapping.h"
#include "runtime/base/unique_fd.h"
#include "runtime/migrate/core/core.h"
#include "runtime/migrate/direct/granule_pages.h"

namespace tidepool {

class AccessWatch {
 public:
  static constexpr size_t kSlots = 16;  // granules watched at a time
  // Moving a run's entries aside and back costs as much as about so many faults.
  static constexpr uint64_t kLeastHidden = 20;

  /// Errors: kNoMemory, kPermission (/proc/self/pagemap).
  static Result<std::unique_ptr<AccessWatch>> create(Core& core);

  /// Begins to watch the pages of `wanted` in a free slot. Returns how many faults this will cost
  /// the program whatever it does: pages taken out of the page table that were in it.
  uint64_t open(size_t slot, const GranuleLock& granule, const Places& wanted);
  /// Ends it. What was watched and is still where it was, and what of that was seen.
  struct Seen {
    Places watched;
    PageSet seen;
  };
  Seen close(size_t slot, const GranuleLock& granule);
  /// While nothing is watched: what was moved aside leaves an empty mapping there, which keeps its
  /// file or device in use; it goes.
  void forgetMappings();

 private:
  struct Slot {
    GranuleIndex granule;
    PageSet hidden, zapped, armed;
    uint8_t tier;
    FrameIndex home;
  };
  AccessWatch(Core& core, Mapping area, UniqueFd pagemap)
      : core_(core), area_(std::move(area)), pagemap_(std::move(pagemap)) {}
  bool hide(size_t slot, uint64_t first, uint64_t count);
  bool unhide(size_t slot, const GranuleLock& granule, uint64_t first, uint64_t count);
  /// A mapping that was moved back is in core dumps again, but for what the program keeps from
  /// them.
  void dumpAsAsked(uintptr_t address, Bytes size);
  /// Which of the pages asked for the scan finds; none where the kernel does not say.
  PageSet found(Scan what, GranuleIndex granule, const PageSet& asked) const {
    return scanGranule(*core_.kernel, what, pagemap_.get(), *core_.space, granule, asked)
        .value_or(PageSet());
  }
  uintptr_t aside(size_t slot, uint64_t page) const {
    return reinterpret_cast<uintptr_t>(area_.data()) + slot * kGranuleSize + page * kPageSize;
  }

  Core& core_;
  Mapping area_;  // a granule a slot
  UniqueFd pagemap_;
  std::array<Slot, kSlots> slots_{};
};

}  // namespace tidepool
