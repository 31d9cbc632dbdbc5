// SPDX-License-Identifier: Apache-2.0
// One budget in a tree of processes, against a model of each: what it touches, what it has of that,
// and what it therefore waits for.
#include "runtime/policy/tree_share.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <vector>

namespace tidepool {
namespace {

constexpr Bytes kBudget(320 * kMiB);
constexpr double kPages = static_cast<double>(kBudget.value() / kPageSize);
constexpr double kStep = kPages / 32;
constexpr double kTick = 0.02, kFault = 100e-6;  // seconds
constexpr double kLow = 32;                      // pages of room that eviction keeps
constexpr double kMostMoved = 50'000 * kTick;    // pages a tick that can be evicted

/// Touches `set` pages evenly, `rate` times a second while it need not wait, and holds so many of
/// them, and others that it does not touch.
struct Process {
  double set, rate, held;
  double others = 0;
  double limit = kPages;
  TreeShare share{};
  TreeShare::Holding says{};
  TreeShare::Seen seen{};
  double saved = 0, saved_by_part = 0, rescued = 0,
         waits = 0;   // s and pages; of the last tick's time
  bool full = false;  // it has come to its limit

  double all() const { return held + others; }
  double miss() const { return std::max(0.0, 1 - held / set); }
  /// A second: each that misses waits for its page before the next.
  double touches() const { return rate / (1 + rate * miss() * kFault); }
  void run(double up_to) {
    limit = up_to;
    const double missed = touches() * miss(), per_page = (touches() - missed) / set;
    waits = missed * kFault;
    full = all() + missed * kTick + 2 * kLow >= limit;
    // Those on pages that were evicted within the last so many evictions.
    const auto within = [&](double pages) {
      return full && missed > 0 ? missed * kTick * (1 - std::exp(-per_page * pages / missed)) : 0;
    };
    saved += within(2 * kStep) * kFault;
    saved_by_part += within(kStep / TreeShare::kParts) * kFault;
    const double staged = full ? std::clamp(all() / 48, 64.0, 1024.0) : 0;
    // What is staged is any page: of those that are not touched none comes back.
    rescued += staged * held / std::max(all(), 1.0) * std::min(per_page * kTick, 1.0);
    held = std::min(set, held + missed * kTick);
    const double over = std::min(std::max(0.0, all() - (limit - kLow)), kMostMoved);
    const double of_others = all() == 0 ? 0 : over * others / all();
    others -= of_others;
    held -= over - of_others;
    seen = {.saved = Nanoseconds(static_cast<uint64_t>(saved * 1e9)),
            .saved_by_part = Nanoseconds(static_cast<uint64_t>(saved_by_part * 1e9)),
            .rescues = static_cast<uint64_t>(rescued),
            .staged = PageCount(static_cast<uint64_t>(staged)),
            .step = PageCount(static_cast<uint64_t>(kStep)),
            .fault = Nanoseconds(static_cast<uint64_t>(kFault * 1e9))};
  }
};

class Tree {
 public:
  explicit Tree(std::vector<Process> processes) : processes_(std::move(processes)) {}

  TreeShare::Others othersOf(size_t one) const {
    TreeShare::Others others;
    for (size_t i = 0; i < processes_.size(); ++i) {
      if (i == one) continue;
      others.add(processes_[i].says);
    }
    return others;
  }
  void run(double seconds) {
    for (const double end = now_ + seconds; now_ < end; now_ += kTick) {
      for (size_t i = 0; i < processes_.size(); ++i) {
        Process& one = processes_[i];
        const TreeShare::Others others = othersOf(i);
        const double room = std::clamp(one.limit - one.all(), 0.0, 2 * kLow);
        const Bytes held(static_cast<uint64_t>((one.all() + room) * kPageSize));
        one.says =
            one.share.hold(held, one.seen, others, Nanoseconds(static_cast<uint64_t>(now_ * 1e9)));
        const Bytes share = one.share.share(kBudget, others);
        one.run(static_cast<double>(share.value()) / kPageSize);
      }
      most_ = std::max(most_, held());
    }
  }
  double held() const {
    double sum = 0;
    for (const Process& one : processes_) sum += one.all();
    return sum;
  }
  double waits() const {
    double sum = 0;
    for (const Process& one : processes_) sum += one.waits;
    return sum;
  }
  double most() const { return most_; }
  const Process& operator[](size_t one) const { return processes_[one]; }

 private:
  std::vector<Process> processes_;
  double now_ = 1, most_ = 0;
};

constexpr Process idle(double held) { return {.set = 1, .rate = 0, .held = 0, .others = held}; }

TEST(TreeShare, WhatIsIdleGoesToWhoGains) {
  // As two loader workers that hold what their parent had at the fork.
  Tree tree({{.set = 0.9 * kPages, .rate = 1e6, .held = 0.1 * kPages},
             idle(0.45 * kPages),
             idle(0.45 * kPages)});
  tree.run(30);
  EXPECT_GT(tree[0].held, 0.85 * kPages);
  EXPECT_LT(tree[1].all() + tree[2].all(), 0.15 * kPages);
  EXPECT_LE(tree.most(), 1.01 * kPages);
}

TEST(TreeShare, WhatIsInUseStaysThoughItNeverFaults) {
  // It touches all that it has, thousands of times a second, and lacks nothing; beside it is one
  // that can never have enough.
  Tree tree({{.set = 4 * kPages, .rate = 1e6, .held = 0.5 * kPages},
             {.set = 0.5 * kPages, .rate = 1e7, .held = 0.5 * kPages}});
  tree.run(60);
  EXPECT_GT(tree[1].held, 0.49 * kPages);
  EXPECT_LT(tree[1].waits, 0.02);
}

TEST(TreeShare, NothingMovesWhileNobodyGains) {
  Tree tree({{.set = 0.3 * kPages, .rate = 1e6, .held = 0.3 * kPages}, idle(0.6 * kPages)});
  tree.run(60);
  EXPECT_GE(tree[1].all(), 0.59 * kPages);
}

TEST(TreeShare, ThoseThatGainAlikeShareAlike) {
  Tree tree({{.set = kPages, .rate = 1e6, .held = 0.5 * kPages},
             {.set = kPages, .rate = 1e6, .held = 0.5 * kPages}});
  tree.run(60);
  EXPECT_NEAR(tree[0].held, tree[1].held, 0.02 * kPages);
}

TEST(TreeShare, OneThatAwakesGetsItsMemoryBack) {
  std::vector<Process> two = {{.set = 0.9 * kPages, .rate = 1e5, .held = 0.5 * kPages},
                              {.set = 0.4 * kPages, .rate = 0, .held = 0.4 * kPages}};
  Tree asleep(two);
  asleep.run(30);
  EXPECT_LT(asleep[1].held, 0.2 * kPages);
  two = {asleep[0], asleep[1]};
  two[1].rate = 1e6;  // and is now the one that gains more
  two[0].rate = 1e3;
  Tree awake(two);
  awake.run(30);
  EXPECT_GT(awake[1].held, 0.38 * kPages);
}

TEST(TreeShare, ACountThatStartsAnewIsNoGain) {
  TreeShare share;
  const TreeShare::Others others{.processes = 1, .held = kBudget / 2};
  const auto hold = [&](uint64_t saved, uint64_t ms) {
    const TreeShare::Seen seen{.saved = Nanoseconds(saved), .step = PageCount(100)};
    return share.hold(kBudget / 2, seen, others, Nanoseconds(ms * 1'000'000)).gain;
  };
  EXPECT_EQ(hold(1'000'000'000, 1000), 0u);  // since before anybody looked
  EXPECT_GT(hold(1'900'000'000, 2000), 0u);
  EXPECT_EQ(hold(5, 3000), 0u);  // in a child of fork()
  EXPECT_EQ(hold(5, 4000), 0u);
}

// Whatever they are: within the budget, and not worse for what was moved.
TEST(TreeShare, RandomTreesWaitNoLongerThanWithoutATax) {
  std::mt19937_64 random(7);
  const auto pick = [&](double from, double to) {
    return std::uniform_real_distribution<double>(from, to)(random);
  };
  for (int round = 0; round < 100; ++round) {
    const size_t count = 2 + random() % 6;
    std::vector<Process> processes(count);
    double sum = 0;
    for (Process& one : processes) {
      one.set = pick(0.05, 1.5) * kPages;
      one.rate = random() % 3 == 0 ? 0 : std::pow(10, pick(3, 7));
      one.held = one.rate == 0 ? 0 : one.set * pick(0.01, 1);
      one.others = random() % 2 == 0 ? 0 : pick(0, 0.5) * kPages;
      sum += one.all();
    }
    for (Process& one : processes) {
      one.held *= std::min(1.0, kPages / sum);
      one.others *= std::min(1.0, kPages / sum);
    }
    Tree tree(processes);
    tree.run(2);
    const double before = tree.waits();
    tree.run(60);
    EXPECT_LE(tree.waits(), 1.1 * before + 0.02) << "round " << round;
    EXPECT_LE(tree.most(), 1.02 * kPages) << "round " << round;
  }
}

}  // namespace
}  // namespace tidepool
