// SPDX-License-Identifier: Apache-2.0
// A scan of the page table returns at most so many runs: as many scans as it takes.
#include "runtime/migrate/direct/granule_pages.h"

#include <array>

namespace tidepool {

Places placesOf(const ManagedSpace& space, GranuleIndex granule) {
  Places places;
  for (uint64_t i = 0; i < kPagesPerGranule; ++i) {
    const PageState state = space.word(firstPage(granule) + i).state();
    places.direct[i] = state == PageState::kDirect;
    places.local[i] = state == PageState::kLocal;
  }
  return places;
}

std::optional<PageSet> scanGranule(Kernel& kernel, Scan what, int pagemap,
                                   const ManagedSpace& space, GranuleIndex granule,
                                   const PageSet& asked) {
  const uintptr_t start = space.addressOf(granule);
  uint64_t first = 0, last = kPagesPerGranule;
  while (first < last && !asked[first]) ++first;
  while (last > first && !asked[last - 1]) --last;
  const uintptr_t end = start + last * kPageSize;
  PageSet found;
  std::array<os::PageRun, 256> runs;
  for (uintptr_t at = start + first * kPageSize; at < end;) {
    uintptr_t walked = at;
    const auto count = kernel.scan(what, pagemap, at, Bytes(end - at), runs, &walked);
    if (!count || walked <= at) return std::nullopt;
    for (size_t i = 0; i < *count; ++i) {
      for (uintptr_t page = runs[i].start; page < runs[i].end; page += kPageSize) {
        found.set((page - start) >> kPageShift);
      }
    }
    at = walked;
  }
  return found & asked;
}

}  // namespace tidepool
