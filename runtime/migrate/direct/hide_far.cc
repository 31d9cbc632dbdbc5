// SPDX-License-Identifier: Apache-2.0
// Granule by granule, in runs of pages, so that the child needs few mappings.
#include "runtime/migrate/direct/hide_far.h"

#include <unistd.h>

#include <array>

#include "runtime/base/check.h"
#include "runtime/base/raw_calls.h"
#include "runtime/os/memory.h"

namespace tidepool {
namespace {

// Of an entry of /proc/PID/pagemap.
constexpr uint64_t kPresentOrSwapped = uint64_t{3} << 62;
constexpr uint64_t kFileOrShared = uint64_t{1} << 61;

using Entries = std::array<uint64_t, kPagesPerGranule>;

/// Nothing of it is taken to be present if the kernel does not say.
Entries pageTableOf(int pagemap, uintptr_t address) {
  Entries entries{};
  const auto offset = static_cast<off_t>(address / kPageSize * sizeof(uint64_t));
  if (raw::pread(pagemap, entries.data(), sizeof entries, offset) != sizeof entries)
    entries.fill(0);
  return entries;
}

bool isOwn(uint64_t entry) {
  return (entry & kPresentOrSwapped) != 0 && (entry & kFileOrShared) == 0;
}

}  // namespace

void hideFarMemory(const Core& core, LocalIf rule) {
  const Result<UniqueFd> pagemap =
      rule == LocalIf::kPresent ? os::openPagemap() : Result<UniqueFd>(UniqueFd());
  const ManagedSpace& space = *core.space;
  const GranuleIndex end = granuleOf(space.highWater() + (kPagesPerGranule - 1));
  for (GranuleIndex granule; (granule = space.nextWithPages(granule, end)) < end; ++granule) {
    const PageIndex first = firstPage(granule);
    Entries entries;
    if (rule == LocalIf::kPresent) {
      entries = pageTableOf(pagemap ? pagemap->get() : -1, space.addressOf(first));
    }
    const auto hidden = [&](uint64_t i) {
      const PageState state = space.word(first + i).state();
      if (state == PageState::kEmpty || state == PageState::kZero) return false;
      return state != PageState::kLocal || (rule == LocalIf::kPresent && !isOwn(entries[i]));
    };
    for (uint64_t i = 0; i < kPagesPerGranule; ++i) {
      uint64_t run = 0;
      while (i + run < kPagesPerGranule && hidden(i + run)) ++run;
      if (run == 0) continue;
      // If the kernel has no room for one more mapping the page must still not be readable.
      TP_CHECK(
          core.kernel->mapNothing(space.addressOf(first + i), Bytes(run * kPageSize)).has_value());
      i += run;
    }
  }
}

}  // namespace tidepool
