// SPDX-License-Identifier: Apache-2.0
// A manager that follows another one's store in etcd shows what that one shows: in random
// histories, over deaths of the leader, large changes, an etcd that is away or has dropped what was
// to be read; and it changes nothing.
#include "fabricmgr/store/etcd_replica.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <random>

#include "fabricmgr/manager/state.h"
#include "fabricmgr/model/hash.h"
#include "fabricmgr/store/etcd_writes.h"
#include "tests/fabricmgr/etcd_backing.h"

namespace tidepool::fabric {
namespace {

using ::testing::HasSubstr;
using Random = std::mt19937_64;

constexpr PageRequest kEverything = {0, 10'000};

void add(std::string* text, const DeviceInfo& info) {
  *text += etcdValue(info.device) + textOf(info.device.labels) + " " + info.pool + " " +
           std::to_string(info.free.value()) + " " + std::to_string(info.largest_free.value()) +
           " " + std::to_string(info.regions) + " " + std::to_string(info.hosts) + "\n";
}
void add(std::string* text, const HostInfo& info) {
  *text += etcdValue(info.host) + textOf(info.host.labels) + " " + std::to_string(info.regions) +
           " " + std::to_string(info.held.value()) + "\n";
}
void add(std::string* text, const RegionInfo& info) {
  const Region& region = info.region;
  const StateRecord state = {region.host, region.state, region.epoch, region.modified};
  *text += etcdValue(region) + etcdValue(state) + textOf(region.labels) + " " + info.host + " " +
           std::to_string(region.size.value()) + " " + std::to_string(info.operation.value()) +
           " " + std::to_string(info.replaces.value()) + "\n";
}
void add(std::string* text, const PoolInfo& info) {
  *text += etcdValue(info.pool) + " " + std::to_string(info.devices) + " " +
           std::to_string(info.capacity.value()) + " " + std::to_string(info.free.value()) + "\n";
}
void add(std::string* text, Operation operation) {
  operation.deadline = Nanoseconds();  // of the leader's clock
  *text += etcdValue(std::move(operation)) + "\n";
}

template <typename T>
void addAll(std::string* text, const char* what, const Page<T>& page) {
  *text += std::string(what) + "\n";
  for (const T& item : page.items) add(text, item);
}

/// All that both of them know.
std::string shownBy(Manager& manager) {
  std::string text = "index " + std::to_string(manager.index().value()) + "\n";
  addAll(&text, "pools", must(manager.listPools(kEverything)));
  addAll(&text, "devices", must(manager.listDevices(kEverything, "")));
  addAll(&text, "hosts", must(manager.listHosts(kEverything)));
  addAll(&text, "regions", must(manager.listRegions(kEverything, {})));
  addAll(&text, "operations", must(manager.listOperations(kEverything)));
  const Totals totals = must(manager.totals());
  text += totals.fabric + " " + std::to_string(totals.term.value());
  for (const uint64_t count : totals.regions_by_state) text += " " + std::to_string(count);
  for (const Event& event : must(manager.eventsSince(Index(), 10'000, "")).events) {
    text += "\n" + etcdValue(event);
  }
  for (const AuditRecord& record : must(manager.listAudit(kEverything)).items) {
    text += "\n" + hexOf(record.hash);
  }
  return text;
}

class ReplicaTest : public ::testing::Test {
 protected:
  explicit ReplicaTest(EtcdServer* server = nullptr) {
    const std::string name = ::testing::UnitTest::GetInstance()->current_test_info()->name();
    target = (server == nullptr ? sharedEtcd() : *server).target(name);
    if (server == nullptr) backing = std::make_unique<EtcdBacking>(&house, name);
  }
  Result<std::unique_ptr<Manager>> tryFollow() {
    ManagerOptions options;
    options.clock = &house.clock;
    options.wall_clock = &house.wall;
    return Manager::follow(followEtcdStore(target), options);
  }
  std::unique_ptr<Manager> follow() { return must(tryFollow()); }
  /// Until it shows what the other one shows; errors that pass are passed over.
  static void catchUp(Manager& follower, Manager& leader) {
    while (follower.index() < leader.index() || follower.leader().term < leader.leader().term) {
      (void)follower.keepUp(kSecond);
    }
  }

  FabricHouse house;
  EtcdTarget target;
  std::unique_ptr<EtcdBacking> backing;
};

/// Verbs of all kinds; most of them change something.
class Verbs {
 public:
  Verbs(FabricHouse* house, uint64_t seed) : house_(*house), random_(seed) {}

  void begin(Manager& manager) {
    must(manager.addPool({}, "pool", MemoryClass::kCxl));
    for (const char* name : {"d1", "d2", "d3"}) {
      must(manager.addDevice({}, house_.poolFile(name, 64)));
    }
    for (const char* name : {"h1", "h2", "h3"}) must(manager.addHost({}, hostSpec(name)));
  }
  void one(Manager& manager) {
    const std::string host = name("h", 5), device = name("d", 4);
    const RegionId region = someRegion(manager);
    switch (random_() % 18) {
      case 0:
        return ignore(manager.addHost({}, hostSpec(host)));
      case 1:
        return ignore(manager.removeHost({}, host));
      case 2:
        return ignore(manager.labelHost({}, host, label()));
      case 3:
        return ignore(manager.labelDevice({}, device, label()));
      case 4:
        return ignore(manager.labelRegion({}, region, label()));
      case 5:
      case 6:
        return ignore(manager.releaseRegion({}, region, "", Force::kForce));
      case 7:
        return ignore(manager.resize({}, region, Bytes((random_() % 12 + 1) * kGrain), {}));
      case 8:
        return ignore(manager.drainRegion({}, region, kSecond * (random_() % 2) * 60));
      case 9:
        return ignore(manager.resumeRegion({}, region));
      case 10:
        return ignore(manager.moveRegion({}, region, {}));
      case 11:
        return ignore(manager.transferRegion({}, region, host, Force::kForce));
      case 12:
        return ignore(manager.fenceHost({}, host, Force::kForce));
      case 13:
        return ignore(manager.resumeHost({}, host));
      case 14:
        return ignore(random_() % 2 == 0 ? manager.cordonDevice({}, device)
                                         : manager.uncordonDevice({}, device));
      case 15:
        if (random_() % 4 == 0) return ignore(manager.removeDevice({}, device, Force::kForce));
        return ignore(manager.addDevice({}, house_.poolFile(device, 64)));
      default: {
        AssignSpec spec = want(host, random_() % 12 + 1);
        if (random_() % 2 == 0) spec.constraints.shape = Shape::kSpread;
        return ignore(manager.assign({}, spec));
      }
    }
  }
  uint64_t below(uint64_t end) { return random_() % end; }

 private:
  static void ignore(const Result<Answer>&) {}
  std::string name(const char* prefix, uint64_t below) {
    return prefix + std::to_string(random_() % below + 1);
  }
  LabelChange label() {
    LabelChange change;
    change["k" + std::to_string(random_() % 3)] =
        random_() % 3 == 0 ? std::nullopt : std::optional("v" + std::to_string(random_() % 9));
    return change;
  }
  RegionId someRegion(Manager& manager) {
    const auto listed = must(manager.listRegions(kEverything, {})).items;
    return listed.empty() ? RegionId(1) : listed[random_() % listed.size()].region.id;
  }

  FabricHouse& house_;
  Random random_;
};

/// TIDEPOOL_HISTORY_SEED: another history.
TEST_F(ReplicaTest, ShowsWhatTheLeaderShows) {
  const char* const seed = std::getenv("TIDEPOOL_HISTORY_SEED");
  Verbs verbs(&house, seed == nullptr ? 7 : std::strtoull(seed, nullptr, 10));
  auto leader = house.open();
  verbs.begin(*leader);
  auto follower = follow();
  for (int step = 0; step < 60; ++step) {
    // Few or many changes are read at once; those of some steps while they are made.
    for (uint64_t count = verbs.below(2) == 0 ? 1 : verbs.below(20); count > 0; --count) {
      verbs.one(*leader);
      if (step % 3 == 0) (void)follower->keepUp(Nanoseconds());
    }
    if (step % 10 == 9) {
      leader.reset();
      leader = house.open();
    }
    leader->settle();
    ASSERT_NO_FATAL_FAILURE(catchUp(*follower, *leader));
    const std::string expected = shownBy(*leader);
    ASSERT_EQ(shownBy(*follower), expected) << "step " << step;
    if (step % 10 == 0) {
      follower = follow();
      ASSERT_EQ(shownBy(*follower), expected) << "read anew, step " << step;
    }
  }
}

TEST_F(ReplicaTest, ChangesNothingAndSaysWhatItDoesNotKnow) {
  auto leader = house.open();
  Verbs(&house, 1).begin(*leader);
  const RegionId region(must(leader->assign({}, want("h1", 4))).id);
  auto follower = follow();
  const Index before = leader->index();
  EXPECT_EQ(codeOf(follower->addHost({}, hostSpec("h9"))), ErrorCode::kConflict);
  EXPECT_EQ(codeOf(follower->assign({}, want("h1", 4))), ErrorCode::kConflict);
  EXPECT_EQ(codeOf(follower->releaseRegion({}, region, "", Force::kForce)), ErrorCode::kConflict);
  EXPECT_EQ(codeOf(follower->renewLease("h1")), ErrorCode::kConflict);
  EXPECT_EQ(leader->index(), before);
  EXPECT_EQ(must(follower->showHost("h1")).lease_left, std::nullopt);
  EXPECT_EQ(must(follower->showRegion(region)).drain_left, std::nullopt);
  EXPECT_EQ(must(follower->showDevice("d1")).health, DeviceHealth::kUnknown);
  EXPECT_TRUE(must(follower->totals()).follows);
  EXPECT_EQ(follower->leader().fabric, leader->leader().fabric);
  EXPECT_EQ(leader->age(), std::nullopt);
}

TEST_F(ReplicaTest, WhatIsReadWhereItIsIsOfTheSameIndex) {
  auto leader = house.open();
  Verbs(&house, 1).begin(*leader);
  const RegionId region(must(leader->assign({}, want("h1", 4))).id);
  auto follower = follow();
  const std::string before = shownBy(*follower);
  must(leader->releaseRegion({}, region, "", Force::kForce));
  leader->settle();
  EXPECT_EQ(shownBy(*follower), before)
      << "operations, events and audit are no newer than the rest";
  EXPECT_EQ(codeOf(follower->evidence(region)), ErrorCode::kNotFound);
  catchUp(*follower, *leader);
  EXPECT_EQ(shownBy(*follower), shownBy(*leader));
  EXPECT_EQ(must(follower->evidence(region)).size(), 1u);
}

TEST_F(ReplicaTest, IsNotThereBeforeTheStoreIs) {
  target = sharedEtcd().target("nothing-there");
  EXPECT_EQ(codeOf(tryFollow()), ErrorCode::kNotFound);
}

/// The leader's end of a store, without a manager.
std::unique_ptr<Store> storeOf(const EtcdTarget& target) {
  auto store = must(openEtcdStore(elected(target)));
  must(store->beginTerm(Term()));
  must(store->load());
  return store;
}

Batch poolsOf(uint64_t index, uint64_t first, uint64_t count) {
  Batch batch;
  batch.index = Index(index);
  for (uint64_t i = first; i < first + count; ++i) {
    batch.changes.emplace_back(
        Pool{PoolId(i), "p" + std::to_string(i), MemoryClass::kCxl, Index(index)});
  }
  return batch;
}

TEST_F(ReplicaTest, ALargeChangeIsSeenWholeOrNotAtAll) {
  constexpr uint64_t kMany = 8000;  // more than one transaction takes
  auto store = storeOf(target);
  auto follower = follow();
  store->append(poolsOf(1, 1, kMany));
  while (follower->index() < Index(1)) {
    must(follower->keepUp(kSecond));
    const uint64_t seen = must(follower->totals()).pools;
    ASSERT_EQ(seen, follower->index() == Index() ? 0 : kMany);
  }
  must(store->await(Index(1)));
}

TEST_F(ReplicaTest, ALargeChangeThatADeadLeaderHasBegunIsNotShownBeforeItIsCarriedOut) {
  {
    auto store = storeOf(target);
    store->append(poolsOf(1, 1, 1));
    must(store->await(Index(1)));
  }
  const std::string head = target.prefix + kHeadKey;
  EtcdClient client(target);
  const auto before =
      must(fromEtcd<HeadRecord>("head", must(client.range({head, "", 0, 0})).pairs.at(0).value));
  EtcdWrites piece;
  piece.put(etcdName(kPools, 2), etcdValue(Pool{PoolId(2), "p2", MemoryClass::kCxl, Index(2)}));
  auto follower = follow();
  EtcdTransaction begun;
  begun.put(target.prefix + etcdName(kStaged, 0), piece.text());
  begun.put(head, etcdValue(HeadRecord{Index(2), before.sequence, before.hash, 1}));
  must(client.transact(begun.body()));
  EXPECT_EQ(codeOf(tryFollow()), ErrorCode::kUnreachable) << "it cannot be read now";
  must(follower->keepUp(kSecond));
  EXPECT_EQ(follower->index(), Index(1));
  auto next = storeOf(target);  // carries it out
  while (follower->index() < Index(2)) must(follower->keepUp(kSecond));
  EXPECT_EQ(must(follower->totals()).pools, 2u);
}

/// What etcd still has of the past begins at the present.
void compact(const EtcdServer& etcd, uint64_t revision) {
  const std::string command = "curl -s -d '{\"revision\":\"" + std::to_string(revision) +
                              "\",\"physical\":true}' http://" + etcd.address() +
                              "/v3/kv/compaction > /dev/null";
  ASSERT_EQ(std::system(command.c_str()), 0);
}

class ReplicaOfItsOwn : public ReplicaTest {
 protected:
  ReplicaOfItsOwn() : ReplicaTest(&server()) { must(initEtcdStore(target)); }
  static EtcdServer& server() {
    static EtcdServer own;
    return own;
  }
};

TEST_F(ReplicaOfItsOwn, WhatEtcdHasDroppedIsReadAnew) {
  auto store = storeOf(target);
  auto follower = follow();
  for (uint64_t i = 1; i <= 5; ++i) {
    store->append(poolsOf(i, i, 1));
    must(store->await(Index(i)));  // a transaction each
  }
  EtcdClient client(target);
  compact(server(), must(client.range({target.prefix, "", 0, 0})).revision);
  Status kept;
  while (kept) kept = follower->keepUp(kSecond);
  EXPECT_EQ(codeOf(kept), ErrorCode::kStaleEpoch);
  EXPECT_EQ(must(follower->totals()).pools, 0u) << "what was known is shown meanwhile";
  must(follower->keepUp(kSecond));
  EXPECT_EQ(must(follower->totals()).pools, 5u);
  EXPECT_EQ(follower->index(), Index(5));
}

TEST_F(ReplicaOfItsOwn, WhileEtcdIsAwayWhatIsKnownIsShownAndItsAgeGrows) {
  auto store = storeOf(target);
  store->append(poolsOf(1, 1, 3));
  must(store->await(Index(1)));
  auto follower = follow();
  server().kill();
  while (follower->keepUp(kSecond)) {
  }
  const auto age = [&] { return follower->age().value(); };
  const Nanoseconds then = age();
  while (age() < then + kSecond) (void)follower->keepUp(kSecond / 10);
  EXPECT_EQ(must(follower->listPools(kEverything)).items.size(), 3u);
  EXPECT_EQ(follower->index(), Index(1));
  EXPECT_EQ(codeOf(follower->listAudit(kEverything)), ErrorCode::kUnreachable);
  server().start();
  while (age() > then + kSecond) (void)follower->keepUp(kSecond / 10);
  EXPECT_EQ(must(follower->listAudit(kEverything)).items.size(), 1u);
}

TEST(Following, ChangesThatDoNotFitAreFoundAndNothingIsTorn) {
  State state;
  Loaded loaded;
  loaded.pools = {{PoolId(1), "p", MemoryClass::kCxl, Index(1)}};
  Device device;
  device.id = DeviceId(2);
  device.pool = PoolId(1);
  device.capacity = Bytes(8 * kGrain);
  loaded.devices = {device};
  must(state.load(loaded));
  const auto regionOf = [](uint64_t id, std::vector<Extent> extents) {
    Region region;
    region.id = RegionId(id);
    region.state = RegionState::kFenced;
    region.extents = std::move(extents);
    region.size = sumOf(region.extents);
    return region;
  };
  const Extent first{DeviceId(2), 0, Bytes(4 * kGrain)};
  const Extent second{DeviceId(2), 4 * kGrain, Bytes(4 * kGrain)};
  must(state.follow({regionOf(3, {first}), regionOf(4, {second})}, Index(5)));
  must(
      state.follow({regionOf(3, {second}), regionOf(4, {first})}, Index(6)));  // they change places
  const std::vector<Change> misfits[] = {
      {regionOf(5, {first})},
      {DropRegion{RegionId(3)}, regionOf(5, {second, second})},
      {regionOf(5, {{DeviceId(9), 0, Bytes(kGrain)}})},
      {regionOf(5, {{DeviceId(2), 100 * kGrain, Bytes(kGrain)}})},
      {SetRegion{RegionId(9), HostId(), RegionState::kFenced, Epoch(1), Index(1)}},
      {SetLabels{Subject::kHost, 9, {}, Index(1)}}};
  for (const auto& changes : misfits) {
    State copy = state;
    EXPECT_EQ(codeOf(copy.follow(changes, Index(7))), ErrorCode::kCorrupt);
  }
  must(state.follow({DropHost{HostId(9)}, DropRegion{RegionId(9)}, DropPool{PoolId(9)}}, Index(7)));
  EXPECT_EQ(state.findDevice(DeviceId(2))->free.free(), Bytes());
}

TEST(Following, LabelsStayAndAThingIsAsNewAsItsLastChange) {
  State state;
  Host host;
  host.id = HostId(1);
  host.name = "h";
  host.modified = Index(7);
  // Of the two, which came at once, the labels were written first.
  must(state.follow({SetLabels{Subject::kHost, 1, {{"k", "v"}}, Index(5)}, host}, Index(7)));
  EXPECT_EQ(state.findHost("h")->host.modified, Index(7));
  host.modified = Index(8);
  must(state.follow({host}, Index(8)));
  EXPECT_EQ(state.findHost("h")->host.labels, (Labels{{"k", "v"}}));
}

}  // namespace
}  // namespace tidepool::fabric
