// SPDX-License-Identifier: Apache-2.0
// The proof that a granule's lock is held: what changes a page's word, its mapping or its home
// takes a `const GranuleLock&` in place of the granule's number.
#pragma once

#include "runtime/base/debug_check.h"
#include "runtime/space/managed_space.h"

namespace tidepool {

/// Holds the lock of one granule of a space from its construction to its destruction. Threads that
/// serve faults take such locks, so the holder must not touch managed memory (invariant I2).
/// Ordered before all other locks; nobody holds two.
class GranuleLock {
 public:
  // The holder has it to show, which is checked where clang's analysis would lose sight of which
  // of the locks it is.
  GranuleLock(ManagedSpace& space, GranuleIndex granule) TP_LOCKS_MANY
      : granule_(granule),
        mutex_(space.mutexOf(granule)) {
    TP_DCHECK(granule < granuleOf(space.pageEnd()));
    mutex_.lock();
  }
  ~GranuleLock() TP_LOCKS_MANY { mutex_.unlock(); }
  GranuleLock(const GranuleLock&) = delete;
  GranuleLock& operator=(const GranuleLock&) = delete;

  /// Wherever a granule's number is wanted.
  operator GranuleIndex() const { return granule_; }
  PageIndex first() const { return firstPage(granule_); }
  PageIndex end() const { return firstPage(granule_) + kPagesPerGranule; }
  bool covers(PageIndex page) const { return granuleOf(page) == granule_; }

 private:
  const GranuleIndex granule_;
  Mutex& mutex_;
};

inline bool ManagedSpace::change(const GranuleLock& granule, PageIndex page, PageWord expected,
                                 PageWord desired) {
  TP_CHECK(granule.covers(page));
  TP_CHECK_OP(page.value(), <, pageEnd().value());
  TP_DCHECK(wellFormed(desired));
  TP_CHECK(expected.state() == desired.state() ||
           transitionAllowed(expected.state(), desired.state()));
  uint64_t raw = expected.raw();
  if (!words_[page.value()].compare_exchange_strong(raw, desired.raw(), std::memory_order_acq_rel,
                                                    std::memory_order_acquire)) {
    return false;
  }
  const uint32_t more = countedAs(desired) - countedAs(expected);
  if (more == 0) return true;
  const uint32_t before = countsOf(granule).fetch_add(more, kCount);
  // One that goes below zero borrows from the next.
  TP_DCHECK_OP((before + more) & kLocalMask, <=, kPagesPerGranule);
  TP_DCHECK_OP(((before + more) & ~kEverUsed) / kOneInUse, <=, kPagesPerGranule);
  if ((before & kEverUsed) == 0) noteFirstUse(granule);
  return true;
}

}  // namespace tidepool
