// SPDX-License-Identifier: Apache-2.0
// One budget for the tree of forked processes: together they stay within it, and who is left alone
// has all of it again.
#include <sched.h>
#include <sys/mman.h>

#include <array>
#include <atomic>
#include <random>

#include "tests/migrate/fork_fixture.h"

namespace tidepool {
namespace {

constexpr uint64_t kBudget = 12 * kMiB;

class ForkBudget : public Fork {
 protected:
  ForkBudget() : Fork(Bytes(kBudget), Bytes(128 * kMiB)) {}
  static constexpr size_t kChildren = 3;
  struct Shared {
    std::array<std::atomic<uint64_t>, kChildren> held;
  };
  void SetUp() override {
    Fork::SetUp();
    shared_ = static_cast<Shared*>(
        mmap(nullptr, kPageSize, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
    ASSERT_NE(shared_, MAP_FAILED);
  }
  uint64_t held() { return test_.runtime->stats().managed_local_bytes.load(); }
  void rewriteAll() {
    for (uint64_t page = 0; page < kPages; ++page) word(page) = mark(page);
  }
  /// As much as the whole budget: each process alone would fill it, so it is the sum that is
  /// bounded.
  void rewriteMuch() {
    for (uint64_t page = 0; page < kBudget / kPageSize; ++page) word(page) = mark(page);
  }
  Shared* shared_ = nullptr;
};

TEST_P(ForkBudget, BoundsAllOfThemTogether) {
  std::array<pid_t, kChildren> children;
  for (size_t i = 0; i < kChildren; ++i) {
    children[i] = fork();
    if (children[i] != 0) continue;
    alarm(120);
    for (;;) {
      rewriteMuch();
      shared_->held[i].store(held());
    }
  }
  // The tolerance is what may be on its way while limits are set; the test's time-out is the bound.
  for (int quiet = 0; quiet < 20;) {
    rewriteMuch();
    uint64_t sum = held();
    bool all = true;
    for (auto& child : shared_->held) {
      sum += child.load();
      all = all && child.load() > 0;
    }
    quiet = all && sum < kBudget + kBudget / 4 ? quiet + 1 : 0;
  }
  for (pid_t child : children) {
    kill(child, SIGKILL);
    EXPECT_EQ(waitpid(child, nullptr, 0), child);
  }
  while (held() < kBudget / 4 * 3) rewriteAll();  // alone again, it has it all
  EXPECT_TRUE(intact());
}

TEST_P(ForkBudget, AChildThatIsAlreadyGoneTakesNothing) {
  for (int i = 0; i < 20; ++i) EXPECT_EQ(inChild([] { return 0; }), 0);
  while (held() < kBudget / 4 * 3) rewriteAll();
  EXPECT_TRUE(intact());
}

/// Direct tiers have neither faults nor staging to go by.
class ForkBudgetOverFetch : public ForkBudget {};

// A child that has become idle holds what it held; its parent cannot have its loop in memory
// without that. Time and again at random, so that every touch of what is not there is a fault.
TEST_P(ForkBudgetOverFetch, WhatAnIdleChildHoldsGoesToWhoGains) {
  const pid_t child = fork();
  if (child == 0) {
    alarm(240);
    rewriteMuch();
    while (held() < kBudget / 8 * 3) rewriteMuch();
    shared_->held[0].store(held());
    for (;;) pause();
  }
  while (shared_->held[0].load() == 0) rewriteMuch();
  std::mt19937_64 random(5);
  constexpr uint64_t kLoop = kBudget / kPageSize * 9 / 10;
  while (held() < kBudget / 4 * 3) {
    for (uint64_t i = 0; i < kLoop; ++i) {
      const uint64_t page = random() % kLoop;
      ASSERT_EQ(word(page), mark(page));
    }
  }
  kill(child, SIGKILL);
  EXPECT_EQ(waitpid(child, nullptr, 0), child);
  EXPECT_TRUE(intact());
}

INSTANTIATE_TEST_SUITE_P(Tiers, ForkBudget,
                         testing::Values(Setup{Far::kRemote, Eviction::kMove},
                                         Setup{Far::kDirect, Eviction::kMove}),
                         setupName);

INSTANTIATE_TEST_SUITE_P(Tiers, ForkBudgetOverFetch,
                         testing::Values(Setup{Far::kRemote, Eviction::kMove}), setupName);

}  // namespace
}  // namespace tidepool
