// SPDX-License-Identifier: Apache-2.0
// Sets of pages of one granule: by their words, and by what PAGEMAP_SCAN says. Thread-safe; no
// allocation.
#pragma once

#include <bitset>
#include <optional>

#include "runtime/os/kernel.h"
#include "runtime/space/managed_space.h"

namespace tidepool {

using PageSet = std::bitset<kPagesPerGranule>;

/// Calls visit(first, count) for every run of pages in the set.
template <typename Visit>
void forRuns(const PageSet& set, Visit visit) {
  for (uint64_t at = 0; at < kPagesPerGranule;) {
    if (!set[at]) {
      ++at;
      continue;
    }
    uint64_t run = 1;
    while (at + run < kPagesPerGranule && set[at + run]) ++run;
    visit(at, run);
    at += run;
  }
}

/// Which pages of a granule are where.
struct Places {
  PageSet direct, local;
};
Places placesOf(const ManagedSpace& space, GranuleIndex granule);

/// Calls `act(first, count)` for the runs of direct pages in [from, end).
template <typename Act>
void forEachDirect(const ManagedSpace& space, PageIndex from, PageIndex end, Act act) {
  for (PageIndex page = from; page < end;) {
    uint64_t run = 0;
    while (page + run < end && space.word(page + run).state() == PageState::kDirect) ++run;
    if (run > 0) act(page, run);
    page = page + (run + 1);
  }
}
template <typename Act>
void forEachDirect(const ManagedSpace& space, GranuleIndex granule, Act act) {
  forEachDirect(space, firstPage(granule), firstPage(granule) + kPagesPerGranule, act);
}

/// Pages of `asked` that the scan finds; nothing when the kernel does not answer for all of them.
/// `pagemap` is an open /proc/self/pagemap.
std::optional<PageSet> scanGranule(Kernel& kernel, Scan what, int pagemap,
                                   const ManagedSpace& space, GranuleIndex granule,
                                   const PageSet& asked);

}  // namespace tidepool
