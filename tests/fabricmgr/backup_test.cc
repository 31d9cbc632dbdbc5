// SPDX-License-Identifier: Apache-2.0
// Saving a store beside its manager, and putting one back: what was given out meanwhile is known to
// be nobody's, tokens and ids do not come again, and what cannot be put back changes nothing.
#include "fabricmgr/store/backup.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <set>

#include "fabricmgr/store/migrations.h"
#include "runtime/transport/client.h"
#include "tests/fabricmgr/crash_fixture.h"
#include "tests/fabricmgr/lender.h"
#include "tests/fabricmgr/manager_fixture.h"

namespace tidepool::fabric {
namespace {

constexpr Nanoseconds kNow(1'700'000'000'000'000'000);

class BackupTest : public ManagerFixture {
 protected:
  void SetUp() override {
    house.drivers = makeDriverFactory({&house.wall, managerTls(), kLong});
    manager = house.open();
    must(manager->addPool({}, "far", MemoryClass::kRemote));
    must(manager->addDevice({}, lender.spec()));
    must(manager->addHost({}, hostSpec("h1")));
    must(manager->addHost({}, hostSpec("h2")));
  }
  void restart(int times = 1) {
    for (int i = 0; i < times; ++i) reopen();
  }
  std::set<std::string> files() const {
    std::set<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(house.folder.path())) {
      names.insert(entry.path().filename());
    }
    return names;
  }
  bool knowsHost(const std::string& name) { return manager->showHost(name).has_value(); }

  Lender lender{1024};
  const std::string store = house.folder / "store.db";
  const std::string backup = house.folder / "backup";
};

TEST_F(BackupTest, ABackupIsMadeBesideTheManagerAndPutBack) {
  const Standing saved = must(backUpStore(store, backup));
  EXPECT_EQ(saved.fabric, manager->leader().fabric);
  struct stat about;
  ASSERT_EQ(stat(backup.c_str(), &about), 0);
  EXPECT_EQ(about.st_mode & 0777, 0600u);
  EXPECT_EQ(codeOf(backUpStore(store, backup)), ErrorCode::kConflict) << "it is not written over";
  EXPECT_EQ(codeOf(backUpStore(store + "x", backup + "x")), ErrorCode::kNotFound);
  must(manager->addHost({}, hostSpec("h3")));  // the manager goes on
  restart(3);
  EXPECT_EQ(codeOf(restoreStore(store, backup, kNow)), ErrorCode::kConflict) << "it is open";
  const Term last = manager->leader().term;
  const Index index = manager->index();
  manager.reset();
  const Restored restored = must(restoreStore(store, backup, kNow));
  EXPECT_EQ(restored.standing.fabric, saved.fabric);
  EXPECT_GT(restored.standing.term, last);
  EXPECT_GE(restored.index, index) << "ids are not given again";
  EXPECT_EQ(restored.replaced, store + ".replaced-20231114T221320Z");
  restart();
  EXPECT_TRUE(knowsHost("h2"));
  EXPECT_FALSE(knowsHost("h3"));
  EXPECT_EQ(must(manager->totals()).superseded_by, Term());
  EXPECT_GT(must(manager->addHost({}, hostSpec("h4"))).id, index.value());
  manager.reset();
  // And back again.
  std::filesystem::remove(backup);
  std::filesystem::rename(restored.replaced, backup);
  must(restoreStore(store, backup, kNow));
  restart();
  EXPECT_TRUE(knowsHost("h3"));
  EXPECT_FALSE(knowsHost("h4"));
}

TEST_F(BackupTest, WhatIsNoBackupChangesNothing) {
  must(backUpStore(store, backup));
  manager.reset();
  const auto meddled = [&](const std::string& name, const std::string& sql) {
    const std::string path = house.folder / name;
    std::filesystem::copy_file(backup, path);
    const auto database = Database::open(path, SQLITE_OPEN_READWRITE);
    EXPECT_TRUE(database && database->execute(sql.c_str())) << sql;
    return path;
  };
  std::ofstream(house.folder / "text") << std::string(5000, 'x');
  std::ofstream(house.folder / "empty").close();
  std::filesystem::copy_file(backup, house.folder / "cut");
  std::filesystem::resize_file(house.folder / "cut", 9 * kPageSize);
  const std::string newer = std::to_string(migrations().size() + 1);
  const std::pair<std::string, ErrorCode> cases[] = {
      {house.folder / "nothing", ErrorCode::kNotFound},
      {house.folder / "text", ErrorCode::kCorrupt},
      {house.folder / "empty", ErrorCode::kNotFound},
      {house.folder / "cut", ErrorCode::kCorrupt},
      {meddled("other", "PRAGMA application_id = 1"), ErrorCode::kCorrupt},
      {meddled("newer", "INSERT INTO migrations VALUES(" + newer + ", 'x')"),
       ErrorCode::kUnsupported},
      {meddled("nobody", "DELETE FROM fabric"), ErrorCode::kCorrupt},
      {meddled("changed", "UPDATE migrations SET checksum = 'x'"), ErrorCode::kCorrupt},
  };
  const std::string dump = checker::Checker(store).dump();
  auto before = files();
  before.insert("store.db.lock");
  for (const auto& [path, code] : cases) {
    EXPECT_EQ(codeOf(restoreStore(store, path, kNow)), code) << path;
    auto after = files();
    after.insert("store.db.lock");
    EXPECT_EQ(after, before) << path;
  }
  EXPECT_EQ(checker::Checker(store).dump(), dump);
  manager = house.open();
  EXPECT_TRUE(knowsHost("h2"));
}

/// The finding: after a restore the next tenant got the former one's id, and with it the same
/// token.
TEST_F(BackupTest, ATokenFromBeforeARestoreOpensNothingAfterIt) {
  must(backUpStore(store, backup));
  const RegionId first = assign("h1", 4);
  const wire::ClientHello before = helloOf(must(manager->access("h1", first)));
  EXPECT_TRUE(lender.connect(before));
  release(first);
  finishWork(*manager);
  manager.reset();
  must(restoreStore(store, backup, kNow));
  manager = house.open();
  finishWork(*manager);
  const RegionId second = assign("h2", 4);
  const wire::ClientHello after = helloOf(must(manager->access("h2", second)));
  EXPECT_TRUE(lender.connect(after));
  EXPECT_FALSE(lender.connect(before));
  wire::ClientHello guess = after;
  guess.token = before.token;
  EXPECT_FALSE(lender.connect(guess)) << "whatever else is known";
  guess.region = first.value() | control::kManaged;
  EXPECT_FALSE(lender.connect(guess));
  EXPECT_NE(after.epoch, before.epoch);
  EXPECT_NE(second, first);
}

TEST_F(BackupTest, WhatWasGivenSinceIsTakenBack) {
  must(backUpStore(store, backup));
  const RegionId region = assign("h1", 4);
  manager.reset();
  must(restoreStore(store, backup, kNow));
  manager = house.open();
  finishWork(*manager);
  EXPECT_EQ(codeOf(manager->showRegion(region)), ErrorCode::kNotFound);
  EXPECT_EQ(must(manager->totals()).free, Bytes(1024 * kGrain)) << "erased, and free again";
}

TEST_F(BackupTest, ABackupOfBeforeThereWereUuidsIsOfTheFabricThatItBecame) {
  must(backUpStore(store, backup));
  {
    const auto old = Database::open(backup, SQLITE_OPEN_READWRITE);
    ASSERT_TRUE(old && old->execute(kUndoToFirstStep));
  }
  const std::string fabric = manager->leader().fabric;
  manager.reset();
  EXPECT_EQ(must(restoreStore(store, backup, kNow)).standing.fabric, fabric);
  manager = house.open();
  assign("h1", 4);
}

/// As in a drill, with the key, where devices can be reached.
TEST_F(BackupTest, WhatIsRestoredElsewhereDoesNotTakeOverFromALiveManager) {
  must(backUpStore(store, backup));
  FabricHouse elsewhere;
  elsewhere.drivers = makeDriverFactory({&elsewhere.wall, managerTls(), kLong});
  must(restoreStore(elsewhere.folder / "store.db", backup, kNow));
  auto drill = elsewhere.open();
  EXPECT_NE(must(drill->totals()).superseded_by, Term());
  EXPECT_EQ(codeOf(drill->assign({}, want("h1", 1))), ErrorCode::kConflict);
  manager->tick();
  assign("h1", 4);
}

/// The store is gone altogether, and devices know newer terms than the backup does.
TEST_F(BackupTest, ABackupAloneOutbidsWhatDevicesKnow) {
  must(backUpStore(store, backup));
  restart(5);
  const Term last = manager->leader().term;
  manager.reset();
  std::filesystem::remove(store);
  const Restored restored = must(restoreStore(store, backup, kNow));
  EXPECT_EQ(restored.replaced, "");
  EXPECT_LT(restored.standing.term, last);
  manager = house.open();
  EXPECT_GT(manager->leader().term, last);
  assign("h1", 4);
  const Term now = manager->leader().term;
  restart();
  EXPECT_EQ(manager->leader().term, now + 1) << "it took over once";
  assign("h2", 4);
}

}  // namespace
}  // namespace tidepool::fabric
