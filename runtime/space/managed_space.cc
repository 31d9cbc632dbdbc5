// SPDX-License-Identifier: Apache-2.0
// Reservation of the managed space and of its page words.
#include "runtime/space/managed_space.h"

#include <algorithm>
#include <bit>
#include <memory>
#include <optional>
#include <utility>

#include "runtime/os/memory.h"

namespace tidepool {

namespace {

// Where a JVM begins to look for room for its heap. The first 2 GiB are left to those who need
// addresses of 31 bits, and to the break of programs that are not position-independent.
constexpr uintptr_t kLowBase = 2 * kGiB;
// Given out only to those who ask for just these addresses, by a hint or with MAP_FIXED: they want
// short pointers (a JVM: below 4 or 32 GiB, and at 32 GiB for its archive of classes). Reserved
// only then, too: CUDA's library looks in /proc/self/maps for a hole of some 4 GiB down here, and
// without one it says that there is no memory.
constexpr uintptr_t kLowEnd = 96 * kGiB;
// Smaller spaces have no such part to spare.
constexpr uint64_t kLeastForLow = 256 * kGiB;
// Where a space at a fixed address begins to be used is still to be guessed: granules.
constexpr uint64_t kRandomStarts = 8192;

// Above the hints that are worth keeping: those below 64 GiB (shim/mman.cc).
constexpr uintptr_t kLowHeap = 64 * kGiB;
// Where the space is not low: what is mapped beyond has its place behind the heap.
constexpr uint64_t kMostBelowHeap = 64 * kGiB;

constexpr uint64_t kLargestAlignment = 64 * kGiB;

/// A space that begins low, if it is large enough for that and nothing is in its way.
std::optional<uintptr_t> reserveLow(Bytes size) {
  const Bytes rest = size - Bytes(kLowHeap - kLowBase);
  if (size.value() < kLeastForLow || !os::reserveAt(kLowHeap, rest)) return std::nullopt;
  return kLowBase;
}

/// The heap lies between what is kept for hints and what is mapped, or has the upper half. Not far
/// from the rest: searches go through all that lies below what is in use.
RangeAllocator::Layout layoutFor(uintptr_t base, Bytes size) {
  const auto randomly = [] { return os::randomBelow(kRandomStarts) * kGranuleSize; };
  if (base == kLowBase) {
    const uint64_t lowest = kLowEnd - base + randomly();
    return {base, lowest, kLowHeap - base + randomly(), lowest};
  }
  return {base, 0, roundDown(std::min(size.value() / 2, kMostBelowHeap), kGranuleSize),
          size.value()};
}

}  // namespace

Result<std::unique_ptr<ManagedSpace>> ManagedSpace::create(Bytes size) {
  const Bytes rounded(roundUp(size.value(), kGranuleSize));
  // The largest first: address space that was had stays reserved.
  Mapping words, counts, placements;
  const std::pair<Mapping*, uint64_t> tables[] = {
      {&words, toPages(rounded).value() * sizeof(uint64_t)},
      {&counts, (rounded.value() >> kGranuleShift) * sizeof(uint32_t)},
      {&placements, rounded.value() >> kGranuleShift}};
  for (const auto& [table, bytes] : tables) {
    auto mapped = Mapping::anonymous(Bytes(bytes));
    if (!mapped) {
      return fail(ErrorCode::kNoMemory,
                  "cannot reserve the metadata of a space of %llu GiB%s; lower it with --conf "
                  "space:SIZE or raise the limit",
                  static_cast<unsigned long long>(size.value() / kGiB), memoryLimitHint());
    }
    *table = std::move(*mapped);
  }
  std::optional<uintptr_t> base = reserveLow(rounded);
  const Bytes unreserved(base ? kLowHeap - kLowBase : 0);
  if (!base) {
    // As far as any allocation is likely to ask for.
    const Bytes alignment(std::min(std::bit_floor(rounded.value()), kLargestAlignment));
    const auto anywhere = os::reserve(rounded, alignment);
    if (!anywhere) return tl::unexpected(anywhere.error());
    base = *anywhere;
  }
  return std::unique_ptr<ManagedSpace>(new ManagedSpace(
      *base, unreserved, rounded, std::move(words), std::move(counts), std::move(placements)));
}

ManagedSpace::ManagedSpace(uintptr_t base, Bytes unreserved, Bytes size, Mapping words,
                           Mapping counts, Mapping placements)
    : base_(base),
      size_(size),
      words_mapping_(std::move(words)),
      words_(reinterpret_cast<std::atomic<uint64_t>*>(words_mapping_.data())),
      counts_(std::move(counts)),
      ranges_(size, layoutFor(base, size)),
      placements_(std::move(placements)) {
  addresses_.protect(base_, size_, kNotHandedOut);
  if (unreserved > Bytes()) addresses_.protect(base_, unreserved, kNotReserved);
  // Nothing is handed out yet, and what is mapped over it goes into core dumps again.
  os::leaveOutOfDumps(base_ + unreserved.value(), size_ - unreserved);
}

ManagedSpace::~ManagedSpace() { forEachPart(base_, base_ + size_.value(), true, os::unmap); }

bool ManagedSpace::take(uintptr_t address, Bytes size) {
  MutexLock lock(taking_);
  bool taken = true;
  // Whole granules, so that in none of them somebody else has a part.
  const uintptr_t end = roundUp(address + size.value(), kGranuleSize);
  forEachPart(roundDown(address, kGranuleSize), end, false, [&](uintptr_t start, Bytes part) {
    taken = taken && os::reserveAt(start, part);
    if (!taken) return;
    os::leaveOutOfDumps(start, part);
    addresses_.protect(start, part, kNotHandedOut);
  });
  return taken;
}

void ManagedSpace::noteFirstUse(GranuleIndex granule) {
  if ((countsOf(granule).fetch_or(kEverUsed, kCount) & kEverUsed) == 0) {
    granules_used_.fetch_add(1, kCount);
  }
}

void ManagedSpace::raiseHighWater(PageIndex end) {
  TP_CHECK_OP(end.value(), <=, pageEnd().value());
  uint64_t seen = high_water_.load(std::memory_order_relaxed);
  while (seen < end.value() &&
         !high_water_.compare_exchange_weak(seen, end.value(), std::memory_order_relaxed)) {
  }
}

}  // namespace tidepool
