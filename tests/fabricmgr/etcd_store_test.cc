// SPDX-License-Identifier: Apache-2.0
// The store in etcd: the same answers as SQLite's to random histories, who may write, what becomes
// of requests that come late, large changes, and an etcd that is away. Each test has a name of its
// own in one etcd on the loopback, or an etcd of its own.
#include "fabricmgr/store/etcd_store.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <random>
#include <set>
#include <thread>

#include "fabricmgr/model/hash.h"
#include "fabricmgr/store/etcd_records.h"
#include "fabricmgr/store/etcd_writes.h"
#include "fabricmgr/store/sqlite.h"
#include "fabricmgr/store/store_copy.h"
#include "tests/fabricmgr/etcd_backing.h"

namespace tidepool::fabric {
namespace {

using ::testing::HasSubstr;
using Random = std::mt19937_64;

Batch batchOf(uint64_t index, std::vector<Change> changes = {}) {
  Batch batch;
  batch.index = Index(index);
  batch.time = Nanoseconds(1000 + index);
  batch.actor = "test";
  batch.verb = "pool.add";
  batch.subject = Subject::kPool;
  batch.id = index;
  batch.outcome = std::string("done \xff\0 as it is", 16);  // byte for byte
  batch.changes = std::move(changes);
  Event event;
  event.index = Index(index);
  event.what = "added";
  batch.events = {event};
  return batch;
}

Pool poolOf(uint64_t index) {
  return {PoolId(index), "p" + std::to_string(index), MemoryClass::kCxl, Index(index)};
}

class EtcdStoreTest : public ::testing::Test {
 protected:
  EtcdTarget target() const {
    const auto* test = ::testing::UnitTest::GetInstance()->current_test_info();
    return sharedEtcd().target(test->name());
  }
  std::unique_ptr<Store> open() { return must(openEtcdStore(elected(target()))); }
  std::unique_ptr<Store> openNew() {
    must(initEtcdStore(target()));
    auto store = open();
    must(store->beginTerm(Term()));
    must(store->load());
    return store;
  }
  void drop(const std::string& key) {
    EtcdTransaction transaction;
    transaction.drop(target().prefix + key);
    must(EtcdClient(target()).transact(transaction.body()));
  }
  EtcdFound keys(const std::string& table) {
    const std::string from = target().prefix + table;
    return must(EtcdClient(target()).range({from, etcdEnd(from), 0, 0}));
  }
};

TEST(EtcdUrl, SaysMembersAndName) {
  const auto good = must(parseEtcdUrl("etcd://a:1,b.c:65535,[::1]:2379/racks/r1/"));
  EXPECT_THAT(good.endpoints, ::testing::ElementsAre("a:1", "b.c:65535", "[::1]:2379"));
  EXPECT_EQ(good.prefix, "/racks/r1/");
  EXPECT_EQ(good.url(), "etcd://a:1,b.c:65535,[::1]:2379/racks/r1");
  for (const char* bad : {"etcd:/a:1/x", "etcd://", "etcd:///x", "etcd://a/x", "etcd://a:1",
                          "etcd://a:1/", "etcd://a:0/x", "etcd://a:65536/x", "etcd://a:1,/x",
                          "etcd://,a:1/x", "etcd://a:1,b/x", "etcd://u@a:1/x", "/var/fabric.db"}) {
    EXPECT_EQ(codeOf(parseEtcdUrl(bad)), ErrorCode::kInvalidArgument) << bad;
  }
}

TEST(EtcdRecords, AreReadAsTheyWereWrittenAndNothingElseIs) {
  const std::string odd("a,3:b\0\xff", 7);
  const Pool pool = {PoolId(~uint64_t{}), odd, MemoryClass::kRemote, Index(7)};
  const std::string value = etcdValue(pool);
  const Pool back = must(fromEtcd<Pool>("k", value));
  EXPECT_EQ(back.id, pool.id);
  EXPECT_EQ(back.name, odd);
  EXPECT_EQ(back.memory_class, pool.memory_class);
  for (size_t length = 1; length < value.size(); ++length) {
    const auto cut = fromEtcd<Pool>("k", value.substr(0, length));
    EXPECT_TRUE(!cut || value[length - 1] == ',') << "only fields at the end may be missing";
  }
  for (const char* bad : {"x", "1", "1:", "1:a", "2:a,", "-1:a,", "99999999999999999999:a,",
                          "18446744073709551615:a,", "1:a,", "1:a;", ":,", "0:", "1:9,1:p,1:x,"}) {
    EXPECT_EQ(codeOf(fromEtcd<Pool>("k", bad)), ErrorCode::kCorrupt) << bad;
  }
}

/// What was asked of both stores, in words: the first difference is easily seen.
std::string textOfAll(Store& store, uint64_t last) {
  std::string text;
  const auto add = [&text](const auto& value) {
    auto copy = value;
    EtcdFields fields;
    fieldsOf(fields, copy);
    text += fields.take() + "\n";
  };
  const Loaded loaded = must(store.load());
  text += "index " + std::to_string(loaded.index.value()) + "\n";
  const auto addLabels = [&](const auto& thing) {
    add(thing);
    text += textOf(thing.labels) + "\n";
  };
  for (const Pool& pool : loaded.pools) add(pool);
  for (const Device& device : loaded.devices) addLabels(device);
  for (const Host& host : loaded.hosts) addLabels(host);
  for (const Region& region : loaded.regions) {
    addLabels(region);
    add(StateRecord{region.host, region.state, region.epoch, region.modified});
  }
  for (const Intent& intent : loaded.intents) add(intent);
  for (const Operation& operation : loaded.running) add(operation);
  for (const KeyRecord& key : loaded.pending) add(key);
  for (uint64_t id = 0; id <= last; ++id) {
    for (const ScrubEvidence& evidence : must(store.evidenceOf(RegionId(id)))) add(evidence);
    if (const auto operation = must(store.findOperation(OperationId(id)))) add(*operation);
    if (const auto key = must(store.findKey("a", "k" + std::to_string(id)))) add(*key);
  }
  for (const uint64_t from : {uint64_t{0}, last / 3, last, ~uint64_t{}}) {
    for (const uint32_t limit : {1u, 3u, 1000u}) {
      for (const auto& one : must(store.operationsAfter(OperationId(from), limit))) add(one);
      for (const auto& one : must(store.auditAfter(from, limit))) add(one);
      for (const uint64_t host : {0, 1, 2}) {
        const auto events = store.eventsAfter(Index(from), limit, HostId(host));
        text += "events after " + std::to_string(from) + " of " + std::to_string(host) + "\n";
        if (!events) text += events.error().text() + std::string("\n");
        if (events)
          for (const Event& event : *events) add(event);
      }
    }
  }
  add(must(store.auditBase()));
  for (const uint64_t time : {uint64_t{0}, 1000 + last / 2, ~uint64_t{}}) {
    for (const uint64_t keep : {uint64_t{0}, last / 4}) {
      const auto old = must(store.oldAudit(Nanoseconds(time), keep, 10));
      text += old ? "old " + std::to_string(old->sequence) + hexOf(old->hash) + "\n" : "none\n";
    }
  }
  const AuditVerdict verdict = must(verifyAudit(store));
  return text + verdict.text + hexOf(verdict.head);
}

/// Changes as a manager could make them: of what is there.
class Changes {
 public:
  explicit Changes(uint64_t seed) : random_(seed) {}

  Batch next(uint64_t index, Store& store) {
    index_ = index;
    drops_audit_ = false;
    std::vector<Change> changes;
    for (uint64_t i = random_() % 4; i > 0; --i) changes.push_back(one(store));
    const auto removal = std::find_if(changes.begin(), changes.end(), [](const Change& change) {
      return std::holds_alternative<DropAudit>(change);
    });
    if (removal != changes.end()) std::rotate(changes.begin(), removal, removal + 1);  // it leads
    Batch batch = batchOf(index, std::move(changes));
    batch.events.clear();
    for (uint32_t i = 0; i < random_() % 3; ++i) {
      Event event;
      event.index = Index(index);
      event.ordinal = i;
      event.host = HostId(random_() % 3);
      event.what = "e";
      batch.events.push_back(event);
    }
    return batch;
  }

 private:
  uint64_t some(const std::set<uint64_t>& ids) {
    if (ids.empty()) return 0;
    auto at = ids.begin();
    std::advance(at, static_cast<ptrdiff_t>(random_() % ids.size()));
    return *at;
  }
  Region region(uint64_t id) {
    Region made;
    made.id = RegionId(id);
    made.name = "r" + std::to_string(random_() % 9);
    made.state = RegionState::kReserved;
    made.epoch = Epoch(index_);
    made.modified = Index(index_);
    for (uint64_t i = random_() % 3; i > 0; --i) {
      made.extents.push_back({DeviceId(device_), next_byte_, Bytes(4096)});
      next_byte_ += 4096;
    }
    return made;
  }
  Change thing() {
    if (device_ == 0) {  // extents and hosts refer to what is there
      device_ = index_;
      Device device;
      device.id = DeviceId(index_);
      device.pool = PoolId(pool_);
      device.name = "d" + std::to_string(index_);
      device.modified = Index(index_);
      return device;
    }
    const uint64_t id = fresh_++;
    regions_.insert(id);
    return region(id);
  }
  Change label() {
    const bool of_region = !regions_.empty() && random_() % 2 == 0;
    if (!of_region && device_ == 0) return poolOf(fresh_++);
    SetLabels set;
    set.subject = of_region ? Subject::kRegion : Subject::kDevice;
    set.id = of_region ? some(regions_) : device_;
    set.modified = Index(index_);
    if (random_() % 3 != 0) set.labels = {{"k" + std::to_string(random_() % 3), "v"}};
    return set;
  }
  Change one(Store& store);
  KeyRecord key() {
    KeyRecord record;
    record.actor = "a";
    record.key = "k" + std::to_string(random_() % 20);
    record.created = Nanoseconds(random_() % 50);
    record.state = random_() % 2 == 0 ? KeyRecord::State::kPending : KeyRecord::State::kDone;
    record.index = Index(index_);
    // As the manager does it: made once; a key that waits gets its outcome.
    const auto [at, is_new] = keys_.emplace(record.key, record);
    if (is_new) return record;
    at->second.state = KeyRecord::State::kDone;
    return at->second;
  }

  Random random_;
  uint64_t index_ = 0, pool_ = 0, device_ = 0, next_byte_ = 0, fresh_ = 1'000'000;
  std::set<uint64_t> regions_;
  std::map<std::string, KeyRecord> keys_;
  Index events_from_;
  bool drops_audit_ = false;  // one batch does it once
};

Change Changes::one(Store& store) {
  if (pool_ == 0) {
    pool_ = index_;
    return poolOf(index_);
  }
  switch (random_() % 12) {
    case 0:
    case 1:
    case 2:
      return thing();
    case 3:
      if (regions_.empty()) return thing();
      return SetRegion{RegionId(some(regions_)), HostId(), RegionState::kAttached, Epoch(index_),
                       Index(index_)};
    case 4: {
      if (regions_.empty()) return thing();
      const uint64_t id = some(regions_);
      regions_.erase(id);
      return DropRegion{RegionId(id)};
    }
    case 5:
      return label();
    case 6:
      return Intent{RegionId(random_() % 5), DeviceId(random_() % 2), Action::kScrub, Epoch(index_),
                    RegionId()};
    case 7:
      return DropIntent{RegionId(random_() % 5), DeviceId(random_() % 2)};
    case 8: {
      Operation operation;
      operation.id = OperationId(random_() % 30 + 1);
      operation.state = static_cast<OperationState>(random_() % 3);
      operation.modified = Index(index_);
      return operation;
    }
    case 9:
      return ScrubEvidence{RegionId(random_() % 9),
                           DeviceId(random_() % 2),
                           Epoch(index_),
                           Bytes(1),
                           1,
                           Bytes(),
                           "d",
                           Nanoseconds(1),
                           Nanoseconds(2)};
    case 10:
      return key();
    default:
      break;
  }
  if (random_() % 4 == 0) {
    const Nanoseconds before(random_() % 60);
    std::erase_if(keys_, [before](const auto& key) {
      return key.second.created < before && key.second.state != KeyRecord::State::kPending;
    });
    return DropKeysBefore{before};
  }
  if (random_() % 2 == 0) {
    events_from_ = std::max(events_from_, Index(random_() % index_ + 1));
    return DropEventsBefore{events_from_};
  }
  const auto old = must(store.oldAudit(Nanoseconds(~uint64_t{}), 3, 5));
  return old && !std::exchange(drops_audit_, true) ? Change(DropAudit{*old}) : Change(key());
}

/// SQLite's is the model.
TEST_F(EtcdStoreTest, AnswersAsSqliteDoes) {
  for (uint64_t seed = 1; seed <= 6; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Folder folder;
    const std::string path = folder / "store.db";
    const EtcdTarget place = sharedEtcd().target("random" + std::to_string(seed));
    must(initSqliteStore(path));
    must(initEtcdStore(place));
    uint64_t index = 0;
    Changes changes(seed);
    Random random(seed);
    for (int life = 0; life < 3; ++life) {
      auto model = must(openSqliteStore(path));
      auto store = must(openEtcdStore(elected(place)));
      must(model->load());
      must(store->load());
      for (int i = 0; i < 25; ++i) {
        index += 1 + random() % 2;
        // Retention asks the store, so what was written before has to be there.
        must(model->await(model->durable()));
        const Batch batch = changes.next(index, *model);
        model->append(batch);
        must(model->await(Index(index)));
        store->append(batch);
        if (random() % 4 == 0) must(store->await(Index(index)));
      }
      must(store->await(Index(index)));
      EXPECT_EQ(store->durable(), model->durable());
      // With what is in memory of events, and, after load(), without.
      for (const uint64_t since : {index / 2, index}) {
        const auto recent = store->eventsAfter(Index(since), 2, HostId(1));
        const auto all = model->eventsAfter(Index(since), 2, HostId(1));
        ASSERT_EQ(recent.has_value(), all.has_value());
        EXPECT_TRUE(!recent || recent->size() == all->size());
      }
      const std::string expected = textOfAll(*model, index);
      ASSERT_EQ(textOfAll(*store, index), expected);
    }
  }
}

TEST_F(EtcdStoreTest, IsMadeOnceAndFoundOrNot) {
  const auto missing = openEtcdStore(elected(target()));
  ASSERT_EQ(codeOf(missing), ErrorCode::kNotFound);
  EXPECT_THAT(missing.error().text(), HasSubstr("fabricmgr init"));
  const Standing made = must(initEtcdStore(target()));
  EXPECT_TRUE(isFabricId(made.fabric)) << made.fabric;
  EXPECT_EQ(codeOf(initEtcdStore(target())), ErrorCode::kConflict);
  EXPECT_NE(must(initEtcdStore(sharedEtcd().target("other"))).fabric, made.fabric);
  FabricRecord record;
  record.schema = kEtcdSchema + 1;
  EtcdTransaction transaction;
  transaction.put(target().prefix + kFabricKey, etcdValue(record));
  must(EtcdClient(target()).transact(transaction.body()));
  EXPECT_EQ(codeOf(openEtcdStore(elected(target()))), ErrorCode::kUnsupported);
}

TEST_F(EtcdStoreTest, TermsGrowAndSurvive) {
  const Standing made = must(initEtcdStore(target()));
  EXPECT_EQ(must(open()->beginTerm(Term())).term, Term(1));
  auto store = open();
  EXPECT_EQ(must(store->beginTerm(Term())).term, Term(2));
  EXPECT_EQ(must(store->beginTerm(Term(7))).term, Term(8)) << "above one that was heard of";
  must(store->noteSuperseded(Term(9)));
  const Standing now = must(store->beginTerm(Term(3)));
  EXPECT_EQ(now.term, Term(9));
  EXPECT_EQ(now.superseded_by, Term(9));
  EXPECT_EQ(now.fabric, made.fabric);
  must(store->tookOver());
  EXPECT_EQ(must(store->beginTerm(Term())).superseded_by, Term());
}

TEST_F(EtcdStoreTest, OneLeadsAndTheNextNeedNotWaitForOneThatEnds) {
  auto first = elected(target(), "first");
  EtcdElection second(target(), "second");
  EXPECT_EQ(must(second.campaign()), "first");
  must(first->mayAct());
  EXPECT_EQ(codeOf(second.mayAct()), ErrorCode::kConflict);
  first.reset();
  EXPECT_EQ(must(second.campaign()), std::nullopt);
  must(second.mayAct());
}

TEST_F(EtcdStoreTest, WhoHasLostTheLeadWritesNothing) {
  auto first = openNew();
  first->append(batchOf(1, {poolOf(1)}));
  must(first->await(Index(1)));
  drop(kLeaderKey);  // as when its lease has ended
  auto second = open();
  must(second->beginTerm(Term()));
  EXPECT_EQ(must(second->load()).index, Index(1));
  first->append(batchOf(2, {poolOf(2)}));
  const Status refused = first->await(Index(2));
  ASSERT_EQ(codeOf(refused), ErrorCode::kConflict);
  EXPECT_THAT(refused.error().text(), HasSubstr("does not lead any more"));
  EXPECT_EQ(codeOf(first->mayAct()), ErrorCode::kConflict);
  EXPECT_EQ(codeOf(first->load()), ErrorCode::kConflict);
  EXPECT_EQ(codeOf(first->beginTerm(Term())), ErrorCode::kConflict);
  EXPECT_FALSE(first->noteSuperseded(Term(9)));
  second->append(batchOf(2, {poolOf(20)}));
  must(second->await(Index(2)));
  EXPECT_EQ(must(second->load()).pools.size(), 2u);
  EXPECT_EQ(must(verifyAudit(*second)).first_bad, 0u);
}

TEST_F(EtcdStoreTest, WhoseLeadHasEndedWritesNothingBeforeAnyoneFollows) {
  auto store = openNew();
  drop(kLeaderKey);
  store->append(batchOf(1, {poolOf(1)}));
  EXPECT_EQ(codeOf(store->await(Index(1))), ErrorCode::kConflict);
  EXPECT_TRUE(keys(kPools).pairs.empty());
}

/// A manager that was stopped before its request went out, or a request that a network has kept.
TEST_F(EtcdStoreTest, ARequestThatComesAfterTheStateWasLoadedAnewDoesNothing) {
  auto store = openNew();
  const auto head = keys(kHeadKey).pairs.at(0);
  const auto leader = keys(kLeaderKey).pairs.at(0);
  EtcdTransaction late;
  late.ifCreated(leader.key, leader.created);
  late.ifModified(head.key, head.modified);
  late.put(head.key, etcdValue(HeadRecord{Index(5), 5, {}, 0}));
  must(store->load());
  EXPECT_FALSE(must(EtcdClient(target()).transact(late.body())).happened);
  EXPECT_EQ(must(store->load()).index, Index());
}

TEST_F(EtcdStoreTest, LargeChangesAreWhole) {
  auto store = openNew();
  std::vector<Change> many;
  for (uint64_t i = 1; i <= 9000; ++i) many.push_back(poolOf(i));
  store->append(batchOf(1, many));
  store->append(batchOf(2, {poolOf(20'000)}));
  must(store->await(Index(2)));
  EXPECT_EQ(must(store->load()).pools.size(), 9001u);
  EXPECT_TRUE(keys(kStaged).pairs.empty());
  EXPECT_EQ(must(verifyAudit(*store)).records, 2u);
  Pool huge = poolOf(30'000);
  huge.name.assign(2'000'000, 'x');
  store->append(batchOf(3, {huge}));
  EXPECT_EQ(codeOf(store->await(Index(3))), ErrorCode::kNoSpace);
  EXPECT_EQ(must(store->load()).index, Index(2));
  store->append(batchOf(4, {poolOf(4)}));
  must(store->await(Index(4)));
}

/// A leader dies while it carries out a large change: the next one does it, or nothing has
/// happened.
TEST_F(EtcdStoreTest, ALargeChangeThatWasCutShortIsCarriedOutByTheNext) {
  openNew().reset();
  EtcdWrites first, second;
  first.put(etcdName(kPools, 1), etcdValue(poolOf(1)));
  second.put(etcdName(kPools, 2), etcdValue(poolOf(2)));
  const auto stage = [&](uint64_t count) {
    EtcdTransaction transaction;
    const std::string& prefix = target().prefix;
    transaction.put(prefix + etcdName(kStaged, 0), first.text());
    transaction.put(prefix + etcdName(kStaged, 1), second.text());
    transaction.put(prefix + kHeadKey, etcdValue(HeadRecord{Index(count), 0, {}, count}));
    must(EtcdClient(target()).transact(transaction.body()));
  };
  stage(0);
  EXPECT_EQ(must(open()->load()).pools.size(), 0u);
  stage(2);
  auto store = open();
  const Loaded loaded = must(store->load());
  EXPECT_EQ(loaded.pools.size(), 2u);
  EXPECT_EQ(loaded.index, Index(2));
  EXPECT_TRUE(keys(kStaged).pairs.empty());
}

TEST_F(EtcdStoreTest, OldKeysGoByTheThousand) {
  auto store = openNew();
  std::vector<Change> changes;
  for (uint64_t i = 0; i < 2500; ++i) {
    KeyRecord key;
    key.actor = "a";
    key.key = std::to_string(i);
    key.created = Nanoseconds(i);
    key.state = KeyRecord::State::kDone;
    changes.push_back(key);
  }
  store->append(batchOf(1, changes));
  store->append(batchOf(2, {DropKeysBefore{Nanoseconds(2400)}}));
  must(store->await(Index(2)));
  EXPECT_EQ(keys(kKeys).pairs.size(), 100u);
  EXPECT_EQ(keys(kKeyAges).pairs.size(), 100u);
  EXPECT_EQ(must(store->findKey("a", "2399")), std::nullopt);
  EXPECT_TRUE(must(store->findKey("a", "2400")));
}

/// Writes wait while etcd is started again, and none of them is lost or done twice.
TEST_F(EtcdStoreTest, WritesWaitForAnEtcdThatComesBack) {
  EtcdServer etcd;
  const EtcdTarget target = etcd.target();
  must(initEtcdStore(target));
  auto election = std::make_unique<EtcdElection>(target, "test", kSecond * 60);
  EXPECT_EQ(must(election->campaign()), std::nullopt);
  auto store = must(openEtcdStore(std::move(election)));
  must(store->load());
  etcd.kill();
  store->append(batchOf(1, {poolOf(1)}));
  etcd.start();
  must(store->await(Index(1)));
}

/// A member that is gone without a word: its machine has no power, or is stopped.
class SilentMember {
 public:
  /// `backlog`: so many connections, and one more, are made by the kernel; nobody ever answers.
  explicit SilentMember(int backlog) : listener_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in address = {};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    auto* const name = reinterpret_cast<sockaddr*>(&address);
    socklen_t size = sizeof address;
    EXPECT_EQ(bind(listener_.get(), name, size), 0);
    EXPECT_EQ(getsockname(listener_.get(), name, &size), 0);
    EXPECT_EQ(listen(listener_.get(), backlog), 0);
    port_ = ntohs(address.sin_port);
    if (backlog == 0) {
      EXPECT_EQ(connect(only_.get(), name, size), 0);
    }
  }
  std::string address() const { return "127.0.0.1:" + std::to_string(port_); }

 private:
  UniqueFd listener_;
  UniqueFd only_{socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)};  // leaves room for no other one
  uint16_t port_ = 0;
};

TEST_F(EtcdStoreTest, AFirstMemberThatIsSilentKeepsNobodyFromLeading) {
  must(initEtcdStore(target()));
  for (const int backlog : {0, 64}) {
    const SilentMember silent(backlog);
    EtcdTarget all = target();
    all.endpoints.insert(all.endpoints.begin(), silent.address());
    EXPECT_TRUE(EtcdClient(all).range({"x", "", 0, 0})) << "each client asks the others by itself";
    auto election = std::make_shared<EtcdElection>(all, "test");
    EXPECT_EQ(must(election->campaign()), std::nullopt);
    EXPECT_EQ(election->target().endpoints, (std::vector{target().endpoints[0], silent.address()}));
    auto store = must(openEtcdStore(std::move(election)));
    must(store->beginTerm(Term()));
  }
}

TEST_F(EtcdStoreTest, WhatAMemberHasSurelyNotHeardGoesToTheNext) {
  const SilentMember unreachable(0);
  EtcdTarget all = target();
  all.endpoints.insert(all.endpoints.begin(), unreachable.address());
  EtcdTransaction change;
  change.put(target().prefix + "x", "y");
  EXPECT_TRUE(must(EtcdClient(all).transact(change.body())).happened);
  const SilentMember stopped(64);
  all.endpoints.front() = stopped.address();
  const auto unknown = EtcdClient(all, Nanoseconds(300'000'000)).transact(change.body());
  EXPECT_EQ(unknown.error().code(), ErrorCode::kTimedOut) << "it may have heard it";
}

TEST_F(EtcdStoreTest, AnEtcdThatStaysAwayIsNamed) {
  EtcdServer etcd;
  must(initEtcdStore(etcd.target()));
  auto store = must(openEtcdStore(elected(etcd.target())));
  must(store->load());
  store->append(batchOf(1, {poolOf(1)}));
  must(store->await(Index(1)));
  etcd.kill();
  store->append(batchOf(2, {poolOf(2)}));
  const Status late = store->await(Index(2));
  ASSERT_FALSE(late);
  EXPECT_THAT(late.error().text(), HasSubstr("etcd at " + etcd.address() + " does not answer"));
  const Status may = store->mayAct();
  ASSERT_EQ(codeOf(may), ErrorCode::kUnreachable);
  EXPECT_THAT(may.error().text(), HasSubstr(etcd.address()));
  EXPECT_FALSE(store->load());
  store->append(batchOf(3, {poolOf(3)}));
  EXPECT_FALSE(store->await(Index(3))) << "nothing is taken before the state is loaded again";
  EXPECT_FALSE(must(store->eventsAfter(Index(), 10, HostId())).empty()) << "from memory";
}

class Moving : public EtcdStoreTest {
 protected:
  /// A store in a file, with all that there can be in one.
  std::string makeFile(uint64_t seed) {
    const std::string path = folder / "store.db";
    must(initSqliteStore(path));
    auto store = must(openSqliteStore(path));
    must(store->beginTerm(Term(5)));
    must(store->load());
    Changes changes(seed);
    for (index = 1; index <= 80; ++index) {
      store->append(changes.next(index, *store));
      must(store->await(Index(index)));
    }
    text = textOfAll(*store, index);
    return path;
  }

  Folder folder;
  uint64_t index = 0;
  std::string text;
};

TEST_F(Moving, ThereAndBackItIsTheSame) {
  for (uint64_t seed = 21; seed <= 23; ++seed) {
    SCOPED_TRACE(seed);
    const EtcdTarget place = sharedEtcd().target("moved" + std::to_string(seed));
    const std::string path = makeFile(seed);
    const Moved there = must(moveToEtcd(path, place));
    EXPECT_EQ(there.standing.term, Term(7));
    EXPECT_EQ(there.index, Index(80));
    {
      auto store = must(openEtcdStore(elected(place)));
      EXPECT_EQ(textOfAll(*store, index), text);
      auto left = must(openSqliteStore(path));
      EXPECT_EQ(must(left->beginTerm(Term())).superseded_by, Term(7)) << "its manager stays out";
    }
    const std::string back = folder / "back.db";
    const Moved again = must(moveToSqlite(place, back));
    EXPECT_EQ(again.standing.term, Term(8));
    EXPECT_EQ(again.standing.fabric, there.standing.fabric);
    EXPECT_EQ(again.audit_head, there.audit_head);
    {
      auto store = must(openSqliteStore(back));
      EXPECT_EQ(textOfAll(*store, index), text);
      auto left = must(openEtcdStore(elected(place)));
      EXPECT_EQ(must(left->beginTerm(Term())).superseded_by, Term(8));
    }
    for (const std::string& file : {path, back}) std::filesystem::remove(file);
  }
}

TEST_F(Moving, NotWhileSomebodyHasItOrOverAnotherStore) {
  const std::string path = makeFile(31);
  {
    auto open = must(openSqliteStore(path));
    EXPECT_EQ(codeOf(moveToEtcd(path, target())), ErrorCode::kConflict);
  }
  {
    auto leader = elected(target(), "red");
    const auto refused = moveToEtcd(path, target());
    ASSERT_EQ(codeOf(refused), ErrorCode::kConflict);
    EXPECT_THAT(refused.error().text(), HasSubstr("red has this store open"));
  }
  EXPECT_EQ(codeOf(moveToSqlite(target(), folder / "none.db")), ErrorCode::kNotFound);
  EXPECT_FALSE(std::filesystem::exists(folder / "none.db"));
  must(moveToEtcd(path, target()));
  EXPECT_EQ(codeOf(moveToEtcd(path, target())), ErrorCode::kConflict) << "there is one";
  EXPECT_EQ(codeOf(moveToSqlite(target(), path)), ErrorCode::kConflict);
}

TEST_F(Moving, WhatIsBrokenIsNotMoved) {
  const std::string path = makeFile(41);
  const auto meddle = Database::open(path, SQLITE_OPEN_READWRITE);
  must(
      meddle->execute("DROP TRIGGER audit_is_append_only_u; UPDATE audit SET actor = 'x' WHERE "
                      "sequence = (SELECT max(sequence) FROM audit)"));
  EXPECT_EQ(codeOf(moveToEtcd(path, target())), ErrorCode::kCorrupt);
  EXPECT_TRUE(keys("").pairs.empty()) << "nothing is left there";
}

/// Not a test of time: how many come through is printed, that they do is checked.
TEST_F(EtcdStoreTest, AssignsAtOnceAreAllThere) {
  constexpr uint64_t kThreads = 64, kEach = 20;
  FabricHouse house;
  const EtcdBacking backing(&house, "assigns");
  auto manager = house.open();
  must(manager->addPool({}, "pool", MemoryClass::kCxl));
  must(manager->addDevice({}, house.poolFile("d1", kThreads * kEach)));
  must(manager->addHost({}, hostSpec("h1")));
  std::vector<std::thread> threads;
  const auto start = std::chrono::steady_clock::now();
  for (uint64_t i = 0; i < kThreads; ++i) {
    threads.emplace_back([&manager, i] {
      for (uint64_t j = 0; j < kEach; ++j) {
        Caller caller;
        caller.key = std::to_string(i) + "-" + std::to_string(j);
        must(manager->assign(caller, want("h1", 1)));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
  printf("%.0f durable assigns a second\n", kThreads * kEach / took.count());
  EXPECT_EQ(must(manager->totals()).free, Bytes());
  manager.reset();
  EXPECT_EQ(must(house.open()->totals()).free, Bytes());
}

TEST_F(EtcdStoreTest, ManyAtOnceAreFewTransactions) {
  auto store = openNew();
  const auto before = keys(kHeadKey).pairs.at(0);
  constexpr uint64_t kMany = 3000;
  const auto start = std::chrono::steady_clock::now();
  for (uint64_t i = 1; i <= kMany; ++i) store->append(batchOf(i, {poolOf(i)}));
  must(store->await(Index(kMany)));
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
  printf("%.0f batches a second\n", static_cast<double>(kMany) / took.count());
  EXPECT_LT(keys(kHeadKey).pairs.at(0).modified, before.modified + kMany / 4);
  EXPECT_EQ(must(verifyAudit(*store)).records, kMany);
}

}  // namespace
}  // namespace tidepool::fabric
