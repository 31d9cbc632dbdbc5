// SPDX-License-Identifier: Apache-2.0
// The migrator: one thread that keeps the budget (what the process holds, as the kernel counts it),
// evicts when local memory runs short, and keeps the statistics page current.
#pragma once

#include <memory>
#include <optional>

#include "runtime/base/service_thread.h"
#include "runtime/base/unique_fd.h"
#include "runtime/migrate/core/core.h"
#include "runtime/migrate/core/pmu_feed.h"
#include "runtime/migrate/core/tree_budget.h"
#include "runtime/migrate/direct/balancer.h"
#include "runtime/migrate/direct/strays.h"
#include "runtime/migrate/evict/advice.h"
#include "runtime/migrate/evict/evictor.h"
#include "runtime/migrate/fabric/fabric_memory.h"
#include "runtime/migrate/fault/waker.h"
#include "runtime/migrate/heat_sweeper.h"
#include "runtime/os/cpu_follower.h"

namespace tidepool {

class Migrator {
 public:
  /// All must outlive the migrator. Errors: kPermission when /proc is not readable.
  static Result<std::unique_ptr<Migrator>> create(Core& core, std::unique_ptr<Evictor> evictor,
                                                  std::unique_ptr<Balancer> balancer, Waker& waker,
                                                  Advice& advice);
  ~Migrator();
  /// Samples of a PMU are taken in at every tick. Before start(); null: there are none.
  void setPmu(std::unique_ptr<PmuFeed> pmu) { pmu_ = std::move(pmu); }
  /// Makes the heat map at every tick. Before start(); null: there is none.
  void setHeat(std::unique_ptr<HeatSweeper> heat) { heat_ = std::move(heat); }
  /// Looks after memory of the fabric's. Before start(); must outlive the migrator. Null: none.
  void setFabric(FabricMemory* fabric) {
    fabric_ = fabric;
    if (fabric != nullptr) fabric->use(*evictor_, balancer_.get());
  }
  /// Returns when the thread answers for this process in the tables of frames.
  Status start();
  clockid_t clock() const { return thread_.clock(); }
  void stop();
  /// In a child of fork(): its thread and its writes are the parent's.
  void forgetThread() { thread_.forget(); }
  /// What the thread does over and over: waits for work, and does it. Tests call it themselves, in
  /// place of the thread.
  void turn();
  /// Reads the kernel's count and sets the budget's limit. Also done by the thread at every tick.
  void updateBudget();
  /// Copies what the tiers and service threads count themselves to the statistics page.
  void publish() const;

 private:
  Migrator(Core& core, std::unique_ptr<Evictor> evictor, std::unique_ptr<Balancer> balancer,
           UniqueFd statm, UniqueFd stat, Waker& waker, Advice& advice)
      : core_(core),
        evictor_(std::move(evictor)),
        balancer_(std::move(balancer)),
        statm_(std::move(statm)),
        stat_(std::move(stat)),
        waker_(waker),
        advice_(advice),
        tree_(core),
        strays_(core) {}
  void run();
  void waitForWork();
  /// Once a second: if the program's threads have all ended, each by the kernel's call for a single
  /// thread, so do ours, and with them the process, with the status of its first thread.
  void endWithProgram();
  /// Once a second: takes far memory back from processes that ended.
  void reapTheDead(Nanoseconds now);
  void relieve();
  /// Publishes whether any local page can leave; lets faults that wait go on if none can.
  void setNothingLeaves(bool stuck);

  Core& core_;
  RoomState::Supply room_{core_.room};
  std::unique_ptr<Evictor> evictor_;
  std::unique_ptr<Balancer> balancer_;  // null without direct tiers
  std::unique_ptr<PmuFeed> pmu_;
  std::unique_ptr<HeatSweeper> heat_;
  FabricMemory* fabric_ = nullptr;
  bool agent_speaks_ = false;
  UniqueFd statm_, stat_;  // of /proc/self
  Waker& waker_;
  Advice& advice_;
  TreeBudget tree_;
  Strays strays_;
  std::optional<os::CpuAvoider> avoider_;  // the thread's, made by it
  Nanoseconds next_tick_;
  Nanoseconds next_balance_;
  Nanoseconds next_reap_;
  Nanoseconds next_tend_;
  std::atomic<uint32_t> settled_{0};
  bool warned_small_ = false;
  std::optional<Nanoseconds> stuck_since_;  // nothing could leave, and there was no room
  bool warned_stuck_ = false;
  ServiceThread thread_;
};

}  // namespace tidepool
