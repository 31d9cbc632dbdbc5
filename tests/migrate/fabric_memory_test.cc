// SPDX-License-Identifier: Apache-2.0
// How far memory from the agent grows: what is asked for when, and what is done with the answers.
#include "tests/migrate/fabric_memory_fixture.h"

namespace tidepool {
namespace {

TEST_F(FabricMemoryTest, AsksForNothingUntilItIsNeeded) {
  connect();
  EXPECT_TRUE(growing()) << "who is short of memory waits for the first region";
  EXPECT_TRUE(core_.tiers.moreMayCome());
  tend();
  expectSilence();
  EXPECT_TRUE(growing());
  core_.options.dram = Bytes(16 * kMiB);
  core_.budget.charge(PageCount(2048));
  tend();
  expectSilence();
  core_.budget.charge(PageCount(1));
  tend();
  EXPECT_EQ(expect(RequestKind::kAsk).size, Bytes(256 * kMiB)) << "more than half is in use";
}

TEST_F(FabricMemoryTest, AnAgentThatDoesNotWelcomeIsAnError) {
  EXPECT_EQ(connectTo(NoticeKind::kRefused, ErrorCode::kPermission), ErrorCode::kPermission);
  EXPECT_EQ(connectTo(NoticeKind::kKept), ErrorCode::kCorrupt);
  EXPECT_FALSE(growing());
  EXPECT_FALSE(core_.tiers.moreMayCome());
}

TEST_F(FabricMemoryTest, AsksOnceAndTakesWhatComes) {
  connect();
  sayMemoryIsShort();
  tend();
  const Request ask = expect(RequestKind::kAsk);
  EXPECT_EQ(ask.size, Bytes(256 * kMiB));
  tend();
  expectSilence();
  EXPECT_TRUE(growing());
  rung(core_.freed_memory);
  give(7, Bytes(256 * kMiB), ask.tag);
  ASSERT_NE(core_.tiers.direct(1), nullptr);
  EXPECT_EQ(core_.tiers.tier(1).capacity(), Bytes(256 * kMiB));
  EXPECT_FALSE(growing());
  EXPECT_TRUE(rung(core_.freed_memory)) << "who waited looks anew";
  expectSilence();
}

TEST_F(FabricMemoryTest, AsksForNoMoreThanItMay) {
  connect(Bytes(40 * kMiB));
  sayMemoryIsShort();
  tend();
  EXPECT_EQ(expect(RequestKind::kAsk).size, Bytes(40 * kMiB));
  give(7, Bytes(40 * kMiB));
  tendAfter(kSecond * 5);
  expectSilence();
  EXPECT_FALSE(growing());
}

TEST_F(FabricMemoryTest, StepsFollowWhatThereIs) {
  connect();
  sayMemoryIsShort();
  tend();
  expect(RequestKind::kAsk);
  give(7, Bytes(32 * kMiB));
  EXPECT_EQ(expect(RequestKind::kAsk).size, Bytes(256 * kMiB)) << "64 MiB are to be free";
}

class FabricMemoryGrowth : public FabricMemoryTest, public testing::WithParamInterface<uint64_t> {};

TEST_P(FabricMemoryGrowth, MoreIsAskedForWhenLittleIsFree) {
  const uint64_t mib = GetParam();
  connect();
  sayMemoryIsShort();
  tend();
  expect(RequestKind::kAsk);
  give(7, Bytes(mib * kMiB));
  sayMemoryIsShort(false);
  hold(Bytes((mib - std::max<uint64_t>(64, mib / 8)) * kMiB));
  tend();
  expectSilence();
  EXPECT_FALSE(growing());
  hold(Bytes(kGranuleSize));
  tend();
  EXPECT_EQ(expect(RequestKind::kAsk).size, Bytes(mib * kMiB)) << "as much as there is";
  tend();
  EXPECT_TRUE(growing());
}

INSTANTIATE_TEST_SUITE_P(Mebibytes, FabricMemoryGrowth, testing::Values(256, 1024));

TEST_F(FabricMemoryTest, WhatIsNeededAtOnceIsAskedForInAPause) {
  begin();
  hold(Bytes(200 * kMiB));
  tend();
  refuse(expect(RequestKind::kAsk), ErrorCode::kPermission);
  tendAfter(Nanoseconds(1));
  expectSilence();
  EXPECT_EQ(errors(), 0u) << "nobody waits for it";
  hold(Bytes(54 * kMiB));
  tend();
  refuse(expect(RequestKind::kAsk), ErrorCode::kPermission);
  tend();
  expectSilence();
  EXPECT_EQ(errors(), 1u);
  say(NoticeKind::kDrain, 7);
  tend();
  expect(RequestKind::kLeft);
  expect(RequestKind::kAsk);
}

TEST_F(FabricMemoryTest, WhatIsToLeaveARegionNeedsRoomInOthers) {
  begin();
  sayMemoryIsShort(false);
  give(8, Bytes(256 * kMiB));
  const FrameRun held = hold(Bytes(192 * kMiB));
  say(NoticeKind::kDrain, 7);
  tend();
  expect(RequestKind::kLeft);
  expectSilence();  // 64 MiB would still be free
  core_.tiers.tier(1).table().release(held);
  hold(Bytes(194 * kMiB));
  tend();
  EXPECT_EQ(expect(RequestKind::kAsk).size, Bytes(256 * kMiB));
}

TEST_F(FabricMemoryTest, RefusedItAsksForLessAndThenPauses) {
  connect();
  sayMemoryIsShort();
  for (const Nanoseconds pause : {kSecond, kSecond * 2, kSecond * 4}) {
    tend();
    for (const uint64_t mib : {256, 128, 64, 32}) {
      const Request ask = expect(RequestKind::kAsk);
      EXPECT_EQ(ask.size, Bytes(mib * kMiB));
      EXPECT_TRUE(growing());
      refuse(ask, ErrorCode::kNoSpace);
      tend();
    }
    expectSilence();
    EXPECT_FALSE(growing()) << "nobody waits for it";
    tendAfter(pause - Nanoseconds(1));
    expectSilence();
    clock_.advance(Nanoseconds(1));
  }
  EXPECT_EQ(errors(), 1u) << "it is said once";
}

TEST_F(FabricMemoryTest, PausesAreShortAgainOnceARegionCame) {
  connect();
  sayMemoryIsShort();
  const auto refuseAndWait = [&](Nanoseconds pause) {
    tend();
    refuse(expect(RequestKind::kAsk), ErrorCode::kPermission);
    tend();
    tendAfter(pause - Nanoseconds(1));
    expectSilence();
    clock_.advance(Nanoseconds(1));
  };
  refuseAndWait(kSecond);
  refuseAndWait(kSecond * 2);
  tend();
  expect(RequestKind::kAsk);
  give(7, Bytes(256 * kMiB));
  hold(Bytes(250 * kMiB));
  refuseAndWait(kSecond);
  tend();
  expect(RequestKind::kAsk);
}

TEST_F(FabricMemoryTest, RefusedForAnotherReasonItPausesAtOnce) {
  connect();
  sayMemoryIsShort();
  tend();
  refuse(expect(RequestKind::kAsk), ErrorCode::kPermission);
  tend();
  expectSilence();
  EXPECT_FALSE(growing());
}

TEST_F(FabricMemoryTest, WhatCannotBeUsedGoesBack) {
  connect();
  sayMemoryIsShort();
  tend();
  expect(RequestKind::kAsk);
  int pipe_ends[2];
  ASSERT_EQ(pipe2(pipe_ends, O_CLOEXEC), 0);
  const UniqueFd pipe(pipe_ends[0]), other(pipe_ends[1]);
  say(NoticeKind::kRegion, 7, Bytes(32 * kMiB), 1, {}, pipe.get());
  tend();
  EXPECT_EQ(errors(), 1u);
  for (int i = 0; i < 4; ++i) tend();
  EXPECT_EQ(expect(RequestKind::kReturn).region, 7u);
  expectSilence();
  EXPECT_EQ(core_.tiers.find(1), nullptr);
}

TEST_F(FabricMemoryTest, MoreRegionsThanThereAreTiersGoBack) {
  connect(Bytes(kPageSize));
  for (uint64_t i = 0; i < TierSet::kMost; ++i) give(100 + i, Bytes(2 * kGranuleSize));
  EXPECT_TRUE(core_.tiers.full());
  give(7, Bytes(2 * kGranuleSize));
  const Request back = expect(RequestKind::kReturn);
  EXPECT_EQ(back.region, 7u);
}

TEST_F(FabricMemoryTest, AnAnswerThatIsLateIsTakenWhenItComes) {
  connect();
  sayMemoryIsShort();
  tend();
  expect(RequestKind::kAsk);
  tendAfter(core_.options.remote_timeout);
  EXPECT_TRUE(growing());
  rung(core_.freed_memory);
  tendAfter(Nanoseconds(1));
  EXPECT_FALSE(growing());
  EXPECT_TRUE(rung(core_.freed_memory)) << "for those that wait for it";
  expectSilence();
  give(7, Bytes(256 * kMiB));
  EXPECT_NE(core_.tiers.direct(1), nullptr);
  expectSilence();
}

TEST_F(FabricMemoryTest, AnAnswerThatDoesNotComeIsAskedForAgainAfterAPause) {
  connect();
  sayMemoryIsShort();
  tend();
  expect(RequestKind::kAsk);
  tendAfter(core_.options.remote_timeout + Nanoseconds(1));
  tendAfter(kSecond - Nanoseconds(1));
  expectSilence();
  tendAfter(Nanoseconds(1));
  expect(RequestKind::kAsk);
}

}  // namespace
}  // namespace tidepool
