// SPDX-License-Identifier: Apache-2.0
// The settings and their reasons. Some depend on the budget and on what there is to keep it with.
#include "allocator/arena/settings.h"

#include <algorithm>
#include <cstdio>

#include "runtime/base/format.h"

namespace tidepool {
namespace {

// narenas:1            automatic arenas would take memory from outside the managed space; ours are
//                      made by hand, with hooks.
// oversize_threshold:0 the same: no automatic arena for large blocks.
// retain               on: small extents are cut from larger ones rather than asked for singly.
// muzzy_decay_ms       what is given back is discarded in every tier, at once.
// zero_realloc         as glibc: realloc(p, 0) frees.
// slab_sizes           64 KiB slabs for the larger small blocks, which otherwise get one each.
// lg_extent_max_...    freed memory is used again, however much larger it is than what is asked for
//                      (by default, at most 64 times): fresh memory costs local room and faults.
// lg_tcache_flush_...  a full cache gives up a quarter, not half: half would be missed at once.
// tcache_gc_*          how many bytes a thread allocates between two looks at its cache. By default
//                      a block of 64 KiB is a look each time, and costs four times as much.
// thp                  the runtime works in 4 KiB pages: huge pages are its decision.
constexpr char kSettings[] =
    "narenas:1,oversize_threshold:0,retain:true,"
    "muzzy_decay_ms:0,background_thread:false,dss:disabled,zero_realloc:free,thp:default,"
    "percpu_arena:disabled,abort_conf:false,tcache_nslots_small_min:64,"
    "slab_sizes:2048-14336:16,lg_extent_max_active_fit:64,"
    "tcache_gc_incr_bytes:1048576,lg_tcache_flush_large_div:2";

// How long memory stays free before it is discarded. With far memory, soon: what is free takes room
// from what is in use. Without, nothing is gained by it, and what is given back so often is touched
// anew, by faults and in pages that no cache holds: jemalloc's own default.
constexpr unsigned kDecayMsWithFar = 1'000;
constexpr unsigned kDecayMsAlone = 10'000;

constexpr size_t kShareOfLocal = 16;
constexpr size_t kLeastLargest = 2 * kLargeBlock;

}  // namespace

size_t bytesASlot(size_t largest) {
  // From one power of two, x, to the next there are four classes: 1.25x, 1.5x, 1.75x and 2x.
  return kLargeBlock + (largest - kLargeBlock) / 2 * 13;
}

ThreadCacheShape threadCacheShape(Bytes local, unsigned cpus) {
  const size_t share = local.value() / kShareOfLocal / std::max(cpus, 1u);
  size_t largest = kLargestCachedBlock;
  while (largest > kLeastLargest && bytesASlot(largest) * kLeastCacheSlots > share) largest /= 2;
  const size_t slots =
      std::clamp<size_t>(share / bytesASlot(largest), kLeastCacheSlots, kMostCacheSlots);
  return {largest, static_cast<unsigned>(slots)};
}

void writeArenaSettings(std::span<char, kArenaSettingsCapacity> out, ThreadCacheShape cache,
                        FreeMemory free) {
  const unsigned decay = free == FreeMemory::kIsWanted ? kDecayMsWithFar : kDecayMsAlone;
  formatText(out.data(), out.size(), "%s,dirty_decay_ms:%u,tcache_max:%zu,tcache_nslots_large:%u",
             kSettings, decay, cache.largest_block, cache.slots);
}

}  // namespace tidepool
