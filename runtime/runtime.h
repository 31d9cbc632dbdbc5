// SPDX-License-Identifier: Apache-2.0
// The runtime of one process: the managed space, its tiers, and the threads that serve faults and
// migrate pages. The shim and the allocator API are thin layers over this class.
#pragma once

#include <cstddef>
#include <memory>

#include "runtime/base/fork_kind.h"
#include "runtime/base/result.h"
#include "runtime/base/units.h"
#include "runtime/options.h"
#include "runtime/space/address_map.h"
#include "runtime/space/placement.h"
#include "runtime/space/range_allocator.h"
#include "runtime/space/residency.h"
#include "runtime/stats/stats_page.h"

namespace tidepool {

class FaultPort;
class RowStore;

/// Thread-safe but for start() and the destructor. Errors name what to do next.
class Runtime {
 public:
  /// Reserves the space, opens the tiers and starts the threads. Errors: kPermission or
  /// kUnsupported when userfaultfd is not to be had, kUnreachable or kNotFound for a tier,
  /// kInvalidArgument for impossible sizes. On error nothing stays behind.
  static Result<std::unique_ptr<Runtime>> start(const Options& options);
  /// As start(), over a port of the caller's: for tests that make the kernel fail on purpose.
  static Result<std::unique_ptr<Runtime>> startWith(std::unique_ptr<FaultPort> port,
                                                    const Options& options);
  ~Runtime();
  Runtime(const Runtime&) = delete;
  Runtime& operator=(const Runtime&) = delete;

  /// Zero-filled managed memory, page-granular; `alignment` is a power of two (>= kPageSize). `use`
  /// keeps the heap out of the holes between mappings. Errors: kNoMemory when space, budget and far
  /// tiers cannot hold it.
  Result<void*> allocate(Bytes size, Bytes alignment, RangeUse use = RangeUse::kMapping);
  /// As allocate(), but exactly there, in the managed range. Errors: kConflict if any of it is in
  /// use.
  Status claim(void* address, Bytes size);
  /// Address space without access rights, which protect() opens piece by piece. Costs nothing where
  /// it was never touched. Errors: kNoMemory, also when more than half of the managed range would
  /// be given out then, so that a reservation cannot starve the rest; reserveAt() as claim()
  /// besides.
  Result<void*> reserve(Bytes size, Bytes alignment);
  Status reserveAt(void* address, Bytes size);
  /// The protection (PROT_*, or one of address_map.h) or the owner at `address` in the managed
  /// range, and for how many bytes from there, at most `size`, it is the same.
  ProtectionSpan spanAt(const void* address, Bytes size) const;
  OwnerSpan ownerAt(const void* address, Bytes size) const;
  /// True if the page was not written since it was handed out or discarded.
  bool isEmpty(const void* address) const;
  /// Ends the use of [address, address + size): page-aligned, inside one or more allocations.
  Status release(void* address, Bytes size);
  /// The range reads as zeros from now on (MADV_DONTNEED), its memory in every tier is freed.
  Status discard(void* address, Bytes size);
  /// The same, and its places in direct tiers are free, which discard() keeps for what comes next.
  /// Nobody touches the range meanwhile; it is readable and writable then.
  Status renew(void* address, Bytes size);
  /// As discard(), and it is as reserve() gives it.
  Status withdraw(void* address, Bytes size);
  /// Takes the range out of the runtime's care for good, with contents and rights, while other
  /// threads use it; one at a time for the same range. Errors: kNotFound, kNoMemory, kUnsupported;
  /// what was done of it then stays done.
  Status handOver(void* address, Bytes size);
  /// The caller has discarded the range and maps something of its own over it, for good.
  void surrender(void* address, Bytes size);
  /// Children of fork() are not to have the range, as with MADV_DONTFORK, until it is released or
  /// withdrawn, or MADV_DOFORK is said. Errors: kUnsupported where devices may have pages of it.
  Status keepFromChildren(void* address, Bytes size);
  void shareWithChildren(void* address, Bytes size);
  bool isKeptFromChildren(const void* address) const;
  /// Core dumps are not to have the range, wherever its pages lie, until it is released or
  /// withdrawn, or are to have it again. Errors: kNoMemory for one more mapping of the kernel's.
  Status keepFromDumps(void* address, Bytes size);
  Status dumpAgain(void* address, Bytes size);
  RangeSpan dumpAdviceAt(const void* address, Bytes size) const;
  /// For words that the kernel itself writes when a thread ends, or of which it must know who
  /// sleeps on them (futex(2) without FUTEX_PRIVATE_FLAG). keepLocal(): once touched, their pages
  /// stay in local memory, whatever the budget, until they are released. holdStill(): they neither
  /// come from nor go to a direct tier until letMove() of the same address, between which a thread
  /// waits; false where there is no need.
  void keepLocal(const void* address, Bytes size);
  bool holdStill(const void* address);
  void letMove(const void* address);
  /// Changes access rights (PROT_*), as mprotect.
  Status protect(void* address, Bytes size, int protection);
  /// Moves or resizes an allocation, as mremap with MREMAP_MAYMOVE. In place where it can; else the
  /// contents are copied by the calling thread, through local memory, to where `alignment` (a power
  /// of two, a page at least) allows. On error (kNoMemory, say) all is as it was.
  Result<void*> resize(void* address, Bytes old_size, Bytes new_size,
                       Bytes alignment = Bytes(kPageSize));
  /// Advice on a page range of the space, which may be ignored. Soon needed: what fetch tiers hold
  /// of it is brought in, as far as there is room. Cold: next to go when something has to.
  void willNeed(void* address, Bytes size);
  void cold(void* address, Bytes size);
  /// Goes to far memory soon.
  void pageOut(void* address, Bytes size);

  /// Where the pages of whole granules of an allocation are to be, until they are released: local
  /// (never moved out), or in one far tier while it has room: a direct tier's pages are used there,
  /// a fetch tier's leave first, and go there. Errors: kInvalidArgument, kNotFound.
  Status place(void* address, Bytes size, Placement placement);
  /// How many pages of the range are where, now.
  Result<Residency> residency(const void* address, Bytes size) const;
  /// Local memory that the caller takes from elsewhere counts to the budget from now on: managed
  /// pages make room for it within 20 ms. Errors: kNoSpace if the budget is not that large; without
  /// a budget, the machine's memory.
  Status chargeLocal(Bytes size);
  void dischargeLocal(Bytes size);
  /// Tables would have saved so much time by a step (DramSplit) more of local memory: one more
  /// thing that counts where processes share the budget.
  void noteRowsShort(Nanoseconds saved);
  /// A far tier, by its place in options().far from 0 on, for those who keep rows in its frames;
  /// the runtime outlives it. Errors: kNotFound, kUnsupported for one whose regions may be drained.
  Result<std::unique_ptr<RowStore>> rowStore(size_t far_tier);
  const Options& options() const;

  /// One subtraction and one compare; callable from any thread at any time.
  bool contains(const void* address) const {
    return reinterpret_cast<uintptr_t>(address) - base_ < size_;
  }
  /// The managed range; fixed once started.
  uintptr_t base() const { return base_; }
  Bytes size() const { return Bytes(size_); }
  /// For who is about to become the first program of a tree of processes that share a budget: makes
  /// their account, which every program that is executed from here finds. Where it cannot be had,
  /// each makes its own.
  static void beginTree();
  /// start() does this. Sooner, for callers that register handlers of locks under which a runtime
  /// may be called later: the last registered are run first, and those have to be.
  static void registerForkHandlers();
  /// Nor is it done then: code that calls this makes the four calls below around fork(), too.
  static void leaveForksToCaller();
  /// What fork() calls by itself, for callers that copy the process in another way: around it, by
  /// the copying thread, which is not inside another call (a signal handler may be).
  static void beforeFork(ForkKind kind);
  /// Before it, for callers that first take locks which libc waits for in its streams (malloc's):
  /// the streams' come before those, as in fork() itself. Of the same thread, with the same kind.
  static void aboutToFork(ForkKind kind);
  static void afterForkInParent();
  static void afterForkInChild();
  /// In the child if the first could not be called: it keeps what is certainly local.
  static void afterUnpreparedFork();
  /// Calls `act(argument)` while the process has no thread of Tidepool's, for system calls that
  /// want a process of one thread; afterwards there are new ones, with the caller's credentials and
  /// namespaces. `act` must not touch managed memory, which nobody brings in meanwhile, nor do what
  /// keeps threads from being started; it is not called where something does already.
  static void standAside(void (*act)(void*), void* argument);
  /// The program is about to set a seccomp filter, which may kill it for calls that it does not
  /// know of: what service threads do beyond what has to be ends here.
  void expectFilter();

  StatsPage& stats();
  /// Brings the counters that are gathered at intervals up to date.
  void refreshStats();

 private:
  Runtime();
  struct Impl;
  uintptr_t base_ = 0;
  uintptr_t size_ = 0;
  std::unique_ptr<Impl> impl_;
};

}  // namespace tidepool
