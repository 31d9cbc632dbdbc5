// SPDX-License-Identifier: Apache-2.0
// FrameTable: frames whose last holder has died, left or given its writes up while some were under
// way stay held until these have been fenced off.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "runtime/tier/frame_table.h"

namespace tidepool {
namespace {

constexpr PageCount kAll(64);

class FrameWrites : public testing::Test {
 protected:
  void SetUp() override { table_->settle(); }
  void TearDown() override { table_->leave(); }

  /// A child that holds all frames and does `first`, and then nothing until it is killed.
  int child(const std::function<void(FrameTable&)>& first) {
    int said[2];
    EXPECT_EQ(pipe(said), 0);
    EXPECT_TRUE(table_->beforeFork());
    const int pid = fork();
    if (pid == 0) {
      table_->afterForkInChild();
      table_->settle();
      (void)table_->allocate(kAll);
      first(*table_);
      if (write(said[1], "", 1) != 1) _exit(1);
      for (;;) pause();
    }
    table_->afterForkInParent();
    close(said[1]);
    char byte;
    EXPECT_EQ(read(said[0], &byte, 1), 1);
    close(said[0]);
    return pid;
  }
  /// One that dies with writes under way on those connections.
  void childDiesWriting(const std::vector<uint32_t>& connections) {
    end(child([&](FrameTable& table) {
      for (const uint32_t connection : connections) {
        table.recordWrites(connection * 2).release()->begin(connection);  // never ended
      }
    }));
  }
  static void end(int pid) {
    kill(pid, SIGKILL);
    EXPECT_EQ(waitpid(pid, nullptr, 0), pid);
  }

  std::unique_ptr<FrameTable> table_ = std::move(*FrameTable::create(kAll));
};

TEST_F(FrameWrites, WhatEndedWellHoldsNothingUp) {
  end(child([](FrameTable& table) {
    const auto record = table.recordWrites();
    record->begin(7);
    record->begin(8);  // the connection was made again
    record->end();
  }));
  EXPECT_EQ(table_->reap(), 1u);
  EXPECT_FALSE(table_->nextLateWrites());
  EXPECT_TRUE(table_->allocate(kAll));
}

TEST_F(FrameWrites, OfTheDeadEachConnectionIsFencedOnce) {
  childDiesWriting({7, 9});
  EXPECT_FALSE(table_->allocate(PageCount(1)));
  EXPECT_EQ(table_->reap(), 0u);
  const auto first = table_->nextLateWrites();
  const auto second = table_->nextLateWrites();
  ASSERT_TRUE(first && second);
  EXPECT_EQ(first->connection(), 7u);
  EXPECT_EQ(first->where(), 14u);
  EXPECT_EQ(second->connection(), 9u);
  EXPECT_EQ(second->where(), 18u);
  table_->fenced(*first);
  table_->fenced(*first);
  EXPECT_FALSE(table_->allocate(PageCount(1)));
  table_->fenced(*second);
  EXPECT_EQ(table_->reap(), 1u);
  EXPECT_EQ(table_->reap(), 0u);
  EXPECT_TRUE(table_->allocate(kAll));
  EXPECT_FALSE(table_->nextLateWrites());
}

TEST_F(FrameWrites, TheFencerMayDieMeanwhile) {
  childDiesWriting({7});
  const int fencer = child([](FrameTable& table) {
    table.reap();
    if (!table.nextLateWrites()) _exit(1);
  });
  end(fencer);
  EXPECT_EQ(table_->reap(), 1u) << "the fencer, which had none itself";
  const auto late = table_->nextLateWrites();
  ASSERT_TRUE(late);
  EXPECT_EQ(late->connection(), 7u);
  table_->fenced(*late);
  EXPECT_TRUE(table_->allocate(kAll));
}

TEST_F(FrameWrites, RelativesMayFenceTheSame) {
  childDiesWriting({7});
  table_->reap();
  const auto late = table_->nextLateWrites();
  ASSERT_TRUE(late);
  end(child([](FrameTable& table) {
    table.reap();
    table.fenced(*table.nextLateWrites());
  }));
  EXPECT_EQ(table_->reap(), 1u);
  // What has the slot now is not theirs.
  childDiesWriting({8});
  table_->fenced(*late);
  EXPECT_EQ(table_->reap(), 0u);
  EXPECT_FALSE(table_->allocate(PageCount(1)));
}

TEST_F(FrameWrites, LeavingInTheirMidstIsLikeDying) {
  end(child([](FrameTable& table) {
    table.recordWrites().release()->begin(7);
    table.leave();
  }));
  EXPECT_EQ(table_->reap(), 0u);
  EXPECT_FALSE(table_->allocate(PageCount(1)));
  const auto late = table_->nextLateWrites();
  ASSERT_TRUE(late);
  table_->fenced(*late);
  EXPECT_TRUE(table_->allocate(kAll));
}

TEST_F(FrameWrites, WhatCannotBeFencedStaysHeld) {
  childDiesWriting({0});
  EXPECT_EQ(table_->reap(), 0u);
  const auto late = table_->nextLateWrites();
  ASSERT_TRUE(late);
  EXPECT_EQ(late->connection(), 0u);
  EXPECT_FALSE(table_->allocate(PageCount(1)));
}

TEST_F(FrameWrites, MoreConnectionsThanCanBeNotedCannotBeFenced) {
  end(child([](FrameTable& table) {
    std::vector<std::unique_ptr<WriteRecord>> records;
    for (uint32_t i = 0; i < 300; ++i) {
      records.push_back(table.recordWrites());
      records.back()->begin(i + 1);
    }
    for (auto& record : records) record->end();
  }));
  EXPECT_EQ(table_->reap(), 0u);
  const auto late = table_->nextLateWrites();
  ASSERT_TRUE(late);
  EXPECT_EQ(late->connection(), 0u);
}

TEST_F(FrameWrites, WhatIsLetGoOfAfterThatWaits) {
  const auto run = table_->allocate(kAll);
  ASSERT_TRUE(run);
  const auto record = table_->recordWrites(3);
  record->begin(7);
  table_->release({run->first, PageCount(1)});  // of others: what is being written is not let go of
  EXPECT_EQ(table_->used(), PageCount(63));
  record->giveUp();
  record->begin(8);  // another connection, which works
  record->end();
  table_->release({run->first + 1, PageCount(63)});
  EXPECT_EQ(table_->heldHere(), PageCount(0));
  EXPECT_EQ(table_->used(), PageCount(63));
  const auto late = table_->nextLateWrites();
  ASSERT_TRUE(late);
  EXPECT_EQ(late->connection(), 7u);
  EXPECT_EQ(late->where(), 3u);
  // A child has nothing of it, and what it lets go of is free.
  const int relative = child([](FrameTable& table) {
    table.release({FrameIndex(0), PageCount(1)});
    if (table.nextLateWrites() || table.heldHere() != PageCount(0)) _exit(1);
  });
  EXPECT_EQ(table_->used(), PageCount(63));
  table_->fenced(*late);
  EXPECT_EQ(table_->used(), PageCount(0));
  end(relative);
  EXPECT_TRUE(table_->allocate(kAll));
}

TEST_F(FrameWrites, AChildsCopyOfARecordIsTheParents) {
  const auto record = table_->recordWrites();
  record->begin(7);
  end(child([&](FrameTable&) {
    record->begin(8);
    record->giveUp();
  }));
  EXPECT_FALSE(table_->nextLateWrites());
  EXPECT_EQ(table_->reap(), 0u) << "8 is under way, of the child's own";
  const auto late = table_->nextLateWrites();
  ASSERT_TRUE(late);
  EXPECT_EQ(late->connection(), 8u);
  table_->fenced(*late);
  record->end();
  EXPECT_TRUE(table_->allocate(kAll));
}

}  // namespace
}  // namespace tidepool
