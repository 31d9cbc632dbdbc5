// SPDX-License-Identifier: Apache-2.0
// Serves faults: one thread reads them from the kernel and answers each by what the page's word
// says: fresh zeros, a page taken back from staging, or a fetch from far memory. Never touches
// managed memory, never waits for the migrator (invariant I2). Once it runs it allocates for its
// lists of faults that wait alone, which grow to the number of the program's threads.
#pragma once

#include <array>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "runtime/base/clock.h"
#include "runtime/base/mapping.h"
#include "runtime/base/service_thread.h"
#include "runtime/migrate/core/channels.h"
#include "runtime/migrate/core/core.h"
#include "runtime/migrate/core/far_claim.h"
#include "runtime/migrate/core/shared_policy.h"
#include "runtime/migrate/core/staging.h"
#include "runtime/migrate/direct/granule_mover.h"
#include "runtime/migrate/fault/foreteller.h"
#include "runtime/migrate/fault/waker.h"
#include "runtime/os/cpu_follower.h"
#include "runtime/policy/fault_cost.h"

namespace tidepool {

class FaultService {
 public:
  /// All must outlive the service. Opens a channel to every fetch tier; starts no thread yet.
  /// `samples` of the program's faults say what to foretell; others than these in tests only.
  static Result<std::unique_ptr<FaultService>> create(
      Core& core, Staging& staging, SharedPolicy& policy, GranuleMover& mover, Waker& waker,
      std::unique_ptr<PerfPort> samples = openKernelPerfPort());
  ~FaultService();

  Status start();
  void awaitBegin() const { thread_.awaitBegin(); }
  clockid_t clock() const { return thread_.clock(); }
  /// Stops and joins the thread. Threads of the program that wait for pages go on waiting.
  void stop();
  /// In a child of fork(): its thread and its reads are the parent's.
  void forgetThread() { thread_.forget(); }
  /// What the thread does over and over: waits for work, and does it. Tests call it themselves, in
  /// place of the thread.
  void turn();

 private:
  // The local memory that would have saved a fault: see DramSplit and TreeShare.
  enum class Short : uint8_t { kNo, kPart, kStep, kTwoSteps };
  // Pages in a row on their way from far memory.
  struct Fetch {
    FarClaim claim;
    PageIndex first;  // of the claim, as it was read
    std::byte* buffer = nullptr;
    uint64_t demanded = 0;  // bit i: a thread waits for page first + i
    Arrival arrival = Arrival::kFault;
    Nanoseconds started;
    bool foretold = false;  // few of them are ever waited for
    Short short_of = Short::kNo;
  };
  // Foretold pages that are fetched together, each by itself: they may be anywhere, of one tier.
  struct Gather {
    std::vector<Fetch> pages;  // capacity reserved at create(); empty: free
    bool under_way = false;
  };
  // A fault that could not be answered at once.
  struct Deferred {
    MissingFault fault;
    Nanoseconds started;
  };
  enum class Answer : uint8_t {
    kDone,
    kFetching,
    kFilled,  // at once; to the policy it is a page that was fetched
    kAwaitMemory,
    kAwaitSlot,  // as many reads are in flight as can be
  };

  static constexpr size_t kFetches = 64;          // reads in flight; more faults wait their turn
  static constexpr size_t kFaultsPerSend = 16;    // at most, so that the first do not wait long
  static constexpr uint64_t kPagesPerFetch = 16;  // 64 KiB buffers
  static constexpr size_t kGathers = 8;
  static constexpr uint64_t kPagesPerGather = 64;
  static constexpr uint64_t kFirstGather = 16;  // soon here, while the rest is on its way
  static constexpr uint64_t kFreshMost = 512;   // largest run of fresh pages filled at once
  static constexpr uint64_t kFreshLeast = 16;
  static constexpr uint64_t kZeroPages = 64;  // to copy from, kept small: not every kernel gives
                                              // memory that is only read its shared zero page

  FaultService(Core& core, Staging& staging, SharedPolicy& policy, GranuleMover& mover,
               Waker& waker);
  void run();
  bool parking() const { return core_.parking.requested(Parking::Upto::kFaults); }
  void waitForWork();
  void serveNew();
  void serveBarrier();
  void serve(const MissingFault& fault, Nanoseconds started);
  Answer answer(const MissingFault& fault);
  Answer fillFresh(const GranuleLock& granule, PageIndex page);
  /// Zeros into absent pages; wakes nobody. Ends at the first page that it cannot fill.
  PortResult copyZeros(PageIndex first, PageCount pages);
  /// Says once that the budget cannot be kept, unless another error said why.
  void sayExceeded();
  bool granuleIsEmpty(GranuleIndex granule) const;
  PageCount freshRun(const GranuleLock& granule, PageIndex page, PageIndex* start) const;
  Answer rescue(const GranuleLock& granule, PageIndex page, PageWord word);
  /// Of a page that is far.
  Answer beginFetch(const GranuleLock& granule, PageIndex page);
  void prefetch(PageIndex from, PageCount count);
  /// Fills pages at the head of the run that were zeros when they left, ahead of need; returns how
  /// many.
  uint64_t fillZeros(const GranuleLock& granule, PageRun run);
  /// What the policy brings in besides a page that was away and is there now, or on its way.
  void fetchMore(const MissingFault& fault, Nanoseconds started);
  /// The rest of a stream's run that begins or ends with `page`, the nearest pages first.
  void prefetchBeside(PageIndex page, PageRun run);
  /// Begins to fetch what the thread will probably touch next; its fault is being answered.
  void foretell(const MissingFault& fault, Nanoseconds started);
  PageCount roomToForetell() const;
  void fetchForetold(std::span<const uint64_t> addresses);
  /// Takes the page into the gather if it is far, and of its tier; one that needs no fetch is there
  /// at once.
  void claimForetold(Gather& gather, PageIndex page);
  void unpackForetold(const GranuleLock& granule, PageIndex page);
  /// Ends it if it cannot be submitted.
  void submitGather(Gather& gather);
  /// Pages for which there is no room, but somebody waits, stay in it.
  void finishGather(Gather& gather, bool ok);
  Gather* freeGather();
  bool nothingUnderWay() const;
  /// Faults, or pages that have arrived and find no room.
  bool somethingWaits() const;
  /// Begins to fetch what the program said it will need, leaving half of the reads to faults.
  void fetchAdvised();
  /// Takes pages back that are on their way out, but still here, as far as there is room.
  void rescueAdvised(PageRun piece);
  void flush();
  /// On failure the claim has ended.
  bool submitFetch(const GranuleLock& granule, FarClaim claim, Arrival arrival);
  /// Brings in what is in the compressed pool, now; as submitFetch().
  bool unpack(const GranuleLock& granule, uint32_t slot);
  /// How much more memory would have kept a page that was touched; the size of the pool, if there
  /// is one, hears where it is.
  void noteTouch(Fetch& fetch);
  /// And what it took to bring it in from there.
  void noteArrival(const Fetch& fetch, uint8_t tier);
  /// Of a page since whose eviction so many others went; none: it never was evicted.
  Short shortOf(std::optional<PageCount> away) const;
  void noteShort(Short by, Nanoseconds took);
  void completeFetches();
  void finishFetch(uint32_t slot, bool ok, ErrorCode error);
  /// Ends the claim of a read that has failed.
  void giveUp(const GranuleLock& granule, Fetch& fetch, ErrorCode error);
  void reportLoss(uint8_t tier, ErrorCode error, bool first);
  void freeSlot(uint32_t slot);
  /// What has been read is put in place, or waits for room.
  void arrive(const GranuleLock& granule, uint32_t slot);
  /// False: there is no room for it yet.
  bool install(Fetch& fetch) {
    return install(GranuleLock(*core_.space, granuleOf(fetch.claim.first())), fetch);
  }
  bool install(const GranuleLock& granule, Fetch& fetch);
  /// Whether what was fetched keeps its frames, as copies of the local pages.
  bool keepsCopies(const Fetch& fetch);
  /// The next so many pages, which are the claim's still.
  void installRun(const GranuleLock& granule, Fetch& fetch, uint64_t pages, FarCopy copy);
  void noteDemand(PageIndex page, PageWord word);
  void retryDeferred();
  /// Serves faults that wait for a slot, as far as there are any.
  void serveQueued();
  /// Closes what it has open to tiers that are to go.
  void letGo();
  void wake(PageIndex first, PageCount pages) {
    waker_.wake(core_.space->addressOf(first), pages, core_.clock->now());
  }
  void recordLatency(Nanoseconds started);
  std::byte* buffer(uint32_t slot) const {
    return buffers_.data() + slot * kPagesPerFetch * kPageSize;
  }

  Core& core_;
  RoomState::Demand room_{core_.room};
  Staging& staging_;
  SharedPolicy& policy_;
  GranuleMover& mover_;
  Waker& waker_;
  Mapping buffers_;
  Mapping zeros_;
  Channels channels_;
  std::array<Fetch, kFetches> fetches_;
  std::array<uint32_t, kFetches> free_slots_;
  size_t free_count_ = 0;
  std::array<Gather, kGathers> gathers_;
  std::unique_ptr<Foreteller> foreteller_;  // null: not to be used, or not possible
  std::vector<uint32_t> arrived_;   // fetched, waiting for budget; capacity reserved at create()
  std::vector<Deferred> deferred_;  // wait for memory
  std::vector<Deferred> queued_;    // wait for a slot; the longest first
  std::optional<os::CpuFollower> follower_;  // the thread's, made by it
  FaultCost fault_cost_;
  ServiceThread thread_;
  bool said_exceeded_ = false;
  bool said_unverified_ = false;
};

}  // namespace tidepool
