// SPDX-License-Identifier: Apache-2.0
// The managed space: one reserved address range, the state word of each of its pages, and the
// locks under which pages change their home. Metadata is 8 bytes a page, touched (and so paid
// for) only where pages are. Thread-safe. Never touches the managed memory itself.
#pragma once

#include <array>
#include <atomic>
#include <memory>
#include <span>

#include "runtime/base/check.h"
#include "runtime/base/debug_check.h"
#include "runtime/base/mapping.h"
#include "runtime/base/mutex.h"
#include "runtime/base/result.h"
#include "runtime/base/units.h"
#include "runtime/space/address_map.h"
#include "runtime/space/anchored_pages.h"
#include "runtime/space/page_state.h"
#include "runtime/space/placement.h"
#include "runtime/space/range_allocator.h"

namespace tidepool {

class GranuleLock;

class ManagedSpace {
 public:
  /// Reserves `size` bytes of address space (a multiple of a granule). Errors: kNoMemory.
  static Result<std::unique_ptr<ManagedSpace>> create(Bytes size);
  ~ManagedSpace();
  ManagedSpace(const ManagedSpace&) = delete;
  ManagedSpace& operator=(const ManagedSpace&) = delete;

  uintptr_t base() const { return base_; }
  Bytes size() const { return size_; }
  bool contains(uintptr_t address) const { return address - base_ < size_.value(); }
  /// The first part of a space that begins low is reserved piece by piece. Reserves what of a range
  /// is not yet; false if somebody else has mapped something there.
  bool take(uintptr_t address, Bytes size) TP_EXCLUDES(taking_);
  PageIndex pageAt(uintptr_t address) const {
    TP_DCHECK_OP(address - base_, <=, size_.value());
    return PageIndex((address - base_) >> kPageShift);
  }
  uintptr_t addressOf(PageIndex page) const { return base_ + (page.value() << kPageShift); }
  uintptr_t addressOf(GranuleIndex granule) const {
    return base_ + (granule.value() << kGranuleShift);
  }
  PageIndex pageEnd() const { return PageIndex(size_.value() >> kPageShift); }

  /// May be read without a lock, for statistics and to look for candidates: acquire pairs with
  /// the release in change(), so that the tables a word points into are seen filled.
  PageWord word(PageIndex page) const {
    TP_DCHECK_OP(page.value(), <, pageEnd().value());
    // Where no word was ever written none is read: a kernel without a shared zero page would take
    // memory for it.
    if (countsOf(granuleOf(page)).load(kCount) == 0) return PageWord();
    return PageWord(words_[page.value()].load(std::memory_order_acquire));
  }
  /// Changes a page's home from `expected`; false if the word is another by now. The page is of
  /// that granule, and the change must be in the table of transitions. Defined in granule_lock.h.
  bool change(const GranuleLock& granule, PageIndex page, PageWord expected, PageWord desired);
  // For searches, which need not read 512 words of each granule that a program has reserved and
  // never used. Exact under the granule's lock.

  /// False if no page of the granule is local.
  bool hasLocal(GranuleIndex granule) const {
    return (countsOf(granule).load(kCount) & kLocalMask) > 0;
  }
  /// False if all its pages are kEmpty.
  bool hasPages(GranuleIndex granule) const {
    return (countsOf(granule).load(kCount) & ~kEverUsed) > 0;
  }
  /// The first granule of [from, end) that has pages; else `end`.
  GranuleIndex nextWithPages(GranuleIndex from, GranuleIndex end) const {
    while (from < end && !hasPages(from)) ++from;
    return from;
  }

  // Of the locks under which pages change state and mapping, for fork(), which must find no page
  // half-way: all of them, in one order. Who holds them holds no GranuleLock.
  void lockAllGranules() TP_LOCKS_MANY {
    for (Mutex& mutex : mutexes_) mutex.lock();
  }
  void unlockAllGranules() TP_LOCKS_MANY {
    for (Mutex& mutex : mutexes_) mutex.unlock();
  }
  /// Returns once everybody has let go who holds a granule's lock now.
  void awaitHolders() {
    for (Mutex& mutex : mutexes_) MutexLock once(mutex);
  }

  RangeAllocator& ranges() { return ranges_; }
  /// For fork(), which must find nobody in take().
  Mutex& taking() { return taking_; }
  AddressMap& addresses() { return addresses_; }
  const AddressMap& addresses() const { return addresses_; }
  AnchoredPages& anchored() { return anchored_; }
  Placements& placements() { return placements_; }
  const Placements& placements() const { return placements_; }
  /// Raised by allocation: pages from here on were never handed out.
  PageIndex highWater() const { return PageIndex(high_water_.load(std::memory_order_relaxed)); }
  void raiseHighWater(PageIndex end);
  /// All page words there may be: reserved, and paid for where pages were used.
  std::span<const std::byte> pageWords() const {
    return {words_mapping_.data(), words_mapping_.size().value()};
  }
  /// Bytes of page words, which are paid for once a page of their granule was used.
  Bytes metadata() const {
    return Bytes(granules_used_.load(kCount) * kPagesPerGranule * sizeof(uint64_t));
  }

 private:
  friend class GranuleLock;
  static constexpr size_t kLocks = 256;  // far more than threads that change pages at a time

  static constexpr std::memory_order kCount = std::memory_order_relaxed;  // orders nothing

  // What is counted by granule: pages that are local, pages that are anything but empty, and
  // whether there ever was one.
  static constexpr uint32_t kLocalMask = 0xffff;
  static constexpr uint32_t kOneInUse = 1u << 16;
  static constexpr uint32_t kEverUsed = 1u << 31;

  ManagedSpace(uintptr_t base, Bytes unreserved, Bytes size, Mapping words, Mapping counts,
               Mapping placements);
  /// Calls `act(start, size)` for each part of [from, end) that is reserved, or is not.
  template <typename Act>
  void forEachPart(uintptr_t from, uintptr_t end, bool reserved, Act act) const {
    for (uintptr_t at = from; at < end;) {
      const ProtectionSpan span = addresses_.spanAt(at, Bytes(end - at));
      if ((span.protection != kNotReserved) == reserved) act(at, span.size);
      at += span.size.value();
    }
  }

  static constexpr uint32_t countedAs(PageWord word) {
    return (word.state() == PageState::kLocal ? 1 : 0) +
           (word.state() == PageState::kEmpty ? 0 : kOneInUse);
  }
  std::atomic<uint32_t>& countsOf(GranuleIndex granule) const {
    TP_DCHECK_OP(granule.value(), <, size_.value() >> kGranuleShift);
    return reinterpret_cast<std::atomic<uint32_t>*>(counts_.data())[granule.value()];
  }
  void noteFirstUse(GranuleIndex granule);
  Mutex& mutexOf(GranuleIndex granule) { return mutexes_[granule.value() % kLocks]; }

  uintptr_t base_;
  Bytes size_;
  Mapping words_mapping_;
  std::atomic<uint64_t>* words_;
  Mapping counts_;
  RangeAllocator ranges_;
  AddressMap addresses_;
  AnchoredPages anchored_;
  Placements placements_;
  std::atomic<uint64_t> high_water_{0};
  std::atomic<uint64_t> granules_used_{0};
  std::array<Mutex, kLocks> mutexes_;
  Mutex taking_;
};

}  // namespace tidepool
