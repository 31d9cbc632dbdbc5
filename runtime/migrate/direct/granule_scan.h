// SPDX-License-Identifier: Apache-2.0
// Sets of pages of one granule, and what PAGEMAP_SCAN says of them. Thread-safe; no allocation.
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

/// Pages of `asked` that the scan finds; nothing when the kernel does not answer for all of them.
/// `pagemap` is an open /proc/self/pagemap.
std::optional<PageSet> scanGranule(Kernel& kernel, Scan what, int pagemap,
                                   const ManagedSpace& space, GranuleIndex granule,
                                   const PageSet& asked);

}  // namespace tidepool
