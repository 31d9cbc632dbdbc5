// SPDX-License-Identifier: Apache-2.0
// What the manager's verbs, its workers and its recovery share: the state under one mutex, the way
// of a change into the store, and the queue of regions to work on. A change is decided and applied
// under the mutex, made durable outside of it, and only then told to anyone.
#pragma once

#include <atomic>
#include <deque>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "fabricmgr/manager/awake_time.h"
#include "fabricmgr/manager/driver_table.h"
#include "fabricmgr/manager/manager.h"
#include "fabricmgr/manager/state.h"
#include "fabricmgr/store/followed_store.h"
#include "fabricmgr/store/store.h"
#include "runtime/base/mutex.h"

namespace tidepool::fabric {

class Step;

/// What was asked, condensed, so that a key that comes again with another request is noticed.
class Request {
 public:
  template <typename... Parts>
  explicit Request(std::string verb, const Parts&... parts) : verb_(std::move(verb)) {
    (add(parts), ...);
  }
  const std::string& verb() const { return verb_; }
  Digest digest() const;

 private:
  void add(const std::string& text) { fields_.push_back(text); }
  void add(uint64_t number) { fields_.push_back(std::to_string(number)); }

  std::string verb_;
  std::vector<std::string> fields_;
};

/// One action of one device: what it is to hold.
struct DeviceAction {
  Device device;
  Action action = Action::kAttach;
  Grant grant;
};

class Manager::Impl {
 public:
  Impl(std::unique_ptr<Store> store_to_own, const ManagerOptions& options_to_use)
      : options(options_to_use),
        store(std::move(store_to_own)),
        drivers(options.drivers, leadership),
        awake(*options.clock, options.longest_gap),
        cleaned_time(options.wall_clock->now()) {}
  Impl(std::unique_ptr<FollowedStore> store_to_own, const ManagerOptions& options_to_use);
  ~Impl();

  // --- following.cc: see Manager::follow().
  Status loadFollowed() TP_EXCLUDES(mutex);
  Status keepUp(Nanoseconds wait) TP_EXCLUDES(mutex);

  // --- impl.cc: steps and keys.
  /// A verb of one step. `body` checks, then changes; it runs under the mutex and gets the manager
  /// and the step.
  template <typename Body>
  Result<Answer> perform(const Caller& caller, const Request& request, Subject subject, Body body)
      TP_EXCLUDES(mutex);
  /// Returns once `index` is durable. An error makes the manager refuse everything until tick() has
  /// loaded the state anew.
  Status settle(Index index) TP_EXCLUDES(mutex);
  Status checkUsable() const TP_REQUIRES(mutex);
  /// The answer that the key got before, if it is known; otherwise the key is taken.
  Result<std::optional<Answer>> takeKey(const Caller& caller, const Request& request)
      TP_EXCLUDES(mutex);
  void leaveKey(const Caller& caller) TP_EXCLUDES(mutex);
  void rememberKey(Step* step, const Caller& caller, const Request& request,
                   KeyRecord::State key_state, uint64_t id, const Result<Answer>& answer)
      TP_REQUIRES(mutex);

  // --- leading.cc
  using Opened = std::map<DeviceId, std::shared_ptr<DeviceDriver>>;
  /// Above `known`, and above the last one. Errors: the store's.
  Status beginTerm(Term known);
  /// The devices that obey. While one obeys a predecessor that seems to be alive, it is asked
  /// again, for ManagerOptions::patience; if one knows a higher term, and this manager is to outbid
  /// that, it begins a new one. Errors: the store's.
  Result<Opened> openAll(const std::vector<Device>& devices) TP_EXCLUDES(mutex);
  /// Errors: kConflict when devices obey another manager: for good, since what they hold by now is
  /// not what the state says; those of Store::mayAct().
  Status checkInCharge() const;
  /// checkUsable() and checkInCharge().
  Status checkMayChange() const TP_REQUIRES(mutex);
  void saySuperseded() TP_EXCLUDES(mutex);
  /// A device that was removed: if it holds nothing, another fabric may have it next.
  void letGo(DeviceId device) TP_EXCLUDES(mutex);

  // --- device_actions.cc: what devices are told.
  /// Under the mutex: the actions that the region's open intents stand for.
  std::vector<DeviceAction> actionsOf(const Region& region) TP_REQUIRES(mutex);
  DeviceAction actionOf(const Intent& intent, const Region& region) TP_REQUIRES(mutex);
  Status act(const DeviceAction& action) TP_EXCLUDES(mutex);
  Result<ScrubEvidence> erase(const DeviceAction& action) TP_EXCLUDES(mutex);
  /// Why the host gets nothing of the device now.
  Obstacle obstacleOf(const DeviceEntry& entry, HostId host) TP_REQUIRES(mutex);
  std::vector<DeviceRoom> rooms(HostId host) TP_REQUIRES(mutex);
  /// Whether `to` may have the region instead of its host. Errors: kRefused, a device has no head.
  Status checkHeads(const Region& region, const Host& to) TP_REQUIRES(mutex);

  // --- changes.cc: what several verbs do to the state. All append to the step.
  /// Cuts the host off: fenced, a new epoch, and an intent to revoke for each device. What was to
  /// become the end of the region is taken back.
  void fence(Step* step, RegionEntry* entry) TP_REQUIRES(mutex);
  /// Lost, and no device has anything of it or is yet to be told that it has not.
  bool isNothing(const RegionEntry& entry) TP_REQUIRES(mutex);
  void dropIntents(Step* step, RegionId region) TP_REQUIRES(mutex);
  Operation newOperation(const Step& step, OperationKind kind, const std::string& actor)
      TP_REQUIRES(mutex);
  /// It goes on by force once so much time has passed; 0: never.
  void setDeadline(Operation* operation, Nanoseconds left) TP_REQUIRES(mutex);
  /// At least 1; 0: never, or it is over.
  Nanoseconds deadlineLeft(OperationId operation) TP_REQUIRES(mutex);
  void finish(Step* step, OperationId operation, OperationState how, const std::string& text)
      TP_REQUIRES(mutex);
  /// The region is free: its operation is done, and perhaps its host's.
  void freed(Step* step, RegionEntry* entry, RegionEvent last) TP_REQUIRES(mutex);
  /// A region of the host is no more: if it was the last one, a drain or fence of the host is done.
  void emptied(Step* step, HostId host) TP_REQUIRES(mutex);
  /// Why the reserved region must not become its host's any more. Errors: kRefused.
  Status checkWanted(const RegionEntry& reserved) TP_REQUIRES(mutex);
  /// The move into the region, if there is one, has failed: what was to be moved stays.
  void failMove(Step* step, RegionId target, const Error& why) TP_REQUIRES(mutex);
  /// The region is its host's again, or for the first time; who waits with a key is told. What is
  /// to be moved to it is drained from now on.
  void attached(Step* step, RegionEntry* entry) TP_REQUIRES(mutex);
  /// Of a region that cannot be completed: nobody has granted anything of it; or somebody may have,
  /// then it is taken back and erased, by an operation.
  void cancel(Step* step, RegionEntry* entry, const Error& why) TP_REQUIRES(mutex);
  void undo(Step* step, RegionEntry* entry, const Error& why) TP_REQUIRES(mutex);
  /// As undo(), without an operation.
  void takeBack(Step* step, RegionEntry* entry, const Error& why) TP_REQUIRES(mutex);
  /// The grown end becomes part of its region.
  void merge(Step* step, RegionEntry* end, RegionEntry* into) TP_REQUIRES(mutex);
  void fenceAll(Step* step, HostEntry* host, const std::string& actor) TP_REQUIRES(mutex);
  void resolveKey(Step* step, RegionId region, const Result<Answer>& answer) TP_REQUIRES(mutex);
  Nanoseconds leaseLeft(HostId host) TP_REQUIRES(mutex);
  /// For lines of the log; "-" if it is nobody.
  std::string hostName(HostId host) TP_REQUIRES(mutex);
  /// The lease begins anew.
  void renew(const Host& host) TP_REQUIRES(mutex);
  /// Errors: kConflict while its devices are being waited for.
  Status checkIdle(const RegionEntry& entry) TP_REQUIRES(mutex);

  // --- worker.cc: operations.
  void startWorkers();
  void work() TP_EXCLUDES(mutex);
  void enqueue(RegionId region) TP_REQUIRES(mutex);
  /// One step of the region's way; true if there is more to do at once.
  bool advance(RegionId region) TP_EXCLUDES(mutex);

  /// A device that has bytes of it is yet to be told that another region has become smaller, or
  /// will not become larger: perhaps by just these bytes.
  bool mustWait(RegionId region) TP_REQUIRES(mutex);

  // --- recovery.cc
  /// Loads the state and compares it with the devices.
  Status recover() TP_EXCLUDES(mutex);
  /// Opens a device and takes it into use, if what it holds agrees with the state. Errors:
  /// kCorrupt, the device then stays out of use until it agrees; the store's. The device's own only
  /// mark it unreachable.
  Status bringIn(const Device& device) TP_EXCLUDES(mutex);
  Status takeIn(const Device& device, std::shared_ptr<DeviceDriver> driver) TP_EXCLUDES(mutex);
  Status compare(DeviceEntry* device, const std::vector<GrantReport>& reports,
                 std::vector<RegionId>* to_forget) TP_REQUIRES(mutex);
  Status adopt(DeviceEntry* device, const GrantReport& report) TP_REQUIRES(mutex);
  void lose(RegionEntry* entry, const Device& device) TP_REQUIRES(mutex);
  void sayLost(const Region& region, const Device& device, const char* how) TP_REQUIRES(mutex);
  /// A transfer whose bytes are gone in part has failed: the region is lost.
  void loseTransfer(Step* step, RegionEntry* entry) TP_REQUIRES(mutex);
  bool isTransferred(const RegionEntry& entry) TP_REQUIRES(mutex);
  /// A region whose grant was under way when the last manager ended: completes or undoes it.
  void settleReserved(RegionId region) TP_EXCLUDES(mutex);

  /// A line for the log; it is written once the mutex is free.
  void say(Weight weight, std::string line) TP_REQUIRES(mutex);
  void writeLines() TP_EXCLUDES(mutex);

  // --- leases.cc
  void expireLeases() TP_EXCLUDES(mutex);
  /// Holds expiry while too many hosts are silent at once, and lets it go on when they are not.
  void holdExpiry() TP_REQUIRES(mutex);
  /// It has something to lose, and was not heard of for half its lease.
  bool isSilent(const HostEntry& entry) TP_REQUIRES(mutex);
  /// Every silent host gets a new lease.
  void resumeExpiry(Step* step) TP_REQUIRES(mutex);
  /// Fences hosts whose lease is over, unless that is held; and fenced ones that have regions yet.
  void takeFromSilent(const std::string& actor) TP_REQUIRES(mutex);

  // --- time.cc
  void noteAbsence() TP_EXCLUDES(mutex);
  /// Nobody's lease could be renewed while the store did not answer: they begin anew.
  void noteSuspension() TP_EXCLUDES(mutex);
  void expireDeadlines() TP_EXCLUDES(mutex);
  /// Writes down what is left, now and then: so much is left after a restart.
  Index keepDeadline(Operation operation, Nanoseconds left) TP_REQUIRES(mutex);
  void dropOldRecords() TP_EXCLUDES(mutex);
  void dropOldAudit() TP_EXCLUDES(mutex);
  void lookAtDevices() TP_EXCLUDES(mutex);
  void retryDevices() TP_EXCLUDES(mutex);
  /// An event and a line for each device that answers no more, or again.
  void tellOfDevices() TP_EXCLUDES(mutex);
  void reloadIfBroken() TP_EXCLUDES(mutex);

  const ManagerOptions options;
  const std::unique_ptr<Store> store;
  FollowedStore* const followed = nullptr;  // the store, if another manager writes it
  Leadership leadership;
  DriverTable drivers;
  bool outbids = false;  // terms that devices know; while the state is loaded

  Mutex mutex;
  CondVar changed;
  State state TP_GUARDED_BY(mutex);
  /// Of the last change of `state`; and the highest that was ever given to one, also to changes
  /// that the store then lost.
  Index last_index TP_GUARDED_BY(mutex);
  Index highest_index TP_GUARDED_BY(mutex);
  /// The store failed: what is in memory may not be what is durable.
  bool broken TP_GUARDED_BY(mutex) = false;
  std::string trouble TP_GUARDED_BY(mutex);  // why it is broken
  /// The state is being loaded after a failure: no requests yet.
  bool loading TP_GUARDED_BY(mutex) = false;
  /// What was appended up to here is older than the state's last loading.
  Index loaded_at TP_GUARDED_BY(mutex);
  bool closing TP_GUARDED_BY(mutex) = false;
  /// Verbs and workers that have a device action or a commit under way.
  unsigned active TP_GUARDED_BY(mutex) = 0;
  std::set<std::pair<std::string, std::string>> keys_in_flight TP_GUARDED_BY(mutex);
  /// Keys of requests that the last manager did not finish, by the region that they wait for.
  std::map<RegionId, KeyRecord> keys_waiting TP_GUARDED_BY(mutex);
  std::deque<RegionId> jobs TP_GUARDED_BY(mutex);
  std::set<RegionId> queued TP_GUARDED_BY(mutex);
  /// Regions whose work met a device that does not answer; taken up again by tick().
  std::set<RegionId> stuck TP_GUARDED_BY(mutex);
  AwakeTime awake TP_GUARDED_BY(mutex);
  Nanoseconds absence_said TP_GUARDED_BY(mutex);                   // of awake.missed()
  std::map<HostId, Nanoseconds> lease_until TP_GUARDED_BY(mutex);  // of awake
  /// Too many hosts are silent: no lease runs out.
  bool expiry_held TP_GUARDED_BY(mutex) = false;
  bool superseded_said TP_GUARDED_BY(mutex) = false;
  uint64_t expired TP_GUARDED_BY(mutex) = 0;  // leases, since the start
  std::vector<std::pair<Weight, std::string>> lines TP_GUARDED_BY(mutex);
  std::atomic<bool> has_lines{false};  // relaxed: saves a look that would find nothing
  std::map<OperationId, Nanoseconds> deadlines TP_GUARDED_BY(mutex);  // of options.clock
  std::map<RegionId, Bytes> progress TP_GUARDED_BY(mutex);
  /// What devices hold of regions with an open intent: as they said when they were inspected, or
  /// since they have done their part of it.
  std::map<std::pair<DeviceId, RegionId>, GrantReport> reported TP_GUARDED_BY(mutex);
  std::set<DeviceId> inspected TP_GUARDED_BY(mutex);
  Index cleaned_at TP_GUARDED_BY(mutex);  // of the last dropOldRecords()
  Nanoseconds cleaned_time TP_GUARDED_BY(mutex);
  /// What is shown does not follow from the store any more: by keepUp() alone.
  bool loading_due = false;
  /// The store did not let it act when tick() last looked: by tick() alone.
  bool suspended = false;
  Nanoseconds looked_at;       // devices; of options.clock, by tick() alone
  Nanoseconds audit_due_from;  // as looked_at: when old audit records are looked for next
  std::vector<std::thread> workers;
};

}  // namespace tidepool::fabric
