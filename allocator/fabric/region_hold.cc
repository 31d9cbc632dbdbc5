// SPDX-License-Identifier: Apache-2.0
// RegionHold: armed memory in place of what is mapped, in one step (MappingSwap), and back.
#include "allocator/fabric/region_hold.h"

#include <sys/mman.h>

#include <algorithm>

#include "allocator/fabric/fabric_rows.h"
#include "runtime/base/check.h"
#include "runtime/os/memory.h"

namespace tidepool {
namespace {

// Swapped at once: few calls for much memory.
constexpr Bytes kPiece(64 * kMiB);

uintptr_t addressOf(const std::byte* memory) { return reinterpret_cast<uintptr_t>(memory); }

/// A child of fork() has no right to it.
void keepFromChildren(std::byte* memory, Bytes size) {
  (void)madvise(memory, size.value(), MADV_DONTFORK);
}

FrameRun granuleAt(uint64_t granule) {
  return {FrameIndex(granule * kPagesPerGranule), PageCount(kPagesPerGranule)};
}

}  // namespace

void RegionHold::openSwap() {
  if (swap_ != nullptr) return;
  // Rows are touched by code of ours alone, not by system calls: that much is everybody's right.
  auto swap = os::MappingSwap::open(os::MappingSwap::Holds::kOwnCode);
  auto fill = Mapping::reserved(kPiece, Bytes(kGranuleSize));
  if (!swap || !fill) return;
  swap_ = std::move(*swap);
  fill_ = std::move(*fill);
}

void RegionHold::add(DirectFileTier& tier) {
  MutexLock lock(mutex_);
  openSwap();
  tiers_.push_back(&tier);
  if (!suspended()) return;
  tier.suspend();
  take(tier.frameMemory(FrameIndex(0)), tier.capacity());
}

void RegionHold::add(FabricRows& rows) {
  MutexLock lock(mutex_);
  rows_.push_back(&rows);
  if (suspended()) takeRows(rows);
}

void RegionHold::remove(DirectFileTier& tier) {
  MutexLock lock(mutex_);
  std::erase(tiers_, &tier);
}

void RegionHold::remove(FabricRows& rows) {
  MutexLock lock(mutex_);
  std::erase(rows_, &rows);
}

void RegionHold::take(std::byte* memory, Bytes size) {
  for (Bytes done; done < size && swap_ != nullptr; done += kPiece) {
    std::byte* const at = memory + done.value();
    const Bytes piece = std::min(kPiece, size - done);
    if (!swap_->take(addressOf(at), piece, addressOf(fill_.data()))) replace(at, piece);
    keepFromChildren(at, piece);
  }
  if (swap_ == nullptr) replace(memory, size);
}

void RegionHold::takeRows(FabricRows& rows) {
  if (swap_ == nullptr) {
    rows.giveUp(
        "rows were in the fabric when the lease of this host ended, and without a right to "
        "userfaultfd they cannot be kept: make the table anew from its last checkpoint");
  }
  rows.forEachMapped([this](std::byte* memory, Bytes size)
                         TP_LOCKS_OF_CALLER { take(memory, size); });
}

void RegionHold::replace(std::byte* memory, Bytes size) {
  TP_CHECK(os::mapFresh(addressOf(memory), size).has_value());
}

void RegionHold::letGo(std::byte* memory, Bytes size) {
  if (swap_ != nullptr) swap_->letGo(addressOf(memory), size);
}

void RegionHold::suspend() {
  MutexLock lock(mutex_);
  if (suspended()) return;
  suspended_.store(true, std::memory_order_release);
  for (DirectFileTier* tier : tiers_) tier->suspend();
  for (FabricRows* rows : rows_) takeRows(*rows);
  for (DirectFileTier* tier : tiers_) take(tier->frameMemory(FrameIndex(0)), tier->capacity());
}

void RegionHold::resume() {
  MutexLock lock(mutex_);
  if (!suspended()) return;
  for (DirectFileTier* tier : tiers_) {
    const uint64_t granules = tier->capacity().value() / kGranuleSize;
    for (uint64_t i = 0; i < granules && !tier->forsaken(granuleAt(i).first); ++i) {
      std::byte* const at = tier->frameMemory(granuleAt(i).first);
      TP_CHECK(tier->mapFrames(granuleAt(i), at).has_value());
      os::leaveOutOfDumps(addressOf(at), Bytes(kGranuleSize));
      keepFromChildren(at, Bytes(kGranuleSize));
    }
    letGo(tier->frameMemory(FrameIndex(0)), tier->capacity());
    tier->resume();
  }
  for (FabricRows* rows : rows_) {
    if (!rows->verdict()) continue;
    rows->mapAgain();
    rows->forEachMapped([this](std::byte* memory, Bytes size)
                            TP_LOCKS_OF_CALLER { letGo(memory, size); });
  }
  suspended_.store(false, std::memory_order_release);
}

void RegionHold::lose(DirectFileTier& tier) {
  MutexLock lock(mutex_);
  const uint64_t end = tier.capacity().value() / kGranuleSize;
  uint64_t first = 0;
  while (first < end && !tier.forsaken(granuleAt(first).first)) ++first;
  if (first == end) return;
  const Bytes size((end - first) * kGranuleSize);
  replace(tier.frameMemory(granuleAt(first).first), size);
  letGo(tier.frameMemory(granuleAt(first).first), size);
}

void RegionHold::lose(FabricRows& rows) {
  MutexLock lock(mutex_);
  rows.forEachMapped([this](std::byte* memory, Bytes size) TP_LOCKS_OF_CALLER {
    replace(memory, size);
    letGo(memory, size);
  });
}

}  // namespace tidepool
