// SPDX-License-Identifier: Apache-2.0
// Demotion of granules. With UFFDIO_MOVE the local pages leave the space first, so that whoever
// touches them waits; then they are copied to the tier and the tier is mapped in their place.
#include "runtime/migrate/granule_mover.h"

#include <sys/uio.h>
#include <unistd.h>

#include <cstring>

#include "runtime/os/memory.h"

namespace tidepool {
namespace {
constexpr uint64_t kCannotGo = ~uint64_t{0};
}

Result<std::unique_ptr<GranuleMover>> GranuleMover::create(Core& core) {
  const auto base = os::reserve(Bytes(kGranuleSize), Bytes(kGranuleSize));
  if (!base) return tl::unexpected(base.error());
  std::unique_ptr<GranuleMover> mover(new GranuleMover(core, *base));
  TP_TRY(os::mapFresh(*base, Bytes(kGranuleSize)));
  if (core.port->canMove()) TP_TRY(core.port->arm(*base, Bytes(kGranuleSize)));
  return mover;
}

GranuleMover::~GranuleMover() { os::unmap(staging_, Bytes(kGranuleSize)); }

uint64_t GranuleMover::countLocal(GranuleIndex granule) const {
  uint64_t local = 0;
  for (uint64_t i = 0; i < kPagesPerGranule; ++i) {
    const PageState state = core_.space->word(firstPage(granule) + i).state();
    if (state == PageState::kLocal) {
      ++local;
    } else if (state != PageState::kEmpty) {
      return kCannotGo;
    }
  }
  return local;
}

bool GranuleMover::findHome(Home* home) const {
  for (uint8_t number = 1; number <= core_.tiers.count(); ++number) {
    DirectTier* tier = core_.tiers.direct(number);
    if (tier == nullptr) continue;
    const auto run = tier->allocate(PageCount(kPagesPerGranule));
    if (!run) continue;
    *home = {number, run->first};
    return true;
  }
  return false;
}

bool GranuleMover::placeFar(GranuleIndex granule) {
  const uintptr_t address = core_.space->addressOf(granule);
  const uint64_t local = countLocal(granule);
  if (local == kCannotGo ||
      !core_.space->ranges().isAllocated(granule.value() * kGranuleSize, Bytes(kGranuleSize)) ||
      !core_.space->protections().plain(address, Bytes(kGranuleSize))) {
    return false;
  }
  Home home{};
  if (!findHome(&home)) return false;
  DirectTier* tier = core_.tiers.direct(home.tier);
  MutexLock lock(staging_mutex_);
  if ((local > 0 && !copyLocalPages(granule, home)) ||
      !tier->mapGranule(home.first, reinterpret_cast<void*>(address))) {
    undo(granule);
    tier->release({home.first, PageCount(kPagesPerGranule)});
    return false;
  }
  for (uint64_t i = 0; i < kPagesPerGranule; ++i) {
    const PageIndex page = firstPage(granule) + i;
    TP_CHECK(core_.space->change(page, core_.space->word(page),
                                 PageWord(PageState::kDirect, 0, home.tier,
                                          home.first.value() + i)));
  }
  if (local > 0) {
    [[maybe_unused]] const Status freed = os::discard(staging_, Bytes(kGranuleSize));
    core_.budget.discharge(PageCount(local));
    count(core_.stats->demotions, 1);
    count(core_.stats->demoted_bytes, local * kPageSize);
  }
  core_.port->wake(address, Bytes(kGranuleSize));
  return true;
}

bool GranuleMover::copyLocalPages(GranuleIndex granule, const Home& home) {
  DirectTier* tier = core_.tiers.direct(home.tier);
  uint64_t at = 0;
  while (at < kPagesPerGranule) {
    const PageIndex first = firstPage(granule) + at;
    if (core_.space->word(first).state() != PageState::kLocal) {
      ++at;
      continue;
    }
    uint64_t run = 1;
    while (at + run < kPagesPerGranule &&
           core_.space->word(first + run).state() == PageState::kLocal) {
      ++run;
    }
    if (!copyRun(first, run, tier->frameMemory(home.first + at))) return false;
    at += run;
  }
  return true;
}

bool GranuleMover::copyRun(PageIndex first, uint64_t pages, std::byte* to) {
  const uintptr_t from = core_.space->addressOf(first);
  const Bytes size(pages * kPageSize);
  if (core_.port->canMove()) {
    const uintptr_t slot = staging_ + (first.value() % kPagesPerGranule) * kPageSize;
    if (moveOutOfSpace(core_, slot, from, size).done < size) return false;
    memcpy(to, reinterpret_cast<void*>(slot), size.value());
    return true;
  }
  // Older kernels: writers wait, readers go on with the page that is copied.
  if (!core_.port->writeProtect(from, size, Wake::kNo)) return false;
  const iovec target{to, size.value()};
  const iovec source{reinterpret_cast<void*>(from), size.value()};
  return process_vm_readv(getpid(), &target, 1, &source, 1, 0) ==
         static_cast<ssize_t>(size.value());
}

void GranuleMover::undo(GranuleIndex granule) {
  const uintptr_t address = core_.space->addressOf(granule);
  for (uint64_t i = 0; i < kPagesPerGranule; ++i) {
    if (core_.space->word(firstPage(granule) + i).state() != PageState::kLocal) continue;
    const uint64_t offset = i * kPageSize;
    if (!core_.port->canMove()) continue;
    // Pages that had not left answer kExists or kAbsent: both mean that they are where they were.
    PortResult result;
    do {
      result = core_.port->move(address + offset, staging_ + offset, Bytes(kPageSize), Wake::kNo);
      // Nobody else can pin a page that is here, so kBusy passes; its bytes have no other home.
    } while (result.outcome == PortOutcome::kRetry || result.outcome == PortOutcome::kBusy ||
             result.outcome == PortOutcome::kNoMemory);
  }
  if (!core_.port->canMove()) {
    [[maybe_unused]] const Status open =
        core_.port->writeProtect(address, Bytes(kGranuleSize), Wake::kYes);
  }
  core_.port->wake(address, Bytes(kGranuleSize));
}

}  // namespace tidepool
