// SPDX-License-Identifier: Apache-2.0
// Far memory from the agent while the agent comes and goes, and in a child of fork(), which
// connects for itself.
#include "tests/migrate/fabric_memory_fixture.h"

namespace tidepool {
namespace {

TEST_F(FabricMemoryTest, WithoutTheAgentRegionsStayAndAreReclaimed) {
  begin();
  agent_.reset(-1);
  tend();
  EXPECT_EQ(memory_->fd(), -1);
  EXPECT_EQ(errors(), 1u);
  EXPECT_FALSE(core_.tiers.tier(1).closed());
  tendAfter(kSecond - Nanoseconds(1));
  EXPECT_EQ(memory_->fd(), -1);
  tendAfter(Nanoseconds(1));
  EXPECT_GE(memory_->fd(), 0);
  accept();
  const Request reclaim = expect(RequestKind::kReclaim);
  EXPECT_EQ(reclaim.region, 7u);
  expect(RequestKind::kAll);
  say(NoticeKind::kKept, 7, Bytes(256 * kMiB), reclaim.tag);
  tend();
  EXPECT_FALSE(core_.tiers.tier(1).closed());
  expectSilence();
}

TEST_F(FabricMemoryTest, WhereALeaseIsOverNobodyWaitsForMemoryUntilWhoseItIsIsKnown) {
  connect();
  sayMemoryIsShort();
  tend();
  const Request ask = expect(RequestKind::kAsk);
  EXPECT_TRUE(growing());
  ASSERT_TRUE(tellProgram(agent_.get(), {.kind = NoticeKind::kLease,
                                         .until = BootClock().now() - Nanoseconds(1),
                                         .length = Nanoseconds(1)}));
  give(7, Bytes(256 * kMiB), ask.tag);
  EXPECT_TRUE(lease_->suspended());
  EXPECT_FALSE(growing());
  EXPECT_EQ(reclaimed(), std::vector<uint64_t>{7});
  tend();
  EXPECT_TRUE(lease_->suspended()) << "the region may be another's by now";
  say(NoticeKind::kKept, 7, Bytes(256 * kMiB), ask.tag);
  tend();
  EXPECT_FALSE(lease_->suspended());
}

TEST_F(FabricMemoryTest, AForkedChildConnectsByItselfAndReclaimsWhatItHas) {
  begin();
  sayMemoryIsShort(false);
  const UniqueFd parents = std::move(agent_);
  memory_->forkedInChild();
  EXPECT_EQ(memory_->fd(), -1);
  tendAfter(Nanoseconds(99'999'999));
  EXPECT_EQ(memory_->fd(), -1) << "most children call exec at once";
  tendAfter(Nanoseconds(1));
  ASSERT_GE(memory_->fd(), 0);
  accept();
  const Request reclaim = expect(RequestKind::kReclaim);
  EXPECT_EQ(reclaim.region, 7u);
  expect(RequestKind::kAll);
  char byte;
  EXPECT_EQ(recv(parents.get(), &byte, 1, MSG_DONTWAIT), -1) << "it keeps its parent's connection";
  say(NoticeKind::kKept, 7, Bytes(256 * kMiB), reclaim.tag);
  tend();
  EXPECT_EQ(recv(parents.get(), &byte, 1, MSG_DONTWAIT), 0) << "until it has one itself";
}

TEST_F(FabricMemoryTest, AChildWhoseRegionIsLostNeedsItsParentsConnectionNoMore) {
  begin();
  sayMemoryIsShort(false);
  const UniqueFd parents = std::move(agent_);
  memory_->forkedInChild();
  tendAfter(kSecond);
  accept();
  const Request reclaim = expect(RequestKind::kReclaim);
  expect(RequestKind::kAll);
  say(NoticeKind::kRefused, 99, Bytes(), reclaim.tag, ErrorCode::kLost);  // of no region here
  tend();
  char byte;
  EXPECT_EQ(recv(parents.get(), &byte, 1, MSG_DONTWAIT), -1);
  refuse(reclaim, ErrorCode::kLost);
  tend();
  EXPECT_EQ(recv(parents.get(), &byte, 1, MSG_DONTWAIT), 0);
}

TEST_F(FabricMemoryTest, WhatWasOnItsWayBackAtAForkIsNotTheChilds) {
  begin();
  say(NoticeKind::kDrain, 7);
  tend();
  expect(RequestKind::kAsk);
  EXPECT_EQ(retiring(), 2u);
  const UniqueFd parents = std::move(agent_);
  memory_->forkedInChild();
  EXPECT_EQ(retiring(), 0u);
  tendAfter(kSecond);
  accept();
  expect(RequestKind::kAll);
  expect(RequestKind::kAsk);
  give(8, Bytes(256 * kMiB));
  EXPECT_NE(core_.tiers.direct(1), nullptr) << "its number is free";
}

TEST_F(FabricMemoryTest, WhatCannotBeReclaimedIsLost) {
  for (const ErrorCode error : {ErrorCode::kInternal, ErrorCode::kLost}) {
    if (memory_ == nullptr) begin();
    agent_.reset(-1);
    tend();
    tendAfter(kSecond);
    accept();
    const Request reclaim = expect(RequestKind::kReclaim);
    expect(RequestKind::kAll);
    refuse(reclaim, error);
    tend();
    EXPECT_EQ(core_.tiers.find(1) == nullptr, error == ErrorCode::kLost);
  }
}

}  // namespace
}  // namespace tidepool
