// SPDX-License-Identifier: Apache-2.0
// Allocation and release of ranges of the managed space. See the header for locking.
#include "runtime/migrate/range_ops.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <ctime>

#include "runtime/base/check.h"

namespace tidepool {
namespace {

// Between looks at whether memory is within reach again.
constexpr timespec kOutOfReach{0, 1'000'000};

}  // namespace

Status RangeOps::check(uintptr_t address, Bytes size) const {
  const ManagedSpace& space = *core_.space;
  if (address % kPageSize != 0 || size.value() == 0 || size.value() % kPageSize != 0 ||
      !space.contains(address) || size > Bytes(space.base() + space.size().value() - address)) {
    return fail(ErrorCode::kInvalidArgument, "not a page range of the managed space");
  }
  return {};
}

void RangeOps::setRights(uintptr_t address, Bytes size, int protection) {
  const int64_t more = core_.space->addresses().protect(address, size, protection);
  if (!detached()) {
    core_.stats->managed_bytes.fetch_add(static_cast<uint64_t>(more), std::memory_order_relaxed);
  }
}

Status RangeOps::makeFresh(uintptr_t address, Bytes size, int protection) {
  // What nobody has can be touched by nobody already.
  if (protection != PROT_NONE) {
    TP_TRY(core_.kernel->mapFresh(address, size));
  } else {
    core_.kernel->includeInDumps(address, size);
  }
  if (!detached()) TP_TRY(core_.port->arm(address, size));
  // From here on the migrator may map far memory there; sooner, and we would map over it.
  setRights(address, size, protection);
  return {};
}

Status RangeOps::makePartUsable(uintptr_t address, Bytes size, int protection) {
  const GranuleLock granule(*core_.space, granuleOf(core_.space->pageAt(address)));
  if (!mover_.homes.liesWhole(granule)) return makeFresh(address, size, protection);
  // dropPart() has left it there, erased.
  setRights(address, size, protection);
  return {};
}

bool RangeOps::anyMapsWholeGranules() {
  MutexLock lock(core_.tiers.listing());
  return mover_.homes.anyMapsWhole();
}

Status RangeOps::makeUsable(uintptr_t address, Bytes size, int protection) {
  const uintptr_t end = address + size.value();
  forgetAdvice(address, size);
  if (detached() || !anyMapsWholeGranules()) return makeFresh(address, size, protection);
  const uintptr_t from = std::min(end, roundUp(address, kGranuleSize));
  const uintptr_t to = std::max(from, roundDown(end, kGranuleSize));
  Status done;
  if (address < from) done = makePartUsable(address, Bytes(from - address), protection);
  if (done && from < to) done = makeFresh(from, Bytes(to - from), protection);
  if (done && to < end) done = makePartUsable(to, Bytes(end - to), protection);
  if (!done) setRights(address, size, kNotHandedOut);
  return done;
}

Result<uint64_t> RangeOps::findFree(Bytes size, Bytes alignment, RangeUse use) {
  const Bytes rounded(roundUp(size.value(), kPageSize));
  if (rounded < size || rounded.value() == 0) {
    return fail(ErrorCode::kNoMemory, "cannot allocate %llu bytes",
                static_cast<unsigned long long>(size.value()));
  }
  return core_.space->ranges().allocate(rounded, std::max(alignment, Bytes(kPageSize)), use);
}

Result<uintptr_t> RangeOps::allocate(Bytes size, Bytes alignment, RangeUse use) {
  const auto offset = findFree(size, alignment, use);
  if (!offset) return tl::unexpected(offset.error());
  TP_TRY(open(*offset, Bytes(roundUp(size.value(), kPageSize)), PROT_READ | PROT_WRITE));
  return core_.space->base() + *offset;
}

Status RangeOps::checkShare(Bytes size) {
  const Bytes most(core_.space->size().value() / 2);
  if (size <= most && core_.space->ranges().allocated() <= most - size) return {};
  return fail(ErrorCode::kNoMemory, "more than half of the managed space would be reserved");
}

Result<uintptr_t> RangeOps::reserve(Bytes size, Bytes alignment) {
  TP_TRY(checkShare(size));
  const auto offset = findFree(size, alignment, RangeUse::kMapping);
  if (!offset) return tl::unexpected(offset.error());
  TP_TRY(open(*offset, Bytes(roundUp(size.value(), kPageSize)), PROT_NONE));
  return core_.space->base() + *offset;
}

Status RangeOps::open(uint64_t offset, Bytes size, int protection) {
  const Status usable = makeUsable(core_.space->base() + offset, size, protection);
  if (!usable) {
    core_.space->ranges().release(offset, size);
    return usable;
  }
  core_.space->raiseHighWater(PageIndex((offset + size.value()) >> kPageShift));
  return {};
}

Status RangeOps::claim(uintptr_t address, Bytes size) {
  TP_TRY(check(address, size));
  const uint64_t offset = address - core_.space->base();
  if (!core_.space->take(address, size) || !core_.space->ranges().allocateAt(offset, size)) {
    return fail(ErrorCode::kConflict, "part of the range is in use");
  }
  return open(offset, size, PROT_READ | PROT_WRITE);
}

Status RangeOps::reserveAt(uintptr_t address, Bytes size) {
  TP_TRY(check(address, size));
  TP_TRY(checkShare(size));
  const uint64_t offset = address - core_.space->base();
  if (!core_.space->take(address, size) || !core_.space->ranges().allocateAt(offset, size)) {
    return fail(ErrorCode::kConflict, "part of the range is in use");
  }
  return open(offset, size, PROT_NONE);
}

ProtectionSpan RangeOps::spanAt(uintptr_t address, Bytes size) const {
  return core_.space->addresses().spanAt(address, size);
}

bool RangeOps::isEmpty(uintptr_t address) const {
  const PageState state = core_.space->word(core_.space->pageAt(address)).state();
  return state == PageState::kEmpty || state == PageState::kZero;
}

void RangeOps::dropPage(const GranuleLock& granule, PageIndex page, PageWord word) {
  switch (word.state()) {
    case PageState::kLocal:
      core_.budget.discharge(PageCount(1));
      word = dropFarCopy(core_, granule, page, word);
      break;
    case PageState::kFar:
      core_.tiers.tier(word.tier()).release({word.frame(), PageCount(1)});
      break;
    case PageState::kEmpty:
      return;
    // The thread that has it under way finds the word changed and frees the frame.
    case PageState::kEvicting:
    case PageState::kFetching:
      break;
    case PageState::kLost:  // has no frame any more
    case PageState::kZero:
      break;
    case PageState::kDirect:
      TP_CHECK(!"direct pages are dropped in runs");
  }
  TP_CHECK(core_.space->change(granule, page, word, PageWord()));
  if (word.state() == PageState::kLocal && word.has(kFlagShadow)) {
    const Home home{word.tier(), word.frame() - page.value() % kPagesPerGranule};
    if (!mover_.homes.keeps(home)) {
      // The frame at home may be mapped again for this page, as fresh memory.
      [[maybe_unused]] const Status erased =
          core_.tiers.direct(word.tier())->erase({word.frame(), PageCount(1)});
    }
    mover_.homes.releaseIfUnused(granule, home);
  }
}

void RangeOps::dropDirect(const GranuleLock& granule, PageIndex first, PageCount pages, Mode mode) {
  const PageWord word = core_.space->word(first);
  const PageWord last = core_.space->word(first + (pages.value() - 1));
  // One home: its frames are erased in one go.
  TP_CHECK(word.tier() == last.tier() && last.frame() - word.frame() == pages.value() - 1);
  const Home home{word.tier(), word.frame() - first.value() % kPagesPerGranule};
  mover_.closing.spoil(granule);
  if (!mover_.homes.keeps(home)) {
    [[maybe_unused]] const Status erased =
        core_.tiers.direct(word.tier())->erase({word.frame(), pages});
    if (mode == Mode::kDiscard) return;
  } else if (mode == Mode::kDiscard) {
    replaceByFresh(granule, core_.space->addressOf(first), toBytes(pages));
  }
  for (uint64_t i = 0; i < pages.value(); ++i) {
    const PageIndex page = first + i;
    TP_CHECK(core_.space->change(granule, page, core_.space->word(page), PageWord()));
  }
  if (mover_.homes.suspended(home)) wakeHeld(core_.space->addressOf(first), toBytes(pages));
  mover_.homes.releaseIfUnused(granule, home);
}

void RangeOps::replaceByFresh(const GranuleLock& granule, uintptr_t address, Bytes size) {
  // What is mapped there others still need: the program must not see it, whatever the kernel says.
  TP_CHECK(core_.kernel->mapFresh(address, size).has_value());
  TP_CHECK(core_.port->arm(address, size).has_value());
  restoreRights(core_, granule, address, size);
  restoreDumpAdvice(core_, granule, address, size);
}

void RangeOps::replaceMapping(const GranuleLock&, uintptr_t address, Bytes size, Mode mode) {
  if (mode == Mode::kDiscard) {
    [[maybe_unused]] const Status freed = core_.kernel->discard(address, size);
    return;
  }
  const Status gone = mode == Mode::kRelease ? core_.kernel->mapUnused(address, size)
                                             : core_.kernel->mapNothing(address, size);
  if (mode == Mode::kRelease) return;
  // It replaces pieces by one, which the kernel has room for.
  TP_CHECK(gone.has_value());
  if (!detached()) TP_CHECK(core_.port->arm(address, size).has_value());
  setRights(address, size, PROT_NONE);
}

void RangeOps::wakeHeld(uintptr_t address, Bytes size) {
  if (core_.barrier != nullptr) core_.barrier->wake(address, size);
  mover_.whole.wake(address, size);
}

void RangeOps::dropPages(PageIndex first, PageIndex end, Mode mode) {
  while (!tryDropPages(first, end, mode)) nanosleep(&kOutOfReach, nullptr);
}

bool RangeOps::tryDropPages(PageIndex first, PageIndex end, Mode mode) {
  const uintptr_t address = core_.space->addressOf(first);
  const Bytes size((end - first) * kPageSize);
  const GranuleLock granule(*core_.space, granuleOf(first));
  TP_CHECK(first < end && end <= granule.end());
  if (end - first < kPagesPerGranule && !detached() && mover_.homes.liesWhole(granule)) {
    if (mover_.homes.suspended(granule)) return false;
    dropPart(granule, first, end, mode);
    return true;
  }
  // Mapping first: once it is gone, a release of frames cannot be seen through it.
  replaceMapping(granule, address, size, mode);
  if (detached()) return true;
  for (PageIndex page = first; page < end;) {
    const PageWord word = core_.space->word(page);
    if (word.state() != PageState::kDirect) {
      dropPage(granule, page, word);
      ++page;
      continue;
    }
    uint64_t run = 1;
    while (page + run < end && core_.space->word(page + run).state() == PageState::kDirect) ++run;
    dropDirect(granule, page, PageCount(run), mode);
    page = page + run;
  }
  // Waiters look again: they find zeros, or the end of the mapping.
  core_.port->wake(address, size);
  MutexLock policy_lock(policy_.mutex());
  for (PageIndex page = first; page < end; ++page) policy_.chooser().onDiscard(page);
  return true;
}

void RangeOps::dropPart(const GranuleLock& granule, PageIndex first, PageIndex end, Mode mode) {
  const uintptr_t address = core_.space->addressOf(first);
  const Bytes size((end - first) * kPageSize);
  dropDirect(granule, first, toPages(size), Mode::kDiscard);
  if (mode == Mode::kWithdraw) setRights(address, size, PROT_NONE);
  if (mode == Mode::kDiscard) return;
  // Gone as a whole once nobody can use any of it; until then what was dropped stays mapped.
  const uintptr_t start = core_.space->addressOf(granule);
  bool reserved = false;
  for (uintptr_t at = start; at < start + kGranuleSize;) {
    const ProtectionSpan span = spanAt(at, Bytes(start + kGranuleSize - at));
    if (span.protection != kNotHandedOut && span.protection != PROT_NONE) return;
    reserved = reserved || span.protection == PROT_NONE;
    at += span.size.value();
  }
  const Bytes whole(kGranuleSize);
  if (!(reserved ? core_.kernel->mapNothing(start, whole) : core_.kernel->mapUnused(start, whole)))
    return;
  if (reserved) TP_CHECK(core_.port->arm(start, Bytes(kGranuleSize)).has_value());
  dropDirect(granule, granule.first(), PageCount(kPagesPerGranule), Mode::kRelease);
}

void RangeOps::releaseUnused(GranuleIndex first, GranuleIndex end) {
  const uintptr_t address = core_.space->addressOf(first);
  const Bytes size((end - first) * kGranuleSize);
  [[maybe_unused]] const Status gone = core_.kernel->mapUnused(address, size);
  core_.port->wake(address, size);
  for (GranuleIndex granule = first; granule < end; ++granule) {
    bool used_meanwhile;
    {
      const GranuleLock locked(*core_.space, granule);
      used_meanwhile = core_.space->hasPages(granule);
    }
    if (used_meanwhile) dropPages(firstPage(granule), firstPage(granule + 1), Mode::kRelease);
  }
}

void RangeOps::dropRange(uintptr_t address, Bytes size, Mode mode) {
  PageIndex page = core_.space->pageAt(address);
  const PageIndex end = page + toPages(size).value();
  while (page < end) {
    const GranuleIndex granule = granuleOf(page);
    if (mode == Mode::kRelease && !detached() && page == firstPage(granule)) {
      // A large reservation is hardly used: one call for all that was not.
      const GranuleIndex used = core_.space->nextWithPages(granule, granuleOf(end));
      if (used > granule) {
        releaseUnused(granule, used);
        page = firstPage(used);
        continue;
      }
    }
    const PageIndex next = std::min(end, firstPage(granule + 1));
    dropPages(page, next, mode);
    page = next;
  }
}

Status RangeOps::discard(uintptr_t address, Bytes size) {
  TP_TRY(check(address, size));
  dropRange(address, size, Mode::kDiscard);
  return {};
}

Status RangeOps::withdraw(uintptr_t address, Bytes size) {
  TP_TRY(check(address, size));
  if (!core_.space->ranges().isAllocated(address - core_.space->base(), size)) {
    return fail(ErrorCode::kNotFound, "range is not allocated");
  }
  dropRange(address, size, Mode::kWithdraw);
  forgetAdvice(address, size);
  forgetAnchors(address, size);
  return {};
}

Status RangeOps::keepFromDumps(uintptr_t address, Bytes size) {
  TP_TRY(check(address, size));
  const uintptr_t end = address + size.value();
  // First, for code that maps a part of it anew meanwhile.
  core_.space->addresses().mark(Mark::kUndumped, address, size);
  for (uintptr_t at = address; at < end;) {
    const GranuleIndex granule = granuleOf(core_.space->pageAt(at));
    const Bytes piece(std::min(end, core_.space->addressOf(granule + 1)) - at);
    const GranuleLock locked(*core_.space, granule);
    TP_TRY(core_.kernel->keepFromDumps(at, piece));
    at += piece.value();
  }
  return {};
}

Status RangeOps::dumpAgain(uintptr_t address, Bytes size) {
  TP_TRY(check(address, size));
  if (core_.space->addresses().none(Mark::kUndumped)) return {};
  core_.space->addresses().unmark(Mark::kUndumped, address, size);
  const uintptr_t end = address + size.value();
  for (uintptr_t at = address; at < end;) {
    const GranuleIndex granule = granuleOf(core_.space->pageAt(at));
    const Bytes piece(std::min(end, core_.space->addressOf(granule + 1)) - at);
    const GranuleLock locked(*core_.space, granule);
    TP_TRY(core_.kernel->dumpAgain(at, piece));
    at += piece.value();
  }
  return {};
}

Status RangeOps::keepFromChildren(uintptr_t address, Bytes size) {
  TP_TRY(check(address, size));
  // Also so that no fork() falls into the look at descriptors.
  const GranuleLock granule(*core_.space, granuleOf(core_.space->pageAt(address)));
  // A direct tier is frozen for a fork, and thawed by copying, before the child can let go of it.
  if (core_.tiers.hasDirect() && core_.mayPinPages()) {
    return fail(ErrorCode::kUnsupported, "devices may hold pages of a direct tier");
  }
  core_.space->addresses().mark(Mark::kUnforked, address, size);
  return {};
}

void RangeOps::withdrawUnforked() {
  for (;;) {
    const auto [address, size] = core_.space->addresses().takeLowest(Mark::kUnforked);
    if (size.value() == 0) return;
    // Not released: what else the child maps must not come to lie where its heap thinks it has
    // that.
    [[maybe_unused]] const Status gone = withdraw(address, size);
  }
}

Status RangeOps::release(uintptr_t address, Bytes size) {
  TP_TRY(check(address, size));
  const uint64_t offset = address - core_.space->base();
  if (!core_.space->ranges().isAllocated(offset, size)) {
    return fail(ErrorCode::kNotFound, "range is not allocated");
  }
  // First: a granule mapped far after its pages were dropped would never be found again.
  setRights(address, size, kNotHandedOut);
  dropRange(address, size, Mode::kRelease);
  forgetAdvice(address, size);
  forgetAnchors(address, size);
  setPlacement(address, size, Placement());
  // What the program had mapped there itself is gone now, and would not have let a child arm it.
  core_.space->addresses().endSurrender(address, size);
  core_.space->ranges().release(offset, size);
  return {};
}

void RangeOps::setPlacement(uintptr_t address, Bytes size, Placement placement) {
  // Of granules that lie in it wholly: of others, something else has a part.
  const uintptr_t end = roundDown(address + size.value(), kGranuleSize);
  for (uintptr_t at = roundUp(address, kGranuleSize); at < end; at += kGranuleSize) {
    core_.space->placements().set(granuleOf(core_.space->pageAt(at)), placement);
  }
}

Status RangeOps::place(uintptr_t address, Bytes size, Placement placement) {
  TP_TRY(check(address, size));
  if (address % kGranuleSize != 0 || size.value() % kGranuleSize != 0) {
    return fail(ErrorCode::kInvalidArgument, "whole granules of 2 MiB are placed, not parts");
  }
  if (placement.tier() > core_.tiers.count() ||
      (core_.pool != nullptr && placement.tier() == core_.pool_number)) {
    return fail(ErrorCode::kNotFound, "there is no far tier %u", placement.tier());
  }
  if (!core_.space->ranges().isAllocated(address - core_.space->base(), size)) {
    return fail(ErrorCode::kNotFound, "range is not allocated");
  }
  setPlacement(address, size, placement);
  return {};
}

Result<Residency> RangeOps::residency(uintptr_t address, Bytes size) const {
  TP_TRY(check(address, size));
  return residencyOf(*core_.space, core_.space->pageAt(address), toPages(size));
}

Status RangeOps::armAll() {
  // What is not handed out cannot be touched, so that it does not matter whether it is armed.
  return core_.space->addresses().forEachOwn(
      core_.space->base(), core_.space->addressOf(core_.space->highWater()),
      [&](uintptr_t start, Bytes size) { return armOwn(start, size); });
}

Status RangeOps::armOwn(uintptr_t start, Bytes size) {
  if (!core_.tiers.hasDirect()) return core_.port->arm(start, size);
  const PageIndex end = core_.space->pageAt(start) + toPages(size).value();
  for (PageIndex page = core_.space->pageAt(start); page < end;) {
    const bool direct = core_.space->word(page).state() == PageState::kDirect;
    PageIndex next = page;
    while (next < end) {
      if (core_.space->hasPages(granuleOf(next))) {
        if ((core_.space->word(next).state() == PageState::kDirect) != direct) break;
        ++next;
      } else {
        if (direct) break;
        next = std::min(end, firstPage(granuleOf(next) + 1));
      }
    }
    FaultPort& port = direct ? *core_.barrier : *core_.port;
    TP_TRY(port.arm(core_.space->addressOf(page), Bytes((next - page) * kPageSize)));
    page = next;
  }
  return {};
}

Status RangeOps::protect(uintptr_t address, Bytes size, int protection) {
  TP_TRY(check(address, size));
  if (!core_.space->ranges().isAllocated(address - core_.space->base(), size)) {
    return fail(ErrorCode::kNotFound, "range is not allocated");
  }
  // Under the granule's lock: code that maps or copies its pages relies on the rights they have.
  const uintptr_t end = address + size.value();
  for (uintptr_t at = address; at < end;) {
    const GranuleIndex granule = granuleOf(core_.space->pageAt(at));
    const Bytes piece(std::min(end, core_.space->addressOf(granule + 1)) - at);
    const GranuleLock locked(*core_.space, granule);
    TP_TRY(core_.kernel->protect(at, piece, protection));
    setRights(at, piece, protection);
    at += piece.value();
  }
  return {};
}

Result<uintptr_t> RangeOps::resize(uintptr_t address, Bytes old_size, Bytes new_size,
                                   Bytes alignment) {
  TP_TRY(check(address, old_size));
  if (new_size.value() == 0) return fail(ErrorCode::kInvalidArgument, "cannot resize to nothing");
  const Bytes rounded(roundUp(new_size.value(), kPageSize));
  if (rounded < new_size) {
    return fail(ErrorCode::kNoMemory, "cannot allocate %llu bytes",
                static_cast<unsigned long long>(new_size.value()));
  }
  if (!core_.space->ranges().isAllocated(address - core_.space->base(), old_size)) {
    return fail(ErrorCode::kNotFound, "range is not allocated");
  }
  if (rounded < old_size) {
    TP_TRY(release(address + rounded.value(), old_size - rounded));
    return address;
  }
  if (rounded == old_size) return address;
  const Bytes more = rounded - old_size;
  if (claim(address + old_size.value(), more)) return address;
  const auto target = allocate(rounded, alignment, RangeUse::kHeap);
  if (!target) return target;
  // On the program's thread, with no lock held: faults on either side are served as usual.
  memcpy(reinterpret_cast<void*>(*target), reinterpret_cast<const void*>(address),
         old_size.value());
  TP_TRY(release(address, old_size));
  return *target;
}

}  // namespace tidepool
