// SPDX-License-Identifier: Apache-2.0
// The store in etcd beside SQLite's: the same answers to random histories, and moving from one to
// the other.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "fabricmgr/store/sqlite.h"
#include "fabricmgr/store/sqlite_store.h"
#include "fabricmgr/store/store_copy.h"
#include "tests/fabricmgr/store_changes.h"

namespace tidepool::fabric {
namespace {

using ::testing::HasSubstr;

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
    std::mt19937_64 random(seed);
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

}  // namespace
}  // namespace tidepool::fabric
