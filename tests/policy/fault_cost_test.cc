// SPDX-License-Identifier: Apache-2.0
// What a fault costs beside its page's coming is learned from the shortest times between faults.
#include "runtime/policy/fault_cost.h"

#include <gtest/gtest.h>

#include <random>

namespace tidepool {
namespace {

class Faults : public testing::Test {
 protected:
  /// A thread faults, is answered, and goes on for so long.
  void fault(int thread, uint64_t goes_on) {
    cost_.heard(thread, now_);
    now_ += Nanoseconds(40'000);
    cost_.answered(now_);
    now_ += Nanoseconds(goes_on);
  }
  void expectAbout(uint64_t cost) {
    EXPECT_NEAR(static_cast<double>(cost_.value().value()), static_cast<double>(cost),
                static_cast<double>(cost) / 8);
  }
  FaultCost cost_;
  Nanoseconds now_{1};
};

TEST_F(Faults, TheShortestTimesBetweenThemTell) {
  std::mt19937_64 random(1);
  std::exponential_distribution<double> computes(1.0 / 50'000);
  for (const uint64_t cost : {35'000, 4'000}) {
    for (int i = 0; i < 20'000; ++i) {
      const bool at_once = random() % 4 == 0;  // faults that follow one another, as of a copy
      fault(7, cost + (at_once ? 0 : static_cast<uint64_t>(computes(random))));
    }
    expectAbout(cost);
  }
}

TEST_F(Faults, OfAProgramThatSeldomFaultsItStaysWithinReason) {
  for (int i = 0; i < 20'000; ++i) fault(7, 5'000'000);
  EXPECT_EQ(cost_.value(), FaultCost::kMost);
  for (int i = 0; i < 1'000; ++i) fault(7, 0);
  EXPECT_EQ(cost_.value(), FaultCost::kLeast);
}

TEST_F(Faults, AnotherThreadsFaultTellsNothing) {
  for (int i = 0; i < 1'000; ++i) {
    fault(7, 0);
    fault(8, 0);
    fault(0, 0);
    fault(0, 0);
  }
  EXPECT_EQ(cost_.value(), FaultCost::kGuess);
}

TEST_F(Faults, WhereSeveralWereAnsweredItIsNotKnownWhich) {
  for (int i = 0; i < 1'000; ++i) {
    fault(7, 0);
    cost_.answered(now_);
  }
  cost_.heard(7, now_);
  for (int i = 0; i < 1'000; ++i) cost_.heard(7, now_);
  EXPECT_EQ(cost_.value(), FaultCost::kGuess);
}

}  // namespace
}  // namespace tidepool
