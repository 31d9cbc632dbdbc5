// SPDX-License-Identifier: Apache-2.0
// RowChanges against sets of numbers: what a checkpoint is asked for, what is copied before it
// changes, and what is left for the next one however this one ends. And the pool of blocks.
#include "allocator/table/row_changes.h"

#include <gtest/gtest.h>

#include <random>
#include <set>
#include <thread>

namespace tidepool {
namespace {

constexpr RowNumber kRows = 700;
constexpr uint32_t kRowBytes = 16;

/// A table of numbers, with every row's number of changes in its bytes.
class ChangesModel {
 public:
  ChangesModel() : pool_(1000, Bytes(4 * kRowBytes)), bytes_(kRows) {}

  void change(RowNumber row, size_t worker) {
    std::byte bytes[kRowBytes] = {};
    memcpy(bytes, &bytes_[row], sizeof bytes_[row]);
    changes_.beforeChange(row, bytes, worker);
    ++bytes_[row];
    changed_.insert(row);
  }
  void begin(SavedRows which, RowNumber limit) {
    auto prepared = RowChanges::prepare(kRows);
    ASSERT_TRUE(prepared);
    changes_.begin(std::move(*prepared), which, limit, kRowBytes, 2, {&pool_, &queue_, 0});
    wanted_.clear();
    boundary_ = bytes_;
    for (RowNumber row = 0; row < limit; ++row) {
      if (which == SavedRows::kAll || changed_.contains(row)) wanted_.insert(row);
    }
    before_ = std::exchange(changed_, {});
  }
  /// Saves some rows, as the snapshot does.
  void scan(size_t most) {
    std::vector<RowNumber> rows;
    cursor_ = changes_.pending(cursor_, most, rows);
    for (const RowNumber row : rows) {
      ASSERT_TRUE(changes_.isPending(row));
      ASSERT_EQ(bytes_[row], boundary_[row]) << "row " << row << " changed and was not copied";
      ASSERT_TRUE(wanted_.erase(row)) << row;
      changes_.saved(row);
    }
  }
  void finish(bool complete) {
    cursor_ = 0;
    changes_.finishCopies();
    queue_.close();
    while (RowBlock* const block = queue_.pop()) {
      for (size_t i = 0; i < block->rows.size(); ++i) {
        uint64_t value = 0;
        memcpy(&value, block->bytes + i * kRowBytes, sizeof value);
        ASSERT_EQ(value, boundary_[block->rows[i]]);
        ASSERT_TRUE(wanted_.erase(block->rows[i])) << block->rows[i];
      }
      pool_.giveBack(block);
    }
    EXPECT_TRUE(wanted_.empty()) << wanted_.size() << " rows were not saved";
    complete ? changes_.commit(5) : changes_.abandon();
    if (!complete) changed_.merge(before_);
  }
  RowChanges changes_;

 private:
  RowBlockPool pool_;
  RowBlockQueue queue_;
  std::vector<uint64_t> bytes_, boundary_;
  std::set<RowNumber> changed_, before_, wanted_;
  RowNumber cursor_ = 0;
};

TEST(RowChanges, EveryRowThatIsAskedForIsSavedOnceAsItWas) {
  for (uint64_t seed = 0; seed < 60; ++seed) {
    std::mt19937_64 random(seed);
    ChangesModel model;
    ASSERT_TRUE(model.changes_.restart(kRows, 1));
    for (size_t i = random() % 300; i > 0; --i) model.change(random() % kRows, random() % 2);
    const RowNumber limit = random() % (kRows + 1);
    model.begin(seed % 2 == 0 ? SavedRows::kAll : SavedRows::kChanged, limit);
    for (int i = 0; i < 200; ++i) {
      if (random() % 4 != 0) model.change(random() % kRows, random() % 2);
      if (random() % 8 == 0) model.scan(random() % 40);
      if (testing::Test::HasFatalFailure()) return;
    }
    model.scan(kRows);
    model.finish(true);
    EXPECT_EQ(model.changes_.base(), 5u);
  }
}

TEST(RowChanges, WhatAnAbandonedCheckpointHadIsAskedForAgain) {
  ChangesModel model;
  ASSERT_TRUE(model.changes_.restart(kRows, 1));
  model.change(3, 0);
  model.change(64, 0);
  for (const SavedRows which : {SavedRows::kChanged, SavedRows::kAll}) {
    auto prepared = RowChanges::prepare(kRows);
    RowBlockPool pool(4, Bytes(64));
    RowBlockQueue queue;
    model.changes_.begin(std::move(*prepared), which, kRows, kRowBytes, 2, {&pool, &queue, 0});
    model.change(700 - 1, 0);
    model.changes_.saved(3);
    model.changes_.abandon();
    EXPECT_EQ(model.changes_.base(), 1u);
  }
  auto prepared = RowChanges::prepare(kRows);
  RowBlockPool pool(4, Bytes(64));
  RowBlockQueue queue;
  model.changes_.begin(std::move(*prepared), SavedRows::kChanged, kRows, kRowBytes, 2,
                       {&pool, &queue, 0});
  std::vector<RowNumber> rows;
  EXPECT_EQ(model.changes_.pending(0, 100, rows), kRows);
  EXPECT_EQ(rows, (std::vector<RowNumber>{3, 64, 699}));
  model.changes_.abandon();
}

TEST(RowChanges, NothingIsKeptBeforeTheFirstCheckpoint) {
  ChangesModel model;
  model.change(3, 0);
  EXPECT_EQ(model.changes_.memory(), Bytes());
  model.begin(SavedRows::kAll, kRows);
  model.change(3, 0);
  model.changes_.abandon();
  EXPECT_EQ(model.changes_.base(), 0u);
  EXPECT_EQ(model.changes_.memory(), Bytes());
}

TEST(RowBits, CanBeSetBySeveralThreads) {
  auto bits = RowBits::create(10'000);
  ASSERT_TRUE(bits);
  std::vector<std::thread> threads;
  for (RowNumber first = 0; first < 4; ++first) {
    threads.emplace_back([&, first] {
      for (RowNumber row = first; row < 10'000; row += 4) bits->set(row);
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (RowNumber row = 0; row < 10'000; ++row) ASSERT_TRUE(bits->test(row)) << row;
}

TEST(RowBlockPool, WhoTakesTooManyWaitsForAWriter) {
  RowBlockPool pool(2, Bytes(4096));
  RowBlock* const first = pool.take();
  RowBlock* const second = pool.take();
  ASSERT_NE(first, nullptr);
  ASSERT_NE(second, nullptr);
  first->rows.push_back(7);
  const auto untilWaits = [&pool](uint64_t times) {
    while (pool.waits() < times) std::this_thread::yield();
  };
  std::thread writer([&] {
    untilWaits(1);
    pool.giveBack(first);
  });
  RowBlock* const third = pool.take();
  writer.join();
  EXPECT_EQ(third, first);
  EXPECT_TRUE(third->rows.empty());
  EXPECT_EQ(pool.waits(), 1u);
  EXPECT_GT(pool.waited(), Nanoseconds());
  std::thread closer([&] {
    untilWaits(2);
    pool.close();
  });
  EXPECT_EQ(pool.take(), nullptr);
  closer.join();
}

TEST(RowBlockQueue, GivesWhatWasPushedBeforeItWasClosed) {
  RowBlockQueue queue;
  RowBlock one, two;
  queue.push(&one);
  queue.push(&two);
  queue.close();
  EXPECT_EQ(queue.pop(), &one);
  EXPECT_EQ(queue.pop(), &two);
  EXPECT_EQ(queue.pop(), nullptr);
}

TEST(RowChanges, WhatIsToBePublishedIsApartFromCheckpoints) {
  for (const RowNumber rows : {RowNumber{1}, RowNumber{63}, RowNumber{64}, kRows}) {
    RowChanges changes;
    ASSERT_FALSE(changes.publishes());
    ASSERT_TRUE(changes.startPublishing(rows));
    EXPECT_EQ(changes.memory(), Bytes());
    std::mt19937_64 random(rows);
    std::set<RowNumber> wanted;
    for (RowNumber row = 0; row < rows; ++row) wanted.insert(row);
    const std::byte bytes[kRowBytes] = {};
    for (int round = 0; round < 20; ++round) {
      if (round == 8) {  // after a restore
        ASSERT_TRUE(changes.restart(rows, 1));
        for (RowNumber row = 0; row < rows; ++row) wanted.insert(row);
      }
      for (uint64_t i = random() % 30; i > 0; --i) {
        const RowNumber row = random() % rows;
        i % 2 == 0 ? changes.beforeChange(row, bytes, 0) : changes.created(row);
        wanted.insert(row);
      }
      std::vector<RowNumber> got;
      for (RowNumber from = 0; from < rows;) {
        const size_t before = got.size();
        from = changes.unpublished(rows, from, 7, got);
        ASSERT_LE(got.size(), before + 7);
      }
      ASSERT_EQ(got, std::vector<RowNumber>(wanted.begin(), wanted.end()));
      if (round % 3 != 0) continue;  // it failed
      changes.published();
      wanted.clear();
    }
    changes.stopPublishing();
    EXPECT_FALSE(changes.publishes());
  }
}

}  // namespace
}  // namespace tidepool
