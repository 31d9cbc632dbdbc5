// SPDX-License-Identifier: Apache-2.0
// What tests of the store in etcd begin with: each has a name of its own in one etcd on the
// loopback.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "fabricmgr/store/etcd_records.h"
#include "fabricmgr/store/etcd_store.h"
#include "tests/fabricmgr/etcd_server.h"

namespace tidepool::fabric {

inline Batch batchOf(uint64_t index, std::vector<Change> changes = {}) {
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

inline Pool poolOf(uint64_t index) {
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

}  // namespace tidepool::fabric
