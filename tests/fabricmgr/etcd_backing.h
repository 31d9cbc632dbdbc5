// SPDX-License-Identifier: Apache-2.0
// The store of a FabricHouse in etcd instead of a file, with what crash tests need: to put it back
// to what it was, and to show it to the checker, which reads SQLite. Not thread-safe.
#pragma once

#include <algorithm>
#include <filesystem>
#include <string>
#include <vector>

#include "fabricmgr/store/etcd_records.h"
#include "fabricmgr/store/etcd_store.h"
#include "fabricmgr/store/store_copy.h"
#include "tests/fabricmgr/etcd_server.h"

namespace tidepool::fabric {

class EtcdBacking {
 public:
  /// `house` has its store below `name` from now on.
  EtcdBacking(FabricHouse* house, const std::string& name)
      : target_(sharedEtcd().target(name)), file_(house->folder / "store.db") {
    must(initEtcdStore(target_));
    house->open_store = [this] { return open(); };
    house->export_store = [this] { show(); };
  }

  void save() { saved_ = all(); }
  void restore() {
    EtcdTransaction back;
    for (const EtcdPair& pair : all()) {
      if (!isSaved(pair.key)) back.drop(pair.key);
    }
    for (const EtcdPair& pair : saved_) back.put(pair.key, pair.value);
    EXPECT_TRUE(must(EtcdClient(target_).transact(back.body())).happened);
  }

 private:
  std::vector<EtcdPair> all() const {
    return must(EtcdClient(target_).range({target_.prefix, etcdEnd(target_.prefix), 0, 0})).pairs;
  }
  bool isSaved(const std::string& key) const {
    return std::any_of(saved_.begin(), saved_.end(),
                       [&key](const EtcdPair& pair) { return pair.key == key; });
  }
  /// As when the lease of a manager that was killed has ended.
  void forgetLeader() const {
    EtcdTransaction forget;
    forget.drop(target_.prefix + kLeaderKey);
    must(EtcdClient(target_).transact(forget.body()));
  }
  Result<std::unique_ptr<Store>> open() const {
    forgetLeader();
    auto election = std::make_shared<EtcdElection>(target_, "test");
    const auto leader = election->campaign();
    if (!leader) return tl::unexpected(leader.error());
    return openEtcdStore(std::move(election));
  }
  void show() const {
    forgetLeader();
    std::filesystem::remove(file_);
    const std::string fabric = target_.prefix + kFabricKey;
    const auto before = must(EtcdClient(target_).range({fabric, "", 0, 0}));
    must(moveToSqlite(target_, file_));
    EtcdTransaction back;  // it goes on as if it had not been left
    back.put(fabric, before.pairs.at(0).value);
    must(EtcdClient(target_).transact(back.body()));
  }

  const EtcdTarget target_;
  const std::string file_;
  std::vector<EtcdPair> saved_;
};

}  // namespace tidepool::fabric
