// SPDX-License-Identifier: Apache-2.0
// The regions of this host and who has them: hands regions to programs, takes them back, carries
// drains and revocations out. Belongs to the loop's thread; what blocks is done through the link.
//
// A region is *standing* when an operator assigned it: programs get it one after the other, erased
// in between, all of the same user. It is *on demand* when the agent asked for it on behalf of a
// program: it goes back to the manager with that. Nothing is handed out before the journal has it.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "fabricmgr/agent/journal.h"
#include "fabricmgr/agent/manager_link.h"
#include "fabricmgr/agent/programs.h"
#include "fabricmgr/agent/region_access.h"
#include "fabricmgr/api/rate_limit.h"
#include "runtime/base/clock.h"

namespace tidepool::agent {

enum class LogLevel : uint8_t { kInfo, kWarning };
using Log = std::function<void(LogLevel, const std::string&)>;

struct RegionCounts {
  uint64_t regions = 0, held = 0, ready = 0, draining = 0, dirty = 0;
  Bytes bytes, held_bytes;
};

class Regions {
 public:
  struct Setup {
    EventLoop* loop;
    ManagerLink* link;
    Journal* journal;
    Programs* programs;
    std::string host;
    Log log;
    /// Asks for a new list of the host's regions; apply() or unlisted() follows.
    std::function<void()> relist;
    /// Without one what pools have may be another's.
    const Lease* lease;
  };
  explicit Regions(Setup setup);
  ~Regions();

  /// Takes over what the journal says. Processes that have ended meanwhile give back.
  void restore();

  // What programs ask for.
  void ask(ProgramId program, const agent_wire::Request& request);
  void reclaim(ProgramId program, const agent_wire::Request& request);
  /// What this client of its process had of an earlier agent, and has not reclaimed, it was never
  /// told of: it is given back.
  void reclaimedAll(ProgramId program);
  void giveBack(ProgramId program, const agent_wire::Request& request);
  void reportLeft(ProgramId program, const agent_wire::Request& request);
  /// Its connection has ended by itself: it has left all it had.
  void programGone(ProgramId program);
  /// The agent ended the connection: the process keeps what it has, until it ends or reclaims it.
  void programCutOff(ProgramId program);

  // What the manager says.
  /// The moment at which a list is asked for: it cannot show what changed later.
  uint64_t moment() const { return moment_; }
  /// The host's regions, all of them, as of `moment` or later.
  void apply(const std::vector<SeenRegion>& list, uint64_t moment);
  /// There is no list to be had.
  void unlisted(const Error& error);
  /// The host is cut off: it has nothing any more.
  void fenced(const Error& why);
  /// The manager answers again, or time has passed: what failed is tried again.
  void retry();
  /// The lease is over and the manager away: asks the devices whose regions cannot refuse anybody.
  void checkGrants();

  RegionCounts counts() const;

 private:
  /// A process that has a region.
  struct Hold {
    ProgramId program = 0;  // its connection; 0: none, its end is watched
    ClientName client = kNoName;
    UniqueFd process;
    std::unique_ptr<Trigger> ended;
  };
  struct Asking {
    ProgramId program;
    agent_wire::Request request;
    uint64_t moment = 0;  // a list of this moment, or later, has to be seen first
  };
  enum class Listed : uint8_t { kNo, kYes };
  enum class Work : uint8_t { kNone, kAttaching, kErasing, kReleasing };
  struct Entry {
    uint64_t id = 0;
    Epoch epoch{};
    Bytes size;
    bool on_demand = false;
    bool confirmed = false;  // by the manager, since the agent has started
    bool draining = false;
    uint64_t replaces = 0;    // for who has this region, which is being moved; 0: for anyone
    Nanoseconds drain_until;  // of clock_: when it goes on by force; 0: never
    bool clean = false;
    Work work = Work::kNone;
    std::optional<uid_t> owner;  // the one user who may have it
    std::optional<RegionAccess> access;
    std::shared_ptr<const Attached> attached;
    std::optional<Asking> waiting;  // gets it when it is attached and erased
    std::map<ProcessId, Hold> holds;
    Nanoseconds reported;  // the last progress of its drain
    uint64_t since = 0;    // the moment at which it became known here
  };

  Entry* find(uint64_t region, Epoch epoch);
  Entry* findHeld(ProgramId program, const agent_wire::Request& request);
  void decide(Asking asking, Listed listed);
  Entry* bestFor(const Asking& asking, const Peer& peer);
  /// Programs have the region that is being moved to this one.
  bool isAwaited(const Entry& entry) const;
  /// Whether it may go to the process, and not to others first.
  bool isFor(const Entry& entry, const ProcessId& process) const;
  void assign(const Asking& asking);
  void assigned(const Asking& asking, const Result<api::JsonValue>& answer);
  void attach(Entry& entry);
  void attachDone(uint64_t id, Epoch epoch, Result<std::pair<RegionAccess, Attached>> outcome);
  void erase(Entry& entry);
  void release(Entry& entry);
  /// Addresses of devices that other regions of this host are on.
  std::set<std::string> devicesBut(uint64_t region) const;
  void handOut(Entry& entry);
  void addHold(Entry& entry, const Peer& peer, ProgramId program);
  void dropHold(Entry& entry, const ProcessId& process);
  std::set<uint64_t> takeHeld(ProgramId program);
  void watchEnd(Entry& entry, const ProcessId& process);
  /// What is next for a region.
  void settle(Entry& entry);
  void settle(uint64_t id);
  void applyOne(const SeenRegion& seen, uint64_t moment);
  void takeSize(Entry& entry, Bytes size);
  void takeDraining(Entry& entry, const SeenRegion& seen);
  std::string drainText(const Entry& entry) const;
  void tellHolders(const Entry& entry, agent_wire::NoticeKind kind, Bytes size, ErrorCode status,
                   std::string_view text);
  /// The region is not this host's any more: whoever has it has lost it.
  void lost(uint64_t id, ErrorCode code, const std::string& why);
  void refuse(const Asking& asking, const Error& error);
  void refuseWaiting(Entry& entry, const Error& error);
  void answered(ProgramId program);
  /// The journal could not be written: what it says already is on the safe side.
  void note(const Status& written);
  void warn(const char* what, uint64_t region, const Error& error);

  const Setup setup_;
  const Attachers attachers_;
  MonotonicClock clock_;
  // Programs' requests are not to eat up what the manager lets this host ask: leases depend on it.
  api::TokenBucket asks_;
  api::TokenBucket reports_;
  std::map<uint64_t, Entry> entries_;
  std::map<ProgramId, std::set<uint64_t>> held_by_;
  std::map<ProgramId, unsigned> asking_;   // requests under way
  std::vector<Asking> unlisted_;           // wait for a list
  std::map<uint64_t, uint64_t> released_;  // regions, and the moment at which they were given back
  unsigned assigning_ = 0;
  uint64_t moment_ = 1;
  bool failed_ = false;  // something is to be tried again
};

}  // namespace tidepool::agent
