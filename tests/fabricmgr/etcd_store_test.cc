// SPDX-License-Identifier: Apache-2.0
// The store in etcd: who may write, what becomes of requests that come late, large changes, many at
// once.
#include "fabricmgr/store/etcd_store.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <thread>

#include "fabricmgr/store/etcd_writes.h"
#include "tests/fabricmgr/etcd_backing.h"
#include "tests/fabricmgr/etcd_fixture.h"

namespace tidepool::fabric {
namespace {

using ::testing::HasSubstr;

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
