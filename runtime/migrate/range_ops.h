// SPDX-License-Identifier: Apache-2.0
// What the program does to ranges: allocate, release, discard, protect, resize. Runs on the
// program's threads; takes granule locks one at a time, never holds one while touching managed
// memory. Thread-safe. Addresses are page-aligned and inside the managed space.
#pragma once

#include "runtime/migrate/core/core.h"
#include "runtime/migrate/core/shared_policy.h"
#include "runtime/migrate/core/staging.h"
#include "runtime/migrate/direct/granule_mover.h"
#include "runtime/space/residency.h"

namespace tidepool {

class RangeOps {
 public:
  RangeOps(Core& core, SharedPolicy& policy, GranuleMover& mover)
      : core_(core), policy_(policy), mover_(mover) {}

  Result<uintptr_t> allocate(Bytes size, Bytes alignment, RangeUse use = RangeUse::kMapping);
  /// Hands out exactly this range; kConflict if any of it is.
  Status claim(uintptr_t address, Bytes size);
  /// The same two without access rights, for a range that is opened piece by piece. kNoMemory also
  /// where too little would be left of the space.
  Result<uintptr_t> reserve(Bytes size, Bytes alignment);
  Status reserveAt(uintptr_t address, Bytes size);
  /// `address` is inside the space.
  ProtectionSpan spanAt(uintptr_t address, Bytes size) const;
  OwnerSpan ownerAt(uintptr_t address, Bytes size) const {
    return core_.space->addresses().ownerAt(address, size);
  }
  bool isEmpty(uintptr_t address) const;
  Status release(uintptr_t address, Bytes size);
  Status discard(uintptr_t address, Bytes size);
  /// Contents and access rights go, the range stays reserved.
  Status withdraw(uintptr_t address, Bytes size);
  /// Takes a range out of our care for good, with its contents and rights, under the feet of
  /// threads that use it: ordinary memory of the kernel's from then on, and surrendered. Errors:
  /// kNotFound if part of it is not handed out; kUnsupported on what is mapped in whole granules;
  /// kNoMemory; those of the tier that pages are read from. What was done of it then stays done.
  Status handOver(uintptr_t address, Bytes size, const Staging& staging);
  /// The program has mapped something of its own there, for good. The range is empty.
  void surrender(uintptr_t address, Bytes size) { setRights(address, size, kSurrendered); }
  /// Children of fork() are not to have this range, until it is released, withdrawn or shared.
  /// kUnsupported: where devices may write to it they must not be made to write to a copy.
  Status keepFromChildren(uintptr_t address, Bytes size);
  void shareWithChildren(uintptr_t address, Bytes size) {
    core_.space->addresses().unmark(Mark::kUnforked, address, size);
  }
  bool isKeptFromChildren(uintptr_t address) const {
    return core_.space->addresses().markedAt(Mark::kUnforked, address, Bytes(1)).inside;
  }
  /// Core dumps are not to have this range, until it is released or withdrawn, or are to again.
  /// Errors: kNoMemory.
  Status keepFromDumps(uintptr_t address, Bytes size);
  Status dumpAgain(uintptr_t address, Bytes size);
  RangeSpan dumpAdviceAt(uintptr_t address, Bytes size) const {
    return core_.space->addresses().markedAt(Mark::kUndumped, address, size);
  }
  /// In a child of fork(): gives up those ranges.
  void withdrawUnforked();
  /// In a child of fork(): arms the whole space with the child's own port.
  Status armAll();
  Status protect(uintptr_t address, Bytes size, int protection);
  /// Whole granules of an allocation: where their pages are to be from now on, until they are
  /// released. What is elsewhere already moves when the policy next looks at it.
  Status place(uintptr_t address, Bytes size, Placement placement);
  /// Errors: kInvalidArgument if it is not a page range of the space.
  Result<Residency> residency(uintptr_t address, Bytes size) const;
  /// If it cannot stay where it is, it goes where `alignment` allows; else nothing has changed.
  Result<uintptr_t> resize(uintptr_t address, Bytes old_size, Bytes new_size, Bytes alignment);

 private:
  enum class Mode : uint8_t { kRelease, kDiscard, kWithdraw };

  bool detached() const { return core_.fork.detached(); }
  Status check(uintptr_t address, Bytes size) const;
  Result<uint64_t> findFree(Bytes size, Bytes alignment, RangeUse use);
  /// Errors: kNoMemory if a reservation of this size leaves less than half of the space.
  Status checkShare(Bytes size);
  void setPlacement(uintptr_t address, Bytes size, Placement placement);
  /// Makes a range that was just taken usable, or gives it back.
  Status open(uint64_t offset, Bytes size, int protection);
  Status makeUsable(uintptr_t address, Bytes size, int protection);
  /// The same for a part of one granule, which may lie in a tier that is mapped as a whole.
  Status makePartUsable(uintptr_t address, Bytes size, int protection);
  Status makeFresh(uintptr_t address, Bytes size, int protection);
  bool anyMapsWholeGranules();
  void setRights(uintptr_t address, Bytes size, int protection);
  void forgetAdvice(uintptr_t address, Bytes size) {
    shareWithChildren(address, size);
    core_.space->addresses().unmark(Mark::kUndumped, address, size);
  }
  void forgetAnchors(uintptr_t address, Bytes size) {
    core_.space->anchored().forget(core_.space->pageAt(address),
                                   core_.space->pageAt(address) + toPages(size).value());
  }
  /// The pages of a range, granule by granule.
  void dropRange(uintptr_t address, Bytes size, Mode mode);
  /// Empties the pages of [first, end), all in one granule, whatever their state.
  void dropPages(PageIndex first, PageIndex end, Mode mode);
  /// False: they are out of reach now, and there is no way around that.
  bool tryDropPages(PageIndex first, PageIndex end, Mode mode);
  /// Lets those look again who wait in a range for what is out of reach.
  void wakeHeld(uintptr_t address, Bytes size);
  /// Takes away the mapping of granules that have no pages.
  void releaseUnused(GranuleIndex first, GranuleIndex end);
  /// dropPages() for a part of a granule that lies in a tier which is mapped as a whole.
  void dropPart(const GranuleLock& granule, PageIndex first, PageIndex end, Mode mode);
  void replaceMapping(const GranuleLock& granule, uintptr_t address, Bytes size, Mode mode);
  void dropPage(const GranuleLock& granule, PageIndex page, PageWord word);
  /// Arms what the program has not mapped itself.
  Status armOwn(uintptr_t start, Bytes size);
  void replaceByFresh(const GranuleLock& granule, uintptr_t address, Bytes size);
  // Of handOver(): pages of one granule.
  enum class Settled : uint8_t { kAll, kWaits };
  /// Makes all pages of [first, end) local or empty ones. kWaits: another thread has one under way.
  Result<Settled> settle(const GranuleLock& granule, PageIndex first, PageIndex end,
                         const Staging& staging);
  Status readIn(const GranuleLock& granule, PageIndex first, PageCount pages);
  bool rescue(const GranuleLock& granule, PageIndex page, PageWord word, const Staging& staging);
  Result<Settled> handOverPart(PageIndex first, PageIndex end, const Staging& staging);
  /// Of pages that are local or empty, and not armed any more.
  void letGo(const GranuleLock& granule, PageIndex first, PageIndex end);
  void dropDirect(const GranuleLock& granule, PageIndex first, PageCount count, Mode mode);

  Core& core_;
  SharedPolicy& policy_;
  GranuleMover& mover_;
};

}  // namespace tidepool
