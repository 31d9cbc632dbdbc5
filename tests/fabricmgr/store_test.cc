// SPDX-License-Identifier: Apache-2.0
// The store: what survives torn logs and full disks, who may open it, and the chain of the audit.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <thread>

#include "fabricmgr/store/migrations.h"
#include "fabricmgr/store/sqlite.h"
#include "runtime/base/check.h"
#include "tests/fabricmgr/crash_fixture.h"

namespace tidepool::fabric {
namespace {

Batch batchOf(uint64_t index) {
  Batch batch;
  batch.index = Index(index);
  batch.time = Nanoseconds(index);
  batch.actor = "test";
  batch.verb = "pool.add";
  batch.subject = Subject::kPool;
  batch.id = index;
  batch.outcome = "done";
  batch.changes.push_back(
      Pool{PoolId(index), "p" + std::to_string(index), MemoryClass::kCxl, Index(index)});
  Event event;
  event.index = Index(index);
  event.what = "added";
  batch.events = {event};
  return batch;
}

/// The file without the store around it.
Database raw(const std::string& path) {
  auto database = Database::open(path, SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE);
  TP_CHECK(database.has_value());
  return std::move(*database);
}

class StoreTest : public ::testing::Test {
 protected:
  std::unique_ptr<Store> open() {
    if (!std::filesystem::exists(path)) must(initSqliteStore(path));
    return must(openSqliteStore(path));
  }
  /// Runs one statement behind the store's back.
  void meddle(const char* sql) { must(raw(path).execute(sql)); }

  Folder folder;
  const std::string path = folder / "store.db";
};

TEST_F(StoreTest, WhatIsAwaitedIsThereAfterwards) {
  {
    auto store = open();
    EXPECT_EQ(must(store->load()).index, Index());
    for (uint64_t i = 1; i <= 50; ++i) store->append(batchOf(i));
    must(store->await(Index(50)));
    EXPECT_EQ(store->durable(), Index(50));
  }
  auto store = open();
  const Loaded loaded = must(store->load());
  EXPECT_EQ(loaded.index, Index(50));
  EXPECT_EQ(loaded.pools.size(), 50u);
  EXPECT_EQ(must(verifyAudit(*store)).records, 50u);
  EXPECT_EQ(must(store->eventsAfter(Index(48), 100, HostId())).size(), 2u);
}

TEST_F(StoreTest, ASecondOpenerIsTurnedAwayByName) {
  auto store = open();
  const auto second = openSqliteStore(path);
  ASSERT_EQ(codeOf(second), ErrorCode::kConflict);
  EXPECT_NE(std::string(second.error().text()).find(std::to_string(getpid())), std::string::npos);
  store.reset();
  EXPECT_TRUE(openSqliteStore(path));
}

TEST_F(StoreTest, ANewerSchemaIsNotTouched) {
  open();
  const std::string add =
      "INSERT INTO migrations VALUES(" + std::to_string(migrations().size() + 1) + ", 'x')";
  meddle(add.c_str());
  const auto refused = openSqliteStore(path);
  ASSERT_EQ(codeOf(refused), ErrorCode::kUnsupported);
  EXPECT_NE(std::string(refused.error().text()).find("newer fabricmgr"), std::string::npos);
}

TEST_F(StoreTest, AChangedSchemaStepIsNoticed) {
  open();
  meddle("UPDATE migrations SET checksum = 'other' WHERE number = 1");
  EXPECT_EQ(codeOf(openSqliteStore(path)), ErrorCode::kCorrupt);
}

TEST_F(StoreTest, AnotherProgramsFileIsLeftAlone) {
  {
    auto database = raw(path);
    must(database.execute("CREATE TABLE bookmarks(url TEXT)"));
  }
  const auto bytes = [this] {
    std::ifstream file(path, std::ios::binary);
    return std::string(std::istreambuf_iterator<char>(file), {});
  };
  const std::string before = bytes();
  EXPECT_EQ(codeOf(openSqliteStore(path)), ErrorCode::kCorrupt);
  EXPECT_TRUE(bytes() == before);
  std::ofstream(folder / "text") << "this is no database at all, but it is long enough to be read";
  EXPECT_FALSE(openSqliteStore(folder / "text"));
}

TEST_F(StoreTest, TheAuditCannotBeChangedUnnoticed) {
  {
    auto store = open();
    must(store->load());
    for (uint64_t i = 1; i <= 5; ++i) store->append(batchOf(i));
    must(store->await(Index(5)));
  }
  EXPECT_FALSE(raw(path).execute("DELETE FROM audit WHERE sequence = 5"));
  EXPECT_FALSE(raw(path).execute("UPDATE audit SET actor = 'x'"));
  struct Meddling {
    const char* sql;
    uint64_t first_bad;
  };
  const Meddling meddlings[] = {
      {"DROP TRIGGER audit_is_append_only_u; UPDATE audit SET actor = 'x' WHERE sequence = 3", 3},
      {"DROP TRIGGER audit_is_append_only_d; DELETE FROM audit WHERE sequence = 3", 4},
  };
  for (const Meddling& meddling : meddlings) {
    const std::string copy = folder / "copy.db";
    std::filesystem::copy_file(path, copy, std::filesystem::copy_options::overwrite_existing);
    must(raw(copy).execute(meddling.sql));
    auto store = must(openSqliteStore(copy));
    EXPECT_EQ(must(verifyAudit(*store)).first_bad, meddling.first_bad);
    store.reset();
    for (const char* suffix : {"", "-wal", "-shm"}) std::filesystem::remove(copy + suffix);
  }
}

/// A write-ahead log that ends anywhere: what is there is a prefix of what was written, and whole.
TEST_F(StoreTest, ATornLogLosesItsEndAndNothingElse) {
  const std::string live = folder / "live.db";
  Folder saved;
  {
    must(initSqliteStore(live));
    auto store = must(openSqliteStore(live));
    must(store->load());
    for (uint64_t i = 1; i <= 20; ++i) {
      store->append(batchOf(i));
      must(store->await(Index(i)));
    }
    // As a crash would leave it: the log was not put into the file.
    std::filesystem::copy_file(live, saved / "db");
    std::filesystem::copy_file(live + "-wal", saved / "wal");
  }
  const auto whole = std::filesystem::file_size(saved / "wal");
  uint64_t last = 0;
  for (uint64_t length = 0; length <= whole; length += whole / 97 + 1) {
    std::filesystem::copy_file(saved / "db", path,
                               std::filesystem::copy_options::overwrite_existing);
    std::filesystem::copy_file(saved / "wal", path + "-wal",
                               std::filesystem::copy_options::overwrite_existing);
    std::filesystem::remove(path + "-shm");
    std::filesystem::resize_file(path + "-wal", length);
    auto store = must(openSqliteStore(path));
    const Loaded loaded = must(store->load());
    EXPECT_EQ(loaded.pools.size(), loaded.index.value()) << length;
    const AuditVerdict verdict = must(verifyAudit(*store));
    EXPECT_EQ(verdict.first_bad, 0u);
    EXPECT_EQ(verdict.records, loaded.index.value());
    EXPECT_GE(loaded.index.value(), last);
    last = loaded.index.value();
    store->append(batchOf(last + 1));
    must(store->await(Index(last + 1)));
  }
  EXPECT_GT(last, 15u);
}

/// The limit on file sizes stands in for a full disk: writes beyond it fail.
class FullDisk {
 public:
  explicit FullDisk(uint64_t limit) {
    signal(SIGXFSZ, SIG_IGN);
    getrlimit(RLIMIT_FSIZE, &before_);
    rlimit now = before_;
    now.rlim_cur = limit;
    setrlimit(RLIMIT_FSIZE, &now);
  }
  ~FullDisk() { setrlimit(RLIMIT_FSIZE, &before_); }

 private:
  rlimit before_;
};

TEST_F(StoreTest, ADamagedPageIsFoundAtTheStart) {
  {
    auto store = open();
    must(store->load());
    for (uint64_t i = 1; i <= 300; ++i) store->append(batchOf(i));
    must(store->await(Index(300)));
  }
  std::filesystem::copy_file(path, folder / "whole");
  constexpr uint64_t kPageBytes = 4096;
  const uint64_t pages = std::filesystem::file_size(path) / kPageBytes;
  ASSERT_GT(pages, 20u);
  for (uint64_t page = 1; page < pages; ++page) {
    std::filesystem::copy_file(folder / "whole", path,
                               std::filesystem::copy_options::overwrite_existing);
    {
      std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
      file.seekp(static_cast<std::streamoff>(page * kPageBytes));
      file << std::string(kPageBytes, '\x5a');
    }
    const auto damaged = openSqliteStore(path);
    ASSERT_FALSE(damaged) << page;
    EXPECT_EQ(damaged.error().code(), ErrorCode::kCorrupt) << page << damaged.error().text();
  }
}

TEST_F(StoreTest, AFullDiskFailsEveryoneAndIsGotOver) {
  auto store = open();
  must(store->load());
  store->append(batchOf(1));
  must(store->await(Index(1)));
  {
    FullDisk full(std::filesystem::file_size(path + "-wal"));
    store->append(batchOf(2));
    EXPECT_FALSE(store->await(Index(2)));
    store->append(batchOf(3));
    EXPECT_FALSE(store->await(Index(3))) << "nothing is taken before the state is loaded again";
  }
  EXPECT_EQ(must(store->load()).index, Index(1));
  EXPECT_FALSE(store->await(Index(2))) << "what was lost stays lost";
  store->append(batchOf(4));
  must(store->await(Index(4)));
  EXPECT_FALSE(store->await(Index(3)));
  EXPECT_EQ(must(verifyAudit(*store)).records, 2u);
}

TEST_F(StoreTest, TheManagerGetsOverAFullDisk) {
  FabricHouse house;
  auto manager = house.open();
  must(manager->addPool({}, "pool", MemoryClass::kCxl));
  must(manager->addDevice({}, house.poolFile("d1", 64)));
  must(manager->addHost({}, hostSpec("h1")));
  const RegionId kept = RegionId(must(manager->assign({}, want("h1", 4))).id);
  Caller caller;
  caller.key = "again";
  {
    FullDisk full(std::filesystem::file_size(house.folder / "store.db-wal"));
    EXPECT_FALSE(manager->assign(caller, want("h1", 8)));
    EXPECT_FALSE(manager->addPool({}, "p2", MemoryClass::kCxl));
    EXPECT_FALSE(manager->showRegion(kept)) << "what is in memory may not be what is durable";
    must(manager->renewLease("h1"));
    manager->tick();
    EXPECT_FALSE(manager->assign(caller, want("h1", 8)));
  }
  manager->tick();
  EXPECT_EQ(must(manager->showRegion(kept)).region.state, RegionState::kAttached);
  EXPECT_EQ(must(manager->totals()).free, Bytes(60 * kGrain));
  const Answer answer = must(manager->assign(caller, want("h1", 8)));
  EXPECT_EQ(must(manager->assign(caller, want("h1", 8))), answer);
  EXPECT_EQ(must(manager->totals()).free, Bytes(52 * kGrain));
  manager.reset();
  recoverAndCheck(house);
}

TEST_F(StoreTest, EventsThatAreGoneAreSaidToBeGone) {
  auto store = open();
  must(store->load());
  for (uint64_t i = 1; i <= 10; ++i) store->append(batchOf(i));
  Batch drop = batchOf(11);
  drop.changes = {DropEventsBefore{Index(6)}};
  store->append(drop);
  must(store->await(Index(11)));
  EXPECT_EQ(codeOf(store->eventsAfter(Index(3), 10, HostId())), ErrorCode::kNotFound);
  EXPECT_EQ(must(store->eventsAfter(Index(5), 10, HostId())).front().index, Index(6));
}

TEST_F(StoreTest, IsMadeOnceAndByNobodyElse) {
  const auto missing = openSqliteStore(path);
  ASSERT_EQ(codeOf(missing), ErrorCode::kNotFound);
  EXPECT_NE(std::string(missing.error().text()).find("fabricmgr init"), std::string::npos);
  EXPECT_TRUE(std::filesystem::is_empty(folder.path())) << "not even a lock";
  EXPECT_EQ(codeOf(initSqliteStore(folder / "none/store.db")), ErrorCode::kNotFound);
  const Standing made = must(initSqliteStore(path));
  EXPECT_TRUE(isFabricId(made.fabric)) << made.fabric;
  EXPECT_EQ(codeOf(initSqliteStore(path)), ErrorCode::kConflict);
  EXPECT_NE(must(initSqliteStore(folder / "other.db")).fabric, made.fabric);
  std::filesystem::rename(path, folder / "away");
  std::ofstream(path + "-wal") << "what a store has left behind would become part of the new one";
  EXPECT_EQ(codeOf(initSqliteStore(path)), ErrorCode::kConflict);
  std::filesystem::remove(path + "-wal");
  std::ofstream(path).close();
  EXPECT_EQ(codeOf(openSqliteStore(path)), ErrorCode::kNotFound) << "an empty file";
}

TEST_F(StoreTest, TermsGrowAndSurvive) {
  const Standing made = must(initSqliteStore(path));
  EXPECT_EQ(made.term, Term());
  EXPECT_EQ(must(must(openSqliteStore(path))->beginTerm(Term())).term, Term(1));
  auto store = must(openSqliteStore(path));
  const Standing now = must(store->beginTerm(Term()));
  EXPECT_EQ(now.term, Term(2));
  EXPECT_EQ(now.fabric, made.fabric);
  EXPECT_FALSE(now.outbids);
  EXPECT_EQ(must(store->beginTerm(Term(7))).term, Term(8)) << "above one that was heard of";
  EXPECT_EQ(must(store->beginTerm(Term(3))).term, Term(9));
}

/// As it was left by the version before there were fabrics.
TEST_F(StoreTest, AnOldStoreGetsAnIdentityAndKeepsTheRest) {
  {
    auto store = open();
    must(store->load());
    store->append(batchOf(1));
    must(store->await(Index(1)));
  }
  meddle(kUndoToFirstStep);
  std::string fabric;
  for (uint64_t term = 1; term <= 2; ++term) {
    auto store = open();
    EXPECT_EQ(must(store->load()).pools.size(), 1u);
    const Standing now = must(store->beginTerm(Term()));
    EXPECT_EQ(now.term, Term(term));
    EXPECT_TRUE(isFabricId(now.fabric));
    EXPECT_TRUE(term == 1 || now.fabric == fabric);
    fabric = now.fabric;
  }
}

TEST(Store, IsOneHoweverItIsCalled) {
  const Folder folder;
  const std::string path = folder / "store.db";
  std::filesystem::create_symlink("store.db", folder / "link.db");
  EXPECT_EQ(codeOf(openSqliteStore(folder / "link.db")), ErrorCode::kNotFound);
  must(initSqliteStore(path));
  {
    const auto first = openSqliteStore(folder / "link.db");
    ASSERT_TRUE(first) << first.error().text();
    EXPECT_EQ(codeOf(openSqliteStore(path)), ErrorCode::kConflict);
    EXPECT_EQ(codeOf(openSqliteStore(folder / "link.db")), ErrorCode::kConflict);
    EXPECT_EQ(codeOf(openSqliteStore(folder / "./store.db")), ErrorCode::kConflict);
  }
  std::filesystem::create_hard_link(path, folder / "hard.db");
  EXPECT_EQ(codeOf(openSqliteStore(folder / "hard.db")), ErrorCode::kConflict);
  std::filesystem::remove(folder / "hard.db");
  EXPECT_TRUE(openSqliteStore(path));
}

}  // namespace
}  // namespace tidepool::fabric
