// SPDX-License-Identifier: Apache-2.0
// Far memory from the fabric manager, by way of the host's agent. Regions come as the program needs
// them, each a tier or several, in growing steps; idle ones go back. What an operator drains is
// moved elsewhere while the program runs; what is taken by force is lost, and said to be (invariant
// I3). Without the agent what is there stays usable, and it is asked again now and then. Belongs to
// the migrator's thread, but for connect() and what the fork handlers call.
#pragma once

#include <array>
#include <memory>
#include <optional>
#include <span>

#include "runtime/base/clock.h"
#include "runtime/migrate/core/core.h"
#include "runtime/migrate/direct/balancer.h"
#include "runtime/migrate/evict/evictor.h"
#include "runtime/migrate/fabric/direct_lease.h"
#include "runtime/migrate/fabric/evacuator.h"
#include "runtime/transport/agent_client.h"

namespace tidepool {

class FabricMemory {
 public:
  /// Connects to the agent at `path`, which says hello; asks for nothing yet. Errors: kUnreachable,
  /// kPermission, kTimedOut.
  static Result<std::unique_ptr<AgentClient>> connect(const char* path);
  /// `most` bounds what is asked for in all, 0: as much as there is. What is referred to must
  /// outlive it.
  FabricMemory(Core& core, std::unique_ptr<AgentClient> client, Bytes most, Evacuator& evacuator,
               DirectLease& lease)
      : core_(core), client_(std::move(client)), most_(most), evacuator_(evacuator), lease_(lease) {
    room_.setGrowing(true);
  }
  /// Must outlive it.
  void use(Evictor& evictor, Balancer* balancer) {
    evictor_ = &evictor;
    balancer_ = balancer;
  }

  /// The process is about to end, with its last thread.
  void tellToStop() { lease_.tellToStop(); }

  /// Does what is due; returns when it wants to be called again at the latest. `heard`: fd() is
  /// readable, which is a time to be called, too.
  Nanoseconds tend(Nanoseconds now, bool heard);
  /// Readable when the agent has said something; -1 while there is no agent.
  int fd() const { return client_->fd(); }
  /// In a child of fork(), by its only thread: the regions are the child's, too, as soon as it has
  /// told the agent.
  void forkedInChild();

 private:
  enum class State : uint8_t {
    kNone,       // no region
    kServing,    // takes pages
    kLeaving,    // pages are moved off
    kRetiring,   // nothing is there; other threads let go of its tiers
    kReturning,  // the agent is told, or will be
  };
  struct Region {
    State state = State::kNone;
    uint64_t id = 0;
    Epoch epoch{};
    Bytes size;
    uint8_t tiers = 0;  // how many
    std::array<uint8_t, TierSet::kMost> numbers{};
    std::array<std::unique_ptr<Tier>, TierSet::kMost> retired;
    bool gone = false;     // taken from us
    bool cut = false;      // a part of it was: it takes no more pages
    bool drained = false;  // the operator wants it back, rather than that it was idle
    Bytes least_left;      // that there was of a drain to do
    // Since when whole turns over the space have moved nothing, with no less left meanwhile.
    std::optional<Nanoseconds> stuck_since;
    bool stands_still = false;  // it has been for a while
    bool stuck_said = false;
    // There is no room elsewhere: it takes pages again until there may be, since a drain is not to
    // push the program beyond its budget.
    bool lingers = false;
    Nanoseconds lingers_until;
    bool told = false;    // the agent, that nothing is in use here any more
    Nanoseconds busy_at;  // when it was seen in use last
    Nanoseconds reported_at;
  };
  struct Sums {
    Bytes capacity, free, leaving;
    bool urgent() const { return free < Bytes(2 * kGranuleSize) || leaving > Bytes(); }
  };

  void reconnect(Nanoseconds now);
  void listen(Nanoseconds now);
  /// If all that the agent has to say about regions has been heard.
  void resume();
  void hear(const AgentNotice& notice, Nanoseconds now);
  void take(const AgentNotice& notice, Nanoseconds now);
  Status attach(const AgentNotice& notice, Region& region);
  void refused(const AgentNotice& notice, Nanoseconds now);
  void lose(Region& region, Bytes from, const char* why);
  void leave(Region& region);
  void grow(Nanoseconds now);
  bool needed(const Sums& sums) const;
  void setGrowing(bool growing);
  void pause(Nanoseconds now);
  void moveOff(Region& region, Nanoseconds now);
  void noteLeft(Region& region);
  void linger(Region& region, Nanoseconds now);
  void closeTiers(Region& region);
  void openTiers(Region& region);
  /// No page of a direct tier is mapped anywhere but in its place.
  void endWatch() {
    if (balancer_ != nullptr) balancer_->rest();
  }
  void dropParents() {
    for (UniqueFd& parent : parents_) parent.reset(-1);
  }
  /// Whether a drain is under way that has not come to a stop.
  bool vacating() const;
  void reportLeft(Region& region, Nanoseconds now);
  static void noteMoves(Region& region);
  static void noteStuck(Region& region, Nanoseconds now);
  void sayStuck(Region& region);
  void retire(Region& region);
  void finishRetiring(Region& region);
  /// Its tiers, a bit by number.
  static uint32_t bitsOf(const Region& region);
  void giveBack(Region& region);
  void lookForIdle(Nanoseconds now);
  Sums sums() const;
  Bytes usedHere(const Region& region) const;
  Region* find(uint64_t id);
  Region* freeEntry();

  Core& core_;
  RoomState::Supply room_{core_.room};
  std::unique_ptr<AgentClient> client_;
  // A forked child's copies of its parent's connections, which keep the regions: the parent may
  // not have been through with its own parent's.
  std::array<UniqueFd, 2> parents_;
  const Bytes most_;
  Evacuator& evacuator_;
  DirectLease& lease_;
  Evictor* evictor_ = nullptr;
  Balancer* balancer_ = nullptr;  // null: there is none
  std::array<Region, TierSet::kMost> regions_;
  size_t reclaiming_ = 0;   // answers awaited after a reconnection
  bool unclaimed_ = false;  // not even asked for all
  bool asking_ = false;
  Bytes asked_;         // by the ask under way
  Bytes most_at_once_;  // what the agent could not give; 0: nothing yet
  Nanoseconds asked_at_;
  Nanoseconds ask_after_;
  Nanoseconds pause_;    // before the next try
  bool urgent_ = false;  // what was asked for last was needed at once
  Nanoseconds connect_after_;
  Nanoseconds idle_after_;
  bool moving_ = false;   // a drain makes progress: no time to sleep
  bool waiting_ = false;  // a drain waits for room to be made
  bool said_away_ = false;
  bool said_refused_ = false;
};

}  // namespace tidepool
