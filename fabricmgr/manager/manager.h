// SPDX-License-Identifier: Apache-2.0
// The fabric manager: the state of pools, devices, hosts and regions, and every verb that changes
// it. A verb returns when what it did is durable; what it starts but does not wait for is an
// operation. Thread-safe: call it from any number of threads; verbs on regions block for device
// actions (a few milliseconds, or the device's time-out), others for one commit. Names are those of
// checkName().
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "fabricmgr/device/device_driver.h"
#include "fabricmgr/manager/views.h"
#include "fabricmgr/model/records.h"
#include "fabricmgr/model/types.h"
#include "fabricmgr/placement/request.h"
#include "runtime/base/clock.h"
#include "runtime/base/result.h"

namespace tidepool::fabric {

class FollowedStore;
class Store;

enum class Mode : uint8_t { kDo = 0, kDryRun = 1 };
/// kForce does what would hurt somebody; without it such a verb is refused (kRefused), saying whom.
enum class Force : uint8_t { kNo = 0, kForce = 1 };

/// Whether it is the error of a verb whose thing was modified after Caller::expected.
bool isOutdated(const Error& error);

/// Who asks, and how. Goes with every verb that changes something.
struct Caller {
  std::string actor = "local";  // for the audit: "operator:ann", "host:node7"
  /// Idempotency key, at most 128 bytes; empty: none. The same key of the same actor with the same
  /// request gets the same answer for a day, also after a restart; with another request it is
  /// refused (kConflict), as is a second request while the first is still under way.
  std::string key;
  /// Refuse (kConflict) if the thing that is to change was modified after this index; 0: never
  /// mind.
  Index expected;
  /// kDryRun: check everything, change nothing. The answer then has index 0.
  Mode mode = Mode::kDo;
};

struct Answer {
  Index index;            // of the change; durable
  uint64_t id = 0;        // of the thing: pool, device, host or region
  OperationId operation;  // that goes on in the background; 0: all is done
  bool operator==(const Answer&) const = default;
};

struct DeviceSpec {
  std::string name, pool, address, domain;
  Bytes capacity;     // a multiple of the granularity; 0: ask the device
  Bytes granularity;  // a power of two from 4 KiB to 1 GiB; 0: 2 MiB
  uint32_t heads = 0;
};

struct HostSpec {
  std::string name, domain;
  Nanoseconds lease;  // 1 s to 1 day; 0: 30 s
};

struct AssignSpec {
  std::string host;
  std::string label;  // of the region; may be empty
  std::string pool;   // empty: any of the class
  Bytes size;
  MemoryClass memory_class = MemoryClass::kAny;
  Constraints constraints;
};

/// Where a region is to be moved: to one device, to such as have labels, or, if neither is given,
/// to any of its pool. Its memory stays of the same class.
struct MoveSpec {
  std::string device;    // its name; empty: any that suits
  Selector selector;     // of devices; an empty one finds all
  Nanoseconds deadline;  // after which the host is not waited for any more, from now; 0: never
};

/// How much an operator should mind a line of the log.
enum class Weight : uint8_t { kInfo = 0, kWarning = 1, kError = 2 };

struct ManagerOptions {
  DriverFactory drivers;
  /// It becomes what devices obey, whatever manager of the fabric they obey now.
  TakeOver take_over = TakeOver::kNo;
  /// For so long open() waits for devices whose last manager may have died just now, without a
  /// word: they obey another one once they have not heard of it for 15 s (memserver::Allegiance).
  Nanoseconds patience;
  /// Time that passes: leases, deadlines. And time of day: records, keys. Not owned.
  const Clock* clock = nullptr;
  const Clock* wall_clock = nullptr;
  /// What counts, at most, as time of leases between two looks at the clock: pulse(), tick() and
  /// heartbeats. More means that the manager did not run.
  Nanoseconds longest_gap{250'000'000};
  /// No lease runs out while two hosts or more, and more than this share of those that hold
  /// something, are silent; until they are heard of, or expireLeases() or resumeLeases(). 100: it
  /// always does.
  unsigned hold_percent = 33;
  /// Audit records are removed, the oldest first, once they are older than `audit_age` and there
  /// are `audit_records` newer ones; by about a tenth more, so that it is not done for each. 0:
  /// that condition is none; both 0: they are kept for ever.
  Nanoseconds audit_age;
  uint64_t audit_records = 0;
  /// Lines for the log, of what nobody asked for: hosts that are cut off, for example. Called from
  /// any thread: must not call the manager. May be empty.
  std::function<void(Weight, const std::string&)> say;
  unsigned workers = 2;  // threads that carry operations on
  /// Told every time more has become durable; for waking watchers. Called from a thread of the
  /// manager's: must neither block nor call the manager. May be empty.
  std::function<void(Index)> on_durable;
};

class Manager {
 public:
  class Impl;

  /// Begins a term of the fabric, loads the state, asks every device what it holds, settles what
  /// was under way when the last manager ended, and carries operations on. Only then does it
  /// return. A device that does not answer is marked unreachable; what concerns it is settled when
  /// it answers (tick()). Errors: those of the store. A device that contradicts the store beyond
  /// repair is left out of use, as if it did not answer. If a device obeys another manager of the
  /// fabric, this one shows what it has, and changes nothing (kConflict) from then on.
  static Result<std::unique_ptr<Manager>> open(std::unique_ptr<Store> store,
                                               const ManagerOptions& options);
  /// Shows what another manager writes into the store, and does nothing else: verbs are refused
  /// (kConflict), no device is asked, no lease runs out. What only that manager knows is left out
  /// of what is shown: see views.h. Of the options only the clocks and on_durable count. Errors:
  /// those of the store.
  static Result<std::unique_ptr<Manager>> follow(std::unique_ptr<FollowedStore> store,
                                                 const ManagerOptions& options);
  /// Of one that follows, to be called in a loop by one thread: shows what has been written since,
  /// after a wait of at most `wait` for it. Errors: those of the store; what was shown before goes
  /// on being shown.
  Status keepUp(Nanoseconds wait);
  /// Finishes the device actions that are under way; operations go on with the next open().
  ~Manager();
  Manager(const Manager&) = delete;
  Manager& operator=(const Manager&) = delete;

  /// As whom it speaks. Constant once it is open; of one that follows, who wrote the store last.
  Leader leader() const;
  /// Of one that follows: for how long it has not been known that index() is the latest one.
  std::optional<Nanoseconds> age() const;
  /// Whether the store lets it act on what it knows. Errors: as Store::mayAct().
  Status mayAct() const;

  // --- Pools. Errors: kInvalidArgument, kNotFound, kConflict (name taken, index, key).
  Result<Answer> addPool(const Caller& caller, const std::string& name, MemoryClass memory_class);
  /// Errors: kRefused while it has devices.
  Result<Answer> removePool(const Caller& caller, const std::string& name);

  // --- Devices. Adding needs the device to answer (kUnreachable), and to hold nothing (kConflict).
  Result<Answer> addDevice(const Caller& caller, const DeviceSpec& spec);
  Result<Answer> cordonDevice(const Caller& caller, const std::string& name);
  Result<Answer> uncordonDevice(const Caller& caller, const std::string& name);
  /// Cordons it, and drains every region that has bytes of it, by an operation each. It is empty
  /// when these are done: checkRemoveDevice(). Regions on their way back already are left to it.
  /// Errors: kConflict while a region of it is being given out or changed: the others are drained
  /// then; ask again.
  Result<Answer> drainDevice(const Caller& caller, const std::string& name, Nanoseconds deadline);
  /// kRefused with what checkRemoveDevice() says if regions are on it. By force these become lost.
  Result<Answer> removeDevice(const Caller& caller, const std::string& name, Force force);
  Result<RemovalReport> checkRemoveDevice(const std::string& name);

  /// Labels of a device, host or region, changed one by one. Errors: kInvalidArgument, kNotFound,
  /// kConflict. What changes nothing has index 0.
  Result<Answer> labelDevice(const Caller& caller, const std::string& name,
                             const LabelChange& change);
  Result<Answer> labelHost(const Caller& caller, const std::string& name,
                           const LabelChange& change);
  Result<Answer> labelRegion(const Caller& caller, RegionId region, const LabelChange& change);

  // --- Hosts.
  Result<Answer> addHost(const Caller& caller, const HostSpec& spec);
  /// Operation: every region of it is drained; it gets nothing new. `deadline` after which regions
  /// are taken by force, from now; 0: never.
  Result<Answer> drainHost(const Caller& caller, const std::string& name, Nanoseconds deadline);
  /// Back to active, from draining or, once it holds nothing any more, from fenced.
  Result<Answer> resumeHost(const Caller& caller, const std::string& name);
  /// All hosts that `selector` finds, in one change, which is durable as a whole or not at all:
  /// those that can be are resumed, and while expiry is held those that are silent get a new lease.
  /// A host that was modified after Caller::expected is refused by itself. A repeated key changes
  /// nothing: what was done then is told again, and of other hosts how they are now. Errors:
  /// kNotFound when the selector finds nobody, kConflict when what the key did is not known any
  /// more.
  Result<ResumedHosts> resumeHosts(const Caller& caller, const Selector& selector);
  /// Operation: cuts the host off from all it has, then erases that. Refused (kRefused) while its
  /// lease runs, unless by force.
  Result<Answer> fenceHost(const Caller& caller, const std::string& name, Force force);
  /// kRefused while it has regions.
  Result<Answer> removeHost(const Caller& caller, const std::string& name);
  Result<RemovalReport> checkRemoveHost(const std::string& name);
  /// The agent's heartbeat: all its regions are kept for another lease. Returns what is left of the
  /// lease, and whether there is news since `seen`, so that it need not ask. Not durable, no
  /// commit. Errors: kNotFound, kStaleEpoch when the host is fenced, kConflict when another manager
  /// is in charge.
  struct Renewal {
    Nanoseconds lease_left;
    Index modified;  // the latest index at which something of this host changed
  };
  Result<Renewal> renewLease(const std::string& host);

  /// While expiry is held (ManagerOptions::hold_percent): every silent host gets a new lease, and
  /// leases run out again. Otherwise it does nothing; the answer then has index 0.
  Result<Answer> resumeLeases(const Caller& caller);
  /// While expiry is held: it was right, the hosts whose lease is over are fenced. Otherwise as
  /// above.
  Result<Answer> expireLeases(const Caller& caller);

  // --- Regions. Blocking ones wait for their devices.
  /// What assign() would do now. Errors: kNoSpace, with what would do instead; kNotFound.
  Result<Plan> plan(const AssignSpec& spec);
  /// Chooses extents, has the devices grant them. Errors: as plan(); kRefused when the host is not
  /// active; kUnreachable when a device did not answer: nothing is assigned then.
  Result<Answer> assign(const Caller& caller, const AssignSpec& spec);
  /// As assign(), with exactly the extents of the plan. Errors: kConflict when a device of the plan
  /// or the host has changed since: plan again.
  Result<Answer> apply(const Caller& caller, const AssignSpec& spec, const Plan& plan);
  /// Grows at the end, or gives back from the end (an operation: that part is erased; the host must
  /// have left it). Only attached regions (kRefused).
  Result<Answer> resize(const Caller& caller, RegionId region, Bytes size, const Constraints& how);
  /// Operation: asks the host to move off. Ends when the region is free.
  Result<Answer> drainRegion(const Caller& caller, RegionId region, Nanoseconds deadline);
  /// Operation: a new region of the same size, name and labels takes the region's place, on devices
  /// that the region is not on. Blocks until these have granted it; in the same durable step the
  /// host is asked to move off the old one, which is then drained as by drainRegion(). Until that
  /// step the old one stays as it is, whatever fails. The answer's id is the new region's. Errors:
  /// as assign(); kNotFound for device and selector; kInvalidArgument when it is on the device
  /// already, or both are given; kRefused when the class is another, or the region is not attached
  /// or takes another one's place itself.
  Result<Answer> moveRegion(const Caller& caller, RegionId region, const MoveSpec& spec);
  /// Calls a drain or move off. What took a moved region's place is drained in its stead.
  Result<Answer> resumeRegion(const Caller& caller, RegionId region);
  /// What the host has still to move, for the drain's progress. Not durable. Errors: kPermission if
  /// the region is not this host's.
  Status reportDrain(const std::string& host, RegionId region, const DrainProgress& progress);
  /// Operation: revoke, erase, verify, free. The host itself gives back (`by_host` is its name),
  /// or, with an empty `by_host`, an operator takes: kRefused while the host's lease runs, unless
  /// by force.
  Result<Answer> releaseRegion(const Caller& caller, RegionId region, const std::string& by_host,
                               Force force);
  /// Operation: hands a region with its bytes to another host; the old one is cut off first.
  /// kRefused while the old host's lease runs, unless by force.
  Result<Answer> transferRegion(const Caller& caller, RegionId region, const std::string& to_host,
                                Force force);
  /// What `host` needs to use its region. Errors: kPermission if it is not this host's, kRefused if
  /// it is not attached or draining.
  Result<RegionAccess> access(const std::string& host, RegionId region);

  // --- Showing. Everything shown is durable. Errors: kNotFound, kInvalidArgument (limit), kIo.
  Result<Page<PoolInfo>> listPools(const PageRequest& page);
  Result<Page<DeviceInfo>> listDevices(const PageRequest& page, const std::string& pool,
                                       const Selector& selector = {});
  Result<Page<HostInfo>> listHosts(const PageRequest& page, const Selector& selector = {});
  Result<Page<RegionInfo>> listRegions(const PageRequest& page, const RegionFilter& filter);
  /// Running ones and, from the store, those that are over; newest ids last.
  Result<Page<Operation>> listOperations(const PageRequest& page);
  Result<PoolInfo> showPool(const std::string& name);
  Result<DeviceInfo> showDevice(const std::string& name);
  Result<HostInfo> showHost(const std::string& name);
  Result<RegionInfo> showRegion(RegionId region);
  Result<Operation> showOperation(OperationId operation);
  /// What proves that a region, now free, was erased: one for each device.
  Result<std::vector<ScrubEvidence>> evidence(RegionId region);
  Result<Totals> totals();
  /// Fills in what these ids are called. The names of what is gone stay empty.
  void nameAll(Names* names);

  // --- Watching and auditing.
  /// The latest durable index.
  Index index() const;
  /// Events after `since`, oldest first; at most `limit`, but never a part of an index. `host`:
  /// only what concerns it; empty: all. Errors: kNotFound when `since` is older than what is kept,
  /// or yet to come: list anew.
  struct Events {
    std::vector<Event> events;
    Index index;  // ask on from here
  };
  Result<Events> eventsSince(Index since, uint32_t limit, const std::string& host);
  /// Audit records with a sequence above `cursor`, oldest first.
  Result<Page<AuditRecord>> listAudit(const PageRequest& page);
  /// Reads the whole audit and checks its chain.
  Result<AuditVerdict> verifyAudit();

  // --- Time.
  /// To be called about once a second: expires leases (the hosts are fenced), deadlines and old
  /// keys, looks whether devices still answer, and asks unreachable ones again. Not by two threads
  /// at once.
  void tick();
  /// To be called ten times a second, by a thread that never waits for disks or devices: by this
  /// the manager knows that it ran. Leases stand still while nobody calls it.
  void pulse();

  /// Waits until no operation is under way, except those that wait for a host, a deadline or an
  /// unreachable device. For tests and for shutting down in order.
  void settle();

 private:
  explicit Manager(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace tidepool::fabric
