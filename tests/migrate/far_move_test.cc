// SPDX-License-Identifier: Apache-2.0
// A batch of pages on its way to another tier, which finds fewer frames than it has pages: what was
// found before, and by an earlier batch, does not count any more.
#include "runtime/migrate/core/far_move.h"

#include <optional>

#include "tests/migrate/fake_core.h"

namespace tidepool {
namespace {

class FarMoveTest : public FakeCoreTest {
 protected:
  void SetUp() override {
    FakeCoreTest::SetUp();
    addTier();
    near_ = &addTier(PageCount(18));
    last_ = &addTier();
    first_ = allocate();
    makeFar(first_, 20);
    move_.emplace(std::move(*FarMove::create(core_, 16)));
  }
  void claim(uint64_t from, uint64_t count) {
    const GranuleLock granule(*core_.space, granuleOf(first_));
    for (uint64_t i = from; i < from + count; ++i) move_->claim(granule, first_ + i);
    ASSERT_TRUE(move_->read());
  }
  /// What has found frames arrives there; returns how many pages did.
  uint64_t arrive() {
    EXPECT_TRUE(move_->write());
    uint64_t count = 0;
    move_->settle([&](PageIndex) { ++count; });
    return count;
  }

  FakeTier* near_ = nullptr;
  FakeTier* last_ = nullptr;
  PageIndex first_;
  std::optional<FarMove> move_;
};

TEST_F(FarMoveTest, TheRestGoesToTheNextTierWithRoom) {
  claim(0, 14);
  ASSERT_TRUE(move_->findFrames(1));
  EXPECT_EQ(arrive(), 14u);
  EXPECT_TRUE(move_->empty());
  move_->abandon();
  claim(14, 6);
  ASSERT_TRUE(move_->findFrames(1));
  EXPECT_EQ(move_->tier(), 2);
  near_->forsake(FrameIndex(18));
  EXPECT_FALSE(move_->forsaken());
  near_->forsake(FrameIndex(17));
  EXPECT_TRUE(move_->forsaken()) << "the last of four";
  EXPECT_EQ(arrive(), 4u);
  ASSERT_TRUE(move_->findFrames(1));
  EXPECT_EQ(move_->tier(), 3);
  last_->forsake(FrameIndex(2));
  EXPECT_FALSE(move_->forsaken()) << "frames of others than the two that are left";
  last_->forsake(FrameIndex(1));
  EXPECT_TRUE(move_->forsaken());
  EXPECT_EQ(arrive(), 2u);
  for (uint64_t i = 0; i < 20; ++i) {
    EXPECT_EQ(state(first_ + i), PageState::kFar);
    FakeTier& tier = i < 18 ? *near_ : *last_;
    EXPECT_EQ(word(first_ + i).tier(), i < 18 ? 2 : 3);
    EXPECT_EQ(tier.word(word(first_ + i).frame()), (first_ + i).value());
  }
  move_->abandon();
}

TEST_F(FarMoveTest, WhatIsAbandonedStaysAndItsFramesAreFree) {
  claim(0, 16);
  EXPECT_TRUE(move_->full());
  ASSERT_TRUE(move_->findFrames(1));
  EXPECT_EQ(near_->held(), 16u);
  move_->abandon();
  EXPECT_EQ(near_->held(), 0u);
  EXPECT_TRUE(move_->empty());
  for (uint64_t i = 0; i < 16; ++i) {
    EXPECT_EQ(state(first_ + i), PageState::kFar);
    EXPECT_EQ(word(first_ + i).tier(), 1);
  }
}

}  // namespace
}  // namespace tidepool
