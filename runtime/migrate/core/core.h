// SPDX-License-Identifier: Apache-2.0
// What the parts of the runtime share: the space, the port to the kernel, the tiers, the budget
// and the statistics. Built once at start, then only its thread-safe members change.
#pragma once

#include <memory>

#include "runtime/base/clock.h"
#include "runtime/base/ledger.h"
#include "runtime/migrate/core/budget.h"
#include "runtime/migrate/core/doorbell.h"
#include "runtime/migrate/core/fork_state.h"
#include "runtime/migrate/core/parking.h"
#include "runtime/migrate/core/room_state.h"
#include "runtime/migrate/core/service_control.h"
#include "runtime/migrate/core/tier_retirement.h"
#include "runtime/migrate/core/tree_account.h"
#include "runtime/options.h"
#include "runtime/os/fault_port.h"
#include "runtime/os/kernel.h"
#include "runtime/os/pin_check.h"
#include "runtime/space/granule_lock.h"
#include "runtime/stats/stats_page.h"
#include "runtime/tier/compressed_pool.h"
#include "runtime/tier/frame_table.h"
#include "runtime/tier/tier_set.h"

namespace tidepool {

struct Core {
  Options options;
  // Others than these in tests only; never null.
  Kernel* kernel = &realKernel();
  const Clock* clock = &kMonotonicClock;
  std::unique_ptr<ManagedSpace> space;
  std::unique_ptr<FaultPort> port;
  /// For mappings of direct tiers; null when there is none, or the kernel cannot: pages of direct
  /// tiers then stay where they were placed.
  std::unique_ptr<FaultPort> barrier;
  TierSet tiers;
  /// One of the tiers, and its number; null: there is none.
  CompressedPool* pool = nullptr;
  uint8_t pool_number = 0;
  Budget budget;
  /// Local memory in use outside the space, as its owners reported it (Runtime).
  Ledger outside;
  /// Of this process and its relatives. Used by the migrator's thread.
  std::unique_ptr<TreeAccount> account;
  StatsPage* stats = nullptr;
  /// Rung when memory is short, read by the migrator.
  Doorbell need_memory;
  /// Rung when memory was freed for faults that wait for it, read by the fault service.
  Doorbell freed_memory;
  RoomState room;
  Parking parking;
  ServiceControl services;
  ForkState fork;
  TierRetirement retirement;
  /// A filter of the program's may forbid calls that we can do without: those made with the lock.
  Mutex rare_calls;
  bool calls_restricted TP_GUARDED_BY(rare_calls) = false;

  /// Whether a device may have pages of the process (runtime/os/pin_check.h).
  bool mayPinPages() const { return options.pins == Pins::kAsk && kernel->mayPinPages(); }
  bool mayStillPin() const { return options.pins == Pins::kAsk && os::mayStillPin(); }

  /// Whether a fault that finds no room is to wait for some. Nobody makes any while the service
  /// threads come to a standstill, which in turn waits for the reads under way to be installed.
  bool roomWillCome() const {
    if (parking.requested(Parking::Upto::kMigrator)) return false;
    return room.growing() || (tiers.hasFetch() && room.pagesLeave());
  }
};

/// Where the page is to be, if the program has said so.
inline Placement placementOf(const Core& core, PageIndex page) {
  return core.space->placements().of(granuleOf(page));
}

/// Calls `act(table)` for the tiers whose frames a child of fork() can share.
template <typename Act>
void forEachTable(Core& core, Act act) {
  core.tiers.forEach([&](uint8_t, Tier& tier) {
    if (FrameTable* table = tier.frames()) act(*table);
  });
}

/// True if other processes hold this home in a direct tier as well, since a fork(). Its pages are
/// write-protected then; nothing may be mapped over them that is not.
inline bool heldByOthers(const Core& core, uint8_t tier, FrameIndex home) {
  return core.fork.forked() &&
         !core.tiers.direct(tier)->soleHolder({home, PageCount(kPagesPerGranule)});
}

inline void count(StatCounter& counter, uint64_t n) {
  counter.fetch_add(n, std::memory_order_relaxed);
}

/// Moves present pages out of the space to slots that are free, after making them the process's own
/// if a fork() has left them shared: the kernel moves no shared page.
PortResult moveOutOfSpace(Core& core, const GranuleLock& granule, uintptr_t to, uintptr_t from,
                          Bytes size);

/// Gives a range that was mapped anew, readable and writable, the rights that the program set.
void restoreRights(Core& core, const GranuleLock& granule, uintptr_t address, Bytes size);

/// The same for what the program keeps from core dumps. Better before the bytes are there.
void restoreDumpAdvice(Core& core, const GranuleLock& granule, uintptr_t address, Bytes size);

/// Makes a touch of an absent page end in SIGBUS, or in SIGSEGV where the kernel cannot, and wakes
/// who waits for it.
void poisonPage(Core& core, const GranuleLock& granule, PageIndex page);

/// Gives up the far copy of a local page, if it has one; returns its word as it is now.
PageWord dropFarCopy(Core& core, const GranuleLock& granule, PageIndex page, PageWord word);

/// Writes the far tiers' names, kinds and capacities to the statistics page.
void describeFarTiers(Core& core);

/// Appends to the statistics page's ring of errors and says it on stderr.
[[gnu::format(printf, 2, 3)]] void reportError(Core& core, const char* format, ...);

}  // namespace tidepool
