// SPDX-License-Identifier: Apache-2.0
// Memory of the fabric for rows of tables: regions that the host's agent gives as tables need them.
// A region goes back when no row is in it any more. What an operator drains is moved off, to other
// regions or to local memory; what is taken by force is lost, and the rows say so (invariant I3). A
// thread of its own talks to the agent; without an agent what is there stays usable. Thread-safe;
// must outlive its rows. A child of fork() has nothing of it.
#pragma once

#include <atomic>
#include <list>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "allocator/fabric/fabric_region.h"
#include "allocator/fabric/fabric_rows.h"
#include "allocator/fabric/forked_socket.h"
#include "allocator/fabric/region_hold.h"
#include "allocator/fabric/rows_keeper.h"
#include "runtime/base/clock.h"
#include "runtime/base/service_thread.h"
#include "runtime/os/lease_watch.h"

namespace tidepool {

class FabricPool {
 public:
  /// Connects to the agent at `agent` (empty: where it usually is); asks for nothing yet. `most`
  /// bounds the regions, 0: as much as there is. `patience`: for the agent and for memory servers.
  /// `local` outlives it. Errors: kUnreachable, kPermission, kTimedOut.
  static Result<std::unique_ptr<FabricPool>> open(const char* agent, Bytes most,
                                                  const Patience& patience, LocalRoom& local);
  ~FabricPool();
  FabricPool(const FabricPool&) = delete;
  FabricPool& operator=(const FabricPool&) = delete;

  /// Room for rows, zeros at first where they are read in place. Waits for the agent. Errors:
  /// kNoSpace when the fabric, or what `most` allows of it, has no more; what the agent refuses
  /// with; those of mapping and connecting.
  Result<std::unique_ptr<FabricRows>> makeRows(Bytes stride, uint64_t rows) TP_EXCLUDES(mutex_);

  // Of rows.
  RegionHold& hold() { return hold_; }
  void remove(FabricRows& rows) TP_EXCLUDES(mutex_);
  void release(RowRun& run) TP_EXCLUDES(mutex_);
  /// Room for rows that are moved, at least for a unit and at most of `most`; the pool's thread
  /// alone. Errors: kNoSpace; there may be some later.
  Result<std::unique_ptr<RowRun>> placeElsewhere(Bytes most, Bytes unit, TierKind kind)
      TP_EXCLUDES(mutex_);

 private:
  enum class Ask : uint8_t { kNone, kWanted, kSent };
  enum class Purpose : uint8_t { kNewRows, kDrain };
  enum class Kinds : uint8_t { kDirect, kAny };
  FabricPool(std::unique_ptr<AgentClient> client, Bytes most, const Patience& patience,
             LocalRoom& local);
  static void threadMain(void* self);
  void run() TP_EXCLUDES(mutex_);
  void waitForNews(Nanoseconds most) TP_EXCLUDES(mutex_);
  void ring();

  // The agent.
  /// On a thread of its own, which takes no lock of the pool's.
  void leaseEnded();
  /// Of rows that are used in place.
  Bytes directBytes() const TP_REQUIRES(mutex_);
  /// If all that the agent has to say about regions has been heard.
  void resume() TP_REQUIRES(mutex_);
  void listen(Nanoseconds now) TP_REQUIRES(mutex_);
  void hear(const AgentNotice& notice) TP_REQUIRES(mutex_);
  void refused(const AgentNotice& notice) TP_REQUIRES(mutex_);
  void take(const AgentNotice& notice) TP_REQUIRES(mutex_);
  void lose(FabricRegion& region, Bytes from, const char* why) TP_REQUIRES(mutex_);
  void reconnect(Nanoseconds now) TP_REQUIRES(mutex_);
  void sendAsk(Nanoseconds now) TP_REQUIRES(mutex_);
  void endAsk() TP_REQUIRES(mutex_);
  void refuseAsk(const Error& error) TP_REQUIRES(mutex_);
  void giveBackEmpty() TP_REQUIRES(mutex_);
  void reportLeft(FabricRegion& region, Nanoseconds now) TP_REQUIRES(mutex_);
  FabricRegion* find(uint64_t id) TP_REQUIRES(mutex_);

  // Room.
  Bytes freeBytes() const TP_REQUIRES(mutex_);
  std::vector<std::unique_ptr<RowRun>> gather(uint64_t units, Bytes unit, Kinds kinds)
      TP_REQUIRES(mutex_);
  std::unique_ptr<RowRun> runIn(FabricRegion& region, const FabricRegion::Part& part, Bytes most,
                                Bytes unit) TP_REQUIRES(mutex_);
  void releaseLocked(RowRun& run) TP_REQUIRES(mutex_);
  Status askFor(Bytes lacking) TP_REQUIRES(mutex_);
  Status wantRegion(Bytes lacking, Purpose purpose, agent_wire::Want want) TP_REQUIRES(mutex_);
  Result<std::unique_ptr<FabricRows>> makeRowsLocked(Bytes stride, uint64_t rows, uint64_t granules)
      TP_REQUIRES(mutex_);
  Result<std::unique_ptr<FabricRows>> finishRows(TierKind kind, Bytes stride, uint64_t rows,
                                                 std::vector<std::unique_ptr<RowRun>> runs)
      TP_REQUIRES(mutex_);
  Result<std::unique_ptr<RowRun>> placeLocally(Bytes size) TP_EXCLUDES(mutex_);

  // Drains.
  Nanoseconds moveOff(Nanoseconds now) TP_EXCLUDES(mutex_);
  void noteStuck(FabricRegion& region, FabricRows::Progress why, Nanoseconds now)
      TP_REQUIRES(mutex_);

  const Bytes most_;
  const Patience patience_;
  LocalRoom& local_;
  const MonotonicClock clock_;
  RegionHold hold_;
  std::atomic<bool> said_over_{false};  // that the lease is
  os::LeaseWatch lease_{[](void* self) { static_cast<FabricPool*>(self)->leaseEnded(); }, this};
  ServiceThread thread_;
  UniqueFd bell_;  // an eventfd: somebody wants something of the thread
  std::atomic<bool> stopping_{false};

  Mutex mutex_;
  CondVar changed_;  // an ask has ended, or nobody is busy with rows any more
  std::unique_ptr<AgentClient> client_ TP_GUARDED_BY(mutex_);
  // Changed by the thread alone: it may look without the lock.
  std::list<std::unique_ptr<FabricRegion>> regions_ TP_GUARDED_BY(mutex_);
  std::vector<FabricRows*> rows_ TP_GUARDED_BY(mutex_);
  FabricRows* busy_ TP_GUARDED_BY(mutex_) = nullptr;  // being moved, without the lock
  bool making_ TP_GUARDED_BY(mutex_) = false;         // somebody is in makeRows(), one at a time
  Ask ask_ TP_GUARDED_BY(mutex_) = Ask::kNone;
  Purpose purpose_ TP_GUARDED_BY(mutex_) = Purpose::kNewRows;
  agent_wire::Want want_ TP_GUARDED_BY(mutex_) = agent_wire::Want::kAny;
  Bytes asked_ TP_GUARDED_BY(mutex_), lacking_ TP_GUARDED_BY(mutex_);
  Nanoseconds asked_at_ TP_GUARDED_BY(mutex_);
  Nanoseconds drain_asks_after_ TP_GUARDED_BY(mutex_);
  std::optional<Error> ask_error_ TP_GUARDED_BY(mutex_);  // of the last one
  size_t reclaiming_ TP_GUARDED_BY(mutex_) = 0;           // answers awaited after a reconnection
  bool unclaimed_ TP_GUARDED_BY(mutex_) = false;          // not even asked for all
  Nanoseconds connect_after_ TP_GUARDED_BY(mutex_);
  bool said_away_ TP_GUARDED_BY(mutex_) = false;
  ForkedSocket forked_ TP_GUARDED_BY(mutex_);
};

}  // namespace tidepool
