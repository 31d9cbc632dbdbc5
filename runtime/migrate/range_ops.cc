// SPDX-License-Identifier: Apache-2.0
// Allocation and release of ranges of the managed space. See the header for locking.
#include "runtime/migrate/range_ops.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstring>

#include "runtime/os/memory.h"

namespace tidepool {

Status RangeOps::check(uintptr_t address, Bytes size) const {
  const ManagedSpace& space = *core_.space;
  if (address % kPageSize != 0 || size.value() == 0 || size.value() % kPageSize != 0 ||
      !space.contains(address) || size > Bytes(space.base() + space.size().value() - address)) {
    return fail(ErrorCode::kInvalidArgument, "not a page range of the managed space");
  }
  return {};
}

Status RangeOps::makeUsable(uintptr_t address, Bytes size) {
  TP_TRY(os::mapFresh(address, size));
  if (!detached()) TP_TRY(core_.port->arm(address, size));
  // From here on the migrator may map far memory there; sooner, and we would map over it.
  core_.space->protections().set(address, size, PROT_READ | PROT_WRITE);
  return {};
}

Result<uintptr_t> RangeOps::allocate(Bytes size, Bytes alignment) {
  const Bytes rounded(roundUp(size.value(), kPageSize));
  if (rounded < size || rounded.value() == 0) {
    return fail(ErrorCode::kNoMemory, "cannot allocate %llu bytes",
                static_cast<unsigned long long>(size.value()));
  }
  const auto offset =
      core_.space->ranges().allocate(rounded, std::max(alignment, Bytes(kPageSize)));
  if (!offset) return tl::unexpected(offset.error());
  TP_TRY(open(*offset, rounded));
  return core_.space->base() + *offset;
}

Status RangeOps::open(uint64_t offset, Bytes size) {
  const Status usable = makeUsable(core_.space->base() + offset, size);
  if (!usable) {
    core_.space->ranges().release(offset, size);
    return usable;
  }
  core_.space->raiseHighWater(PageIndex((offset + size.value()) >> kPageShift));
  if (!detached()) count(core_.stats->managed_bytes, size.value());
  return {};
}

Status RangeOps::claim(uintptr_t address, Bytes size) {
  TP_TRY(check(address, size));
  const uint64_t offset = address - core_.space->base();
  if (!core_.space->ranges().allocateAt(offset, size)) {
    return fail(ErrorCode::kConflict, "part of the range is in use");
  }
  return open(offset, size);
}

ProtectionSpan RangeOps::spanAt(uintptr_t address, Bytes size) const {
  return core_.space->protections().spanAt(address, size);
}

bool RangeOps::isEmpty(uintptr_t address) const {
  return core_.space->word(core_.space->pageAt(address)).state() == PageState::kEmpty;
}

void RangeOps::dropPage(PageIndex page, PageWord word) {
  switch (word.state()) {
    case PageState::kLocal:
      core_.budget.discharge(PageCount(1));
      word = dropFarCopy(core_, page, word);
      break;
    case PageState::kFar:
      core_.tiers.tier(word.tier()).release({word.frame(), PageCount(1)});
      break;
    case PageState::kEmpty:
      return;
    // The thread that has it under way finds the word changed and frees the frame.
    case PageState::kEvicting:
    case PageState::kFetching:
    case PageState::kLost:
      break;
    case PageState::kDirect:
      TP_CHECK(!"direct pages are dropped in runs");
  }
  TP_CHECK(core_.space->change(page, word, PageWord()));
  if (word.state() == PageState::kLocal && word.has(kFlagShadow)) {
    const FrameIndex home = word.frame() - page.value() % kPagesPerGranule;
    if (!mover_.frozen(word.tier(), home)) {
      // The frame at home may be mapped again for this page, as fresh memory.
      [[maybe_unused]] const Status erased =
          core_.tiers.direct(word.tier())->erase({word.frame(), PageCount(1)});
    }
    mover_.releaseHomeIfUnused(granuleOf(page), word.tier(), home);
  }
}

void RangeOps::dropDirect(PageIndex first, PageCount pages, Mode mode) {
  const PageWord word = core_.space->word(first);
  const FrameIndex home = word.frame() - first.value() % kPagesPerGranule;
  if (!mover_.frozen(word.tier(), home)) {
    [[maybe_unused]] const Status erased =
        core_.tiers.direct(word.tier())->erase({word.frame(), pages});
    if (mode == Mode::kDiscard) return;
  } else if (mode == Mode::kDiscard) {
    replaceByFresh(core_.space->addressOf(first), toBytes(pages));
  }
  for (uint64_t i = 0; i < pages.value(); ++i) {
    const PageIndex page = first + i;
    TP_CHECK(core_.space->change(page, core_.space->word(page), PageWord()));
  }
  mover_.releaseHomeIfUnused(granuleOf(first), word.tier(), home);
}

void RangeOps::replaceByFresh(uintptr_t address, Bytes size) {
  // What is mapped there others still need: the program must not see it, whatever the kernel says.
  TP_CHECK(os::mapFresh(address, size).has_value());
  TP_CHECK(core_.port->arm(address, size).has_value());
  const uintptr_t end = address + size.value();
  for (uintptr_t at = address; at < end;) {
    const ProtectionSpan span = spanAt(at, Bytes(end - at));
    if (span.protection != (PROT_READ | PROT_WRITE)) {
      [[maybe_unused]] const Status done = os::protect(at, span.size, span.protection);
    }
    at += span.size.value();
  }
}

void RangeOps::dropPages(PageIndex first, PageIndex end, Mode mode) {
  if (detached()) {
    const Bytes size((end - first) * kPageSize);
    const uintptr_t address = core_.space->addressOf(first);
    [[maybe_unused]] const Status done =
        mode == Mode::kRelease ? os::mapNothing(address, size) : os::discard(address, size);
    return;
  }
  MutexLock lock(core_.space->lockOf(granuleOf(first)));
  const uintptr_t address = core_.space->addressOf(first);
  const Bytes size((end - first) * kPageSize);
  // Mapping first: once it is gone, a release of frames cannot be seen through it.
  if (mode == Mode::kRelease) {
    [[maybe_unused]] const Status gone = os::mapNothing(address, size);
  } else {
    [[maybe_unused]] const Status freed = os::discard(address, size);
  }
  for (PageIndex page = first; page < end;) {
    const PageWord word = core_.space->word(page);
    if (word.state() != PageState::kDirect) {
      dropPage(page, word);
      ++page;
      continue;
    }
    uint64_t run = 1;
    while (page + run < end && core_.space->word(page + run).state() == PageState::kDirect) ++run;
    dropDirect(page, PageCount(run), mode);
    page = page + run;
  }
  // Waiters look again: they find zeros, or the end of the mapping.
  core_.port->wake(address, size);
  MutexLock policy_lock(policy_.mutex());
  for (PageIndex page = first; page < end; ++page) policy_.chooser().onDiscard(page);
}

Status RangeOps::discard(uintptr_t address, Bytes size) {
  TP_TRY(check(address, size));
  PageIndex page = core_.space->pageAt(address);
  const PageIndex end = page + toPages(size).value();
  while (page < end) {
    const PageIndex next = std::min(end, firstPage(granuleOf(page) + 1));
    dropPages(page, next, Mode::kDiscard);
    page = next;
  }
  return {};
}

Status RangeOps::release(uintptr_t address, Bytes size) {
  TP_TRY(check(address, size));
  const uint64_t offset = address - core_.space->base();
  if (!core_.space->ranges().isAllocated(offset, size)) {
    return fail(ErrorCode::kNotFound, "range is not allocated");
  }
  // First: a granule mapped far after its pages were dropped would never be found again.
  core_.space->protections().set(address, size, kNotHandedOut);
  PageIndex page = core_.space->pageAt(address);
  const PageIndex end = page + toPages(size).value();
  while (page < end) {
    const PageIndex next = std::min(end, firstPage(granuleOf(page) + 1));
    dropPages(page, next, Mode::kRelease);
    page = next;
  }
  core_.space->ranges().release(offset, size);
  if (!detached()) {
    core_.stats->managed_bytes.fetch_sub(size.value(), std::memory_order_relaxed);
  }
  return {};
}

Status RangeOps::armAll() {
  // What is not handed out cannot be touched, so that it does not matter whether it is armed.
  return core_.space->foreign().forEachOwn(
      core_.space->base(), core_.space->addressOf(core_.space->highWater()),
      [&](uintptr_t start, Bytes size) { return armOwn(start, size); });
}

Status RangeOps::armOwn(uintptr_t start, Bytes size) {
  if (!core_.tiers.hasDirect()) return core_.port->arm(start, size);
  const PageIndex end = core_.space->pageAt(start) + toPages(size).value();
  for (PageIndex page = core_.space->pageAt(start); page < end;) {
    const bool direct = core_.space->word(page).state() == PageState::kDirect;
    uint64_t run = 1;
    while (page + run < end &&
           (core_.space->word(page + run).state() == PageState::kDirect) == direct) {
      ++run;
    }
    FaultPort& port = direct ? *core_.barrier : *core_.port;
    TP_TRY(port.arm(core_.space->addressOf(page), Bytes(run * kPageSize)));
    page = page + run;
  }
  return {};
}

Status RangeOps::protect(uintptr_t address, Bytes size, int protection) {
  TP_TRY(check(address, size));
  if (!core_.space->ranges().isAllocated(address - core_.space->base(), size)) {
    return fail(ErrorCode::kNotFound, "range is not allocated");
  }
  // Under the granule's lock: whoever maps or copies its pages relies on the rights they have.
  const uintptr_t end = address + size.value();
  for (uintptr_t at = address; at < end;) {
    const GranuleIndex granule = granuleOf(core_.space->pageAt(at));
    const Bytes piece(std::min(end, core_.space->addressOf(granule + 1)) - at);
    MutexLock lock(core_.space->lockOf(granule));
    TP_TRY(os::protect(at, piece, protection));
    core_.space->protections().set(at, piece, protection);
    at += piece.value();
  }
  return {};
}

Result<uintptr_t> RangeOps::resize(uintptr_t address, Bytes old_size, Bytes new_size) {
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
  const auto target = allocate(rounded, Bytes(kPageSize));
  if (!target) return target;
  // On the program's thread, with no lock held: faults on either side are served as usual.
  memcpy(reinterpret_cast<void*>(*target), reinterpret_cast<const void*>(address),
         old_size.value());
  TP_TRY(release(address, old_size));
  return *target;
}

}  // namespace tidepool
