// SPDX-License-Identifier: Apache-2.0
// Old audit records: which of them go, and when (against a model), that the rest is still a chain
// that begins where a record of it says, what meddling is noticed, and crashes in between.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "fabricmgr/store/sqlite.h"
#include "tests/fabricmgr/crash_fixture.h"
#include "tests/fabricmgr/manager_fixture.h"

namespace tidepool::fabric {
namespace {

using ::testing::HasSubstr;

constexpr Nanoseconds kDay(86'400'000'000'000);

class Retention : public ManagerFixture {
 protected:
  void reopen(Nanoseconds age, uint64_t records) {
    house.audit_age = age;
    house.audit_records = records;
    ManagerFixture::reopen();
  }
  void change() {
    const std::string value = "v" + std::to_string(++changes);
    if (changes == 1) must(manager->addHost({}, hostSpec("h1")));
    must(manager->labelHost({}, "h1", {{"n", value}}));
  }
  void anHourLater() {
    house.clock.advance(kSecond * 3601);
    house.wall.advance(kSecond * 3601);
    manager->tick();
  }
  std::vector<AuditRecord> audit() { return must(manager->listAudit({0, 10'000})).items; }
  uint64_t removed() {
    const AuditVerdict verdict = must(manager->verifyAudit());
    EXPECT_EQ(verdict.first_bad, 0u) << verdict.text;
    EXPECT_EQ(verdict.records, audit().size());
    if (!audit().empty()) {
      EXPECT_EQ(audit().front().sequence, verdict.removed + 1);
    }
    return verdict.removed;
  }

  unsigned changes = 0;
};

TEST_F(Retention, NothingGoesUnlessItIsAskedFor) {
  reopen({}, 0);
  for (int i = 0; i < 5; ++i) change();
  house.wall.advance(kDay * 30'000);
  anHourLater();
  EXPECT_EQ(removed(), 0u);
}

TEST_F(Retention, RecordsGoOnceTheyAreOldAndTheirRemovalIsOneItself) {
  reopen(kDay * 10, 0);
  for (int i = 0; i < 5; ++i) change();
  const uint64_t old = audit().back().sequence;
  house.wall.advance(kDay * 5);
  change();
  anHourLater();
  EXPECT_EQ(removed(), 0u) << "they are not old yet";
  house.wall.advance(kDay * 5);
  anHourLater();
  EXPECT_EQ(removed(), old);
  const std::vector<AuditRecord> rest = audit();
  const auto found = std::find_if(rest.begin(), rest.end(), [](const AuditRecord& record) {
    return record.verb == "audit.drop";
  });
  ASSERT_NE(found, rest.end());
  const AuditRecord& last = *found;
  EXPECT_EQ(last.actor, "manager");
  EXPECT_THAT(last.outcome, HasSubstr("records up to " + std::to_string(old) + " are removed"));
  EXPECT_THAT(last.changes, HasSubstr("drop-audit " + std::to_string(old) + " hash="));
  const uint64_t count = audit().size();
  anHourLater();
  EXPECT_EQ(audit().size(), count) << "nothing more is old";
  reopen(kDay * 10, 0);
  EXPECT_EQ(removed(), old);
  house.wall.advance(kDay * 10);
  change();
  anHourLater();
  EXPECT_GT(removed(), last.sequence - 1) << "that record grows old as others do";
}

TEST_F(Retention, AsManyAsConfiguredAreKeptAndWhatIsBeyondGoesATenthAtATime) {
  reopen({}, 100);
  for (int i = 0; i < 107; ++i) change();
  anHourLater();
  EXPECT_EQ(removed(), 0u);
  for (int i = 0; i < 10; ++i) change();
  anHourLater();
  EXPECT_GT(removed(), 0u);
  EXPECT_EQ(audit().size(), 102u) << "100, the record of the removal, and of other old things'";
  const uint64_t index = must(manager->totals()).index.value();
  for (int i = 0; i < 20; ++i) anHourLater();
  EXPECT_EQ(must(manager->totals()).index.value(), index) << "removals alone bring no more about";
}

/// Random ages, counts and clocks: what is kept is what a loop over all that was written keeps.
TEST_F(Retention, IsWhatAModelKeeps) {
  std::mt19937 random(9);
  std::vector<AuditRecord> all;
  for (int round = 0; round < 40; ++round) {
    reopen(random() % 3 == 0 ? Nanoseconds() : kDay * (1 + random() % 5),
           random() % 2 == 0 ? 0 : 1 + random() % 8);
    const uint64_t before = removed();
    for (unsigned i = random() % 4; i > 0; --i) {
      change();
      house.wall.advance(kDay * (random() % 3));
    }
    for (const AuditRecord& record : audit()) {
      if (all.empty() || record.sequence > all.back().sequence) all.push_back(record);
    }
    if (all.empty()) continue;
    house.clock.advance(kSecond * 3601);
    uint64_t gone = before;
    const bool by_age = house.audit_age != Nanoseconds();
    const Nanoseconds now = house.wall.now();
    for (const AuditRecord& record : all) {
      if (record.sequence != gone + 1) continue;
      const bool old = !by_age || record.time < now - house.audit_age;
      const uint64_t newer = all.back().sequence - record.sequence;
      if (!old || newer < std::max<uint64_t>(house.audit_records, 1)) break;
      ++gone;
    }
    if (!by_age && house.audit_records == 0) gone = before;
    manager->tick();
    EXPECT_EQ(removed(), gone) << "round " << round;
  }
  EXPECT_GT(removed(), 10u);
}

TEST_F(Retention, WhatIsCutOffWithoutARecordIsNoticed) {
  reopen(kDay, 0);
  for (int i = 0; i < 5; ++i) change();
  house.wall.advance(kDay * 2);
  change();
  anHourLater();
  const uint64_t base = removed();
  ASSERT_GT(base, 0u);
  change();
  manager.reset();
  const std::string next = std::to_string(base + 1);
  const std::string to_next = "UPDATE audit_base SET sequence = " + next +
                              ", hash = (SELECT hash FROM audit WHERE sequence = " + next + ")";
  const auto run = [this](const std::string& path, const std::string& sql) {
    const auto database = Database::open(path, SQLITE_OPEN_READWRITE);
    return database ? database->execute(sql.c_str()) : Status(tl::unexpected(database.error()));
  };
  for (const std::string& sql :
       {std::string("DELETE FROM audit"), "DELETE FROM audit WHERE sequence = " + next,
        std::string("DELETE FROM audit_base"), "UPDATE audit_base SET sequence = " + next,
        std::string("UPDATE audit_base SET sequence = 0, hash = zeroblob(32)"),
        std::string("UPDATE audit_base SET sequence = 9999"),
        std::string("UPDATE audit_base SET sequence = (SELECT max(sequence) FROM audit), hash = "
                    "(SELECT hash FROM audit ORDER BY sequence DESC LIMIT 1)")}) {
    EXPECT_FALSE(run(house.folder / "store.db", sql)) << sql;
  }
  const std::pair<std::string, const char*> meddlings[] = {
      {to_next + "; DELETE FROM audit WHERE sequence = " + next, "and none says so"},
      {to_next, "and none says so"},
      {"DROP TRIGGER audit_is_append_only_d; DELETE FROM audit WHERE sequence = " + next,
       "does not follow"},
      {"DROP TRIGGER audit_base_is_a_record; UPDATE audit_base SET hash = zeroblob(32)",
       "does not follow"},
      {"DROP TRIGGER audit_base_is_a_record; UPDATE audit_base SET sequence = 0, hash = "
       "zeroblob(32)",
       "does not follow"},
  };
  for (const auto& [sql, wrong] : meddlings) {
    const std::string copy = house.folder / "copy.db";
    std::filesystem::copy_file(house.folder / "store.db", copy);
    must(run(copy, sql));
    const AuditVerdict verdict = must(verifyAudit(*must(openSqliteStore(copy))));
    EXPECT_NE(verdict.first_bad, 0u) << sql;
    EXPECT_THAT(verdict.text, HasSubstr(wrong)) << sql;
    for (const char* suffix : {"", "-wal", "-shm"}) std::filesystem::remove(copy + suffix);
  }
}

TEST_F(Retention, KilledAtEveryFaultPointItIsDoneAndSaidOrNeither) {
  reopen({}, 0);
  for (int i = 0; i < 5; ++i) change();
  manager.reset();
  Folder saved;
  replaceFolder(house.folder.path(), saved.path());
  house.wall.advance(kDay * 2);
  bool kept = false, gone = false;
  for (long point = 1;; ++point) {
    ASSERT_LT(point, 200);
    SCOPED_TRACE("killed at fault point " + std::to_string(point));
    replaceFolder(saved.path(), house.folder.path());
    house.audit_age = kDay;
    const Ending ending = runInChild(point, [&] {
      auto child = house.open();
      child->tick();
      child.reset();
    });
    ASSERT_NE(ending, Ending::kFailed);
    house.audit_age = {};
    recoverAndCheck(house, [&](Manager& next) {
      manager.reset();
      const AuditVerdict verdict = must(next.verifyAudit());
      EXPECT_EQ(verdict.first_bad, 0u) << verdict.text;
      (verdict.removed == 0 ? kept : gone) = true;
    });
    if (HasFailure()) return;
    if (ending == Ending::kFinished) break;
  }
  EXPECT_TRUE(kept && gone);
}

}  // namespace
}  // namespace tidepool::fabric
