// SPDX-License-Identifier: Apache-2.0
// Memory goes where a step of it saves more time: against a model of two sides whose curves are
// known, and with them the best split.
#include "runtime/policy/dram_split.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <vector>

namespace tidepool {
namespace {

constexpr Bytes kLimit(1024 * kMiB);
constexpr Bytes kStep = kLimit / DramSplit::kSteps;
constexpr double kFaultNs = 60'000, kRowNs = 2'000;

/// Uses a window of which exp(-fall * share of memory) miss.
struct Side {
  double uses, fall, cost;
  double misses(double share) const { return uses * std::exp(-fall * share); }
  double saved(double from, double to) const { return misses(from) - misses(to); }
};

/// Pages and rows, and what a window of them looks like.
class Model {
 public:
  Model(Side pages, Side rows) : pages_(pages), rows_(rows) {}

  DramSplit::Window window(Bytes rows, std::mt19937_64* noise = nullptr) const {
    const double step = 1.0 / DramSplit::kSteps, r = share(rows), p = 1 - r;
    const auto seen = [&](double count) {
      if (noise == nullptr || count <= 0) return static_cast<uint64_t>(count);
      return std::poisson_distribution<uint64_t>(count)(*noise);
    };
    DramSplit::Window window;
    window.near = seen(pages_.saved(p, p + step));
    window.next = seen(pages_.saved(p + step, p + 2 * step));
    window.faulted = Nanoseconds((window.near + window.next) * static_cast<uint64_t>(pages_.cost));
    window.gained = static_cast<double>(seen(rows_.saved(r, r + step)));
    window.lost = static_cast<double>(seen(rows_.saved(r - step, r)));
    window.fetched = static_cast<uint64_t>(rows_.misses(r));
    window.waited = Nanoseconds(window.fetched * static_cast<uint64_t>(rows_.cost));
    return window;
  }
  double time(Bytes rows) const {
    const double r = share(rows);
    return pages_.misses(1 - r) * pages_.cost + rows_.misses(r) * rows_.cost;
  }
  Bytes best() const {
    Bytes found = kStep;
    for (Bytes rows = kStep; rows < kLimit; rows += kStep / 8) {
      if (time(rows) < time(found)) found = rows;
    }
    return found;
  }

 private:
  static double share(Bytes rows) {
    return static_cast<double>(rows.value()) / static_cast<double>(kLimit.value());
  }
  Side pages_, rows_;
};

class Split : public testing::Test {
 protected:
  /// Lets so many windows pass; returns how often the budget has changed.
  int pass(const Model& model, int windows, std::mt19937_64* noise = nullptr) {
    int moves = 0;
    for (int i = 0; i < windows; ++i) {
      const Bytes before = rows_;
      rows_ = split_.decide(model.window(rows_, noise), bounds());
      moves += rows_ != before ? 1 : 0;
    }
    return moves;
  }
  DramSplit::Bounds bounds() const { return {rows_, kStep, kStep, kLimit - kStep}; }
  void expectNearly(Bytes wanted, const Model& model) const {
    const double apart = static_cast<double>(rows_.value()) - static_cast<double>(wanted.value());
    EXPECT_LT(std::abs(apart), 0.1 * static_cast<double>(kLimit.value()));
    EXPECT_LT(model.time(rows_), 1.1 * model.time(wanted));
  }
  DramSplit split_;
  Bytes rows_ = kLimit / 2;
};

const std::vector<Model>& models() {
  static const std::vector<Model> all{
      {{40'000, 6, kFaultNs}, {1'200'000, 6, kRowNs}},  // alike
      {{400'000, 4, kFaultNs}, {400'000, 6, kRowNs}},   // pages more
      {{10'000, 6, kFaultNs}, {6'000'000, 4, kRowNs}},  // rows more
  };
  return all;
}

TEST_F(Split, ComesNearTheBestFromEitherEndAndRests) {
  for (const Model& model : models()) {
    for (const Bytes from : {kStep, kLimit / 2, kLimit - kStep}) {
      split_ = DramSplit();
      rows_ = from;
      pass(model, 100);
      expectNearly(model.best(), model);
      EXPECT_EQ(pass(model, 200), 0) << "it does not swing";
    }
  }
}

TEST_F(Split, IsNotMovedByNoise) {
  std::mt19937_64 noise(7);
  for (const Model& model : models()) {
    split_ = DramSplit();
    rows_ = kLimit / 2;
    pass(model, 100, &noise);
    expectNearly(model.best(), model);
    EXPECT_LE(pass(model, 1000, &noise), 2);
    expectNearly(model.best(), model);
  }
}

TEST_F(Split, FewFaultsAreNoReason) {
  // One or two a window, by chance: each would cost more than all rows gain.
  std::mt19937_64 noise(8);
  const Model model({10, 3, kFaultNs}, {200, 3, kRowNs});
  EXPECT_LE(pass(model, 1000, &noise), 1);
}

TEST_F(Split, FollowsAnotherPhase) {
  pass(models()[1], 100);
  const Bytes before = rows_;
  pass(models()[2], 100);
  expectNearly(models()[2].best(), models()[2]);
  EXPECT_GT(rows_, before + kStep * 4);
  pass(models()[1], 100);
  expectNearly(models()[1].best(), models()[1]);
}

TEST_F(Split, StaysWhileNothingIsKnown) {
  DramSplit::Window window;
  window.near = window.next = 10'000;
  window.faulted = Nanoseconds(1'000'000'000);
  for (int i = 0; i < 10; ++i) EXPECT_EQ(split_.decide(window, bounds()), rows_) << "of rows";
  split_ = DramSplit();
  EXPECT_EQ(pass({{0, 1, kFaultNs}, {0, 1, kRowNs}}, 10), 0);
}

TEST_F(Split, GivesRowsWhatPagesDoNotNeed) {
  pass({{0, 1, kFaultNs}, {4'000'000, 3, kRowNs}}, 100);
  EXPECT_EQ(rows_, kLimit - kStep);
}

TEST_F(Split, GivesPagesWhatRowsDoNotNeed) {
  const Model rows({0, 1, kFaultNs}, {4'000'000, 3, kRowNs});
  pass(rows, 1);  // what one costs is known
  pass({{400'000, 3, kFaultNs}, {0, 1, kRowNs}}, 100);
  EXPECT_EQ(rows_, kStep);
}

TEST_F(Split, KeepsWithinWhatEitherNeeds) {
  const DramSplit::Window hungry{
      .gained = 1e6, .lost = 1e6, .fetched = 1'000'000, .waited = Nanoseconds(1'000'000'000)};
  const Bytes most = rows_ + kStep / 3;
  EXPECT_EQ(split_.decide(hungry, {rows_, kStep, kStep, most}), most);
  split_ = DramSplit();
  EXPECT_EQ(split_.decide(hungry, {rows_, kStep, kStep, rows_ / 2}), rows_)
      << "what is beyond already stays";
  DramSplit::Window thrashing{.near = 100'000, .next = 100'000, .fetched = 100};
  thrashing.waited = Nanoseconds(100'000);
  split_ = DramSplit();
  const Bytes least = rows_ - kStep / 3;
  EXPECT_EQ(split_.decide(thrashing, {rows_, kStep, least, kLimit}), least);
}

TEST_F(Split, LetsAStepToThePagesTakeEffectFirst) {
  const Model model({4'000'000, 3, kFaultNs}, {1000, 3, kRowNs});
  EXPECT_EQ(pass(model, 1), 1);
  EXPECT_EQ(pass(model, 1), 0);
  EXPECT_EQ(pass(model, 1), 1);
}

// ---- A loop over more than a share of pages: all of it faults, or nothing.

TEST_F(Split, ACliffIsTriedEverMoreSeldom) {
  const Model rows({0, 1, kFaultNs}, {4'000'000, 1, kRowNs});
  const Bytes cliff = kLimit / 4 * 3;
  int beyond = 0, late = 0;
  for (int i = 0; i < 4000; ++i) {
    DramSplit::Window window = rows.window(rows_);
    if (rows_ > cliff) {
      (i < 2000 ? beyond : late) += 1;
      window.near = 20'000;
      window.faulted = Nanoseconds(window.near * 50'000);
    }
    rows_ = split_.decide(window, bounds());
    ASSERT_LE(rows_, cliff + kStep) << "one step is enough to know";
  }
  EXPECT_GE(rows_, cliff - kStep);
  EXPECT_LT(beyond, 20);
  EXPECT_LT(late, 4) << "but tried: it may be gone";
}

TEST_F(Split, ACliffThatIsGoneIsForgotten) {
  const Model rows({0, 1, kFaultNs}, {4'000'000, 1, kRowNs});
  for (int i = 0; i < 500; ++i) {
    DramSplit::Window window = rows.window(rows_);
    if (rows_ > kLimit / 4 * 3) window.near = 20'000;
    rows_ = split_.decide(window, bounds());
  }
  ASSERT_LT(rows_, kLimit / 5 * 4);
  pass(rows, 1100);
  EXPECT_EQ(rows_, kLimit - kStep);
}

TEST_F(Split, AWindowThatTookVeryLongCountsAsALittleMore) {
  DramSplit::Window window{.near = 1000, .next = 1000, .faulted = Nanoseconds(80'000'000)};
  for (int i = 0; i < 100; ++i) split_.decide(window, bounds());
  const double before = split_.worth().pages_more;
  window.faulted = Nanoseconds(1'000'000'000'000);
  split_.decide(window, bounds());
  EXPECT_LT(split_.worth().pages_more, 3 * before);
}

TEST_F(Split, TheLastStepIsWorthAtLeastOneMore) {
  const DramSplit::Window even{.near = 1000, .next = 1000}, falling{.near = 1000, .next = 400},
      rising{.near = 400, .next = 1000};
  for (const auto& [window, times] : {std::pair{even, 1.0}, {falling, 1.6}, {rising, 1.0}}) {
    split_ = DramSplit();
    split_.decide(window, bounds());
    EXPECT_NEAR(split_.worth().pages_last, times * split_.worth().pages_more, 1);
  }
}

}  // namespace
}  // namespace tidepool
