// SPDX-License-Identifier: Apache-2.0
// Many threads that fault at once: what is read, sent and woken together.
#include "runtime/migrate/fault/fault_service.h"
#include "tests/migrate/fake_core.h"

namespace tidepool {
namespace {

class Crowd : public FakeCoreTest {
 protected:
  static constexpr uint64_t kThreads = 64;

  void SetUp() override {
    FakeCoreTest::SetUp();
    tier_ = &addTier();
    waker_ = std::make_unique<Waker>(*core_.port);
    auto faults = FaultService::create(core_, *staging_, *policy_, *mover_, *waker_);
    ASSERT_TRUE(faults);
    faults_ = std::move(*faults);
    first_ = allocate();
    makeFar(first_, 4 * kThreads);
  }
  PageIndex page(uint64_t thread) const { return first_ + 4 * thread; }
  bool waits(uint64_t thread) const { return kernel_.waits(addressOf(page(thread))); }
  /// Each thread touches a page of its own.
  void touchAll() {
    for (uint64_t i = 0; i < kThreads; ++i) ASSERT_FALSE(kernel_.touch(addressOf(page(i))));
  }

  FakeTier* tier_ = nullptr;
  std::unique_ptr<Waker> waker_;
  std::unique_ptr<FaultService> faults_;
  PageIndex first_;
};

TEST_F(Crowd, ItsPagesAreAskedForAtOnceAndSentInBatches) {
  touchAll();
  faults_->turn();
  EXPECT_EQ(core_.stats->faults_missing.load(), kThreads);
  EXPECT_EQ(tier_->requests().size(), kThreads);
  EXPECT_EQ(tier_->flushes, kThreads / 16);
}

TEST_F(Crowd, WhatArrivesTogetherIsInstalledInOneTurn) {
  touchAll();
  faults_->turn();
  tier_->endAll();
  faults_->turn();
  for (uint64_t i = 0; i < kThreads; ++i) {
    EXPECT_EQ(state(page(i)), PageState::kLocal) << i;
    EXPECT_FALSE(waits(i)) << i;
  }
}

TEST_F(Crowd, ItsThreadsAreWokenByTheCallThatFillsTheirPages) {
  touchAll();
  faults_->turn();
  uint64_t wakes = 0, copies = 0;
  kernel_.before = [&](Call call, uintptr_t, Bytes) {
    wakes += call == Call::kWake ? 1 : 0;
    copies += call == Call::kCopy ? 1 : 0;
  };
  tier_->endAll();
  faults_->turn();
  kernel_.before = nullptr;
  EXPECT_EQ(copies, kThreads);
  EXPECT_EQ(wakes, 0u);
  for (uint64_t i = 0; i < kThreads; ++i) EXPECT_FALSE(waits(i)) << i;
}

TEST_F(Crowd, NobodyIsWokenBeforeHisPageIsThere) {
  touchAll();
  faults_->turn();
  tier_->end(1);
  faults_->turn();
  EXPECT_FALSE(waits(0));
  for (uint64_t i = 1; i < kThreads; ++i) EXPECT_TRUE(waits(i)) << i;
}

}  // namespace
}  // namespace tidepool
