// SPDX-License-Identifier: Apache-2.0
// Out: the pages leave the space first (UFFDIO_MOVE), so that a thread that touches them waits. In:
// the copy is moved over the mapping in one step; readers never wait.
#include "runtime/migrate/direct/transfer_area.h"

#include <sys/mman.h>

#include <cstring>

#include "runtime/base/check.h"

namespace tidepool {

Result<Mapping> TransferArea::reserve() {
  return Mapping::reserved(Bytes(2 * kGranuleSize), Bytes(kGranuleSize));
}

Status TransferArea::renew() {
  TP_TRY(core_.kernel->mapFresh(out_, Bytes(kGranuleSize)));
  if (core_.port->canMove()) TP_TRY(core_.port->arm(out_, Bytes(kGranuleSize)));
  return {};
}

void TransferArea::countMoved(StatCounter& moves, StatCounter& bytes, uint64_t pages) {
  count(moves, pages);
  count(bytes, pages * kPageSize);
  moved_.fetch_add(pages * kPageSize, std::memory_order_relaxed);
}

bool TransferArea::copyOut(const GranuleLock& granule, PageIndex first, uint64_t pages,
                           std::byte* to) {
  TP_CHECK(granule.covers(first) && first + pages <= granule.end());
  const uintptr_t from = core_.space->addressOf(first);
  const Bytes size(pages * kPageSize);
  if (core_.port->canMove()) {
    const uintptr_t slot = slotOf(first);
    if (moveOutOfSpace(core_, granule, slot, from, size).done < size) return false;
    memcpy(to, reinterpret_cast<void*>(slot), size.value());
    return true;
  }
  // Older kernels: writers wait, readers go on with the page that is copied. Devices that were
  // given it before do not wait.
  if (!core_.port->writeProtect(from, size, Wake::kNo) || core_.mayPinPages()) return false;
  return core_.kernel->readPages(to, from, PageCount(pages)) == PageCount(pages);
}

void TransferArea::freeCopies(PageIndex first, uint64_t pages) {
  if (!core_.port->canMove()) return;
  [[maybe_unused]] const Status freed =
      core_.kernel->discard(slotOf(first), Bytes(pages * kPageSize));
}

void TransferArea::putBack(const GranuleLock&, PageIndex first, uint64_t pages) {
  const uintptr_t address = core_.space->addressOf(first);
  const uintptr_t slot = slotOf(first);
  if (core_.port->canMove()) {
    // Pages that had not left answer kExists or kAbsent: both mean that they are where they were.
    for (uint64_t i = 0; i < pages; ++i) {
      PortResult result;
      do {
        result = core_.port->move(address + i * kPageSize, slot + i * kPageSize, Bytes(kPageSize),
                                  Wake::kNo);
        // Nobody else can pin a page that is here, so kBusy passes; its bytes have no other home.
      } while (result.outcome == PortOutcome::kRetry || result.outcome == PortOutcome::kBusy ||
               result.outcome == PortOutcome::kNoMemory);
    }
  } else {
    [[maybe_unused]] const Status open =
        core_.port->writeProtect(address, Bytes(pages * kPageSize), Wake::kYes);
  }
  core_.port->wake(address, Bytes(pages * kPageSize));
}

bool TransferArea::swapIn(const GranuleLock& granule, PageIndex first, uint64_t pages) {
  TP_CHECK(granule.covers(first) && first + pages <= granule.end());
  const PageWord word = core_.space->word(first);
  const PageWord last = core_.space->word(first + (pages - 1));
  // One home: the frames are copied in one go.
  TP_CHECK(word.state() == PageState::kDirect && last.state() == PageState::kDirect);
  TP_CHECK(word.tier() == last.tier() && last.frame() - word.frame() == pages - 1);
  const uintptr_t address = core_.space->addressOf(first);
  const Bytes size(pages * kPageSize);
  const uintptr_t fill = fillAddress();
  if (!core_.kernel->mapFresh(fill, size)) return false;
  memcpy(reinterpret_cast<void*>(fill), core_.tiers.direct(word.tier())->frameMemory(word.frame()),
         size.value());
  // Before it is there: what is closed must not be open for an instant.
  const int protection = core_.space->addresses().spanAt(address, size).protection;
  // And what core dumps are not to have is nowhere for an instant; the rest may miss in one.
  const bool hidden = !core_.space->addresses().none(Mark::kUndumped);
  if ((hidden && !core_.kernel->keepFromDumps(fill, size)) ||
      (protection != (PROT_READ | PROT_WRITE) && !core_.kernel->protect(fill, size, protection)) ||
      !core_.kernel->moveMapping(fill, address, size)) {
    [[maybe_unused]] const Status gone = core_.kernel->mapUnused(fill, size);
    return false;
  }
  if (hidden) {
    [[maybe_unused]] const Status dumped = core_.kernel->dumpAgain(address, size);
    restoreDumpAdvice(core_, granule, address, size);
  }
  if (core_.barrier != nullptr) core_.barrier->wake(address, size);
  // The mapping is this run's own, so that arming it needs nothing that could be refused.
  const Status armed = core_.port->arm(address, size);
  TP_CHECK(armed.has_value());
  for (uint64_t i = 0; i < pages; ++i) {
    const PageWord direct = core_.space->word(first + i);
    TP_CHECK(core_.space->change(
        granule, first + i, direct,
        PageWord(PageState::kLocal, kFlagShadow, direct.tier(), direct.index())));
  }
  countMoved(core_.stats->promotions, core_.stats->promoted_bytes, pages);
  return true;
}

void TransferArea::poison(const GranuleLock& granule, PageIndex first, uint64_t pages) {
  TP_CHECK(granule.covers(first) && first + pages <= granule.end());
  const uintptr_t address = core_.space->addressOf(first);
  const Bytes size(pages * kPageSize);
  const uintptr_t fill = fillAddress();
  // Poisoned elsewhere and then put there: at no instant does anybody read zeros.
  const bool poisoned = core_.port->canPoison() && core_.kernel->mapFresh(fill, size) &&
                        core_.port->arm(fill, size) && core_.port->poison(fill, size) &&
                        core_.kernel->moveMapping(fill, address, size);
  if (poisoned) {
    TP_CHECK(core_.port->arm(address, size).has_value());
    restoreRights(core_, granule, address, size);
  } else {
    // The next clearest end: SIGSEGV.
    TP_CHECK(core_.kernel->mapNothing(address, size).has_value());
  }
  for (uint64_t i = 0; i < pages; ++i) {
    const PageWord word = core_.space->word(first + i);
    TP_CHECK(core_.space->change(granule, first + i, word, PageWord(PageState::kLost, 0, 0, 0)));
  }
  if (core_.barrier != nullptr) core_.barrier->wake(address, size);
  core_.port->wake(address, size);
}

}  // namespace tidepool
