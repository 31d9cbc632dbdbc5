// SPDX-License-Identifier: Apache-2.0
// The victim chooser driven by a small model of the engine over generated traces.
#include "runtime/policy/victim.h"

#include <gtest/gtest.h>

#include <vector>

namespace tidepool {
namespace {

class VictimTest : public ::testing::Test {
 protected:
  VictimConfig config() {
    VictimConfig config;
    config.capacity = PageCount(256);
    return config;
  }
  std::span<std::byte> memory() { return std::as_writable_bytes(std::span(words_)); }
  std::vector<uint8_t> words_ = std::vector<uint8_t>(4096);
};

TEST_F(VictimTest, AnUnknownPageIsProbedIfThatCanBePaidForElseGoes) {
  VictimChooser chooser(config(), memory());
  EXPECT_EQ(chooser.classify(PageIndex(3), WriteBit::kNotArmed), Verdict::kEvict);
  chooser.onFault(PageIndex(9), Nanoseconds(1'000'000));
  EXPECT_EQ(chooser.classify(PageIndex(3), WriteBit::kNotArmed), Verdict::kProbe);
  EXPECT_EQ(chooser.classify(PageIndex(3), WriteBit::kClean), Verdict::kEvict);
}

TEST_F(VictimTest, EveryPageGoesInTheEndWhenNothingIsSeen) {
  VictimChooser chooser(config(), memory());
  for (int i = 0; i < 40; ++i) chooser.onFault(PageIndex(9), Nanoseconds(1000));
  int visits = 0;
  while (chooser.classify(PageIndex(9), WriteBit::kClean) != Verdict::kEvict) ++visits;
  EXPECT_LE(visits, static_cast<int>(VictimChooser::kMaxScore));
}

TEST_F(VictimTest, ProbesStopWhenTheBudgetIsSpent) {
  VictimChooser chooser(config(), memory());
  for (uint64_t i = 0; i < 100; ++i) chooser.onFault(PageIndex(i * 7), Nanoseconds(1'000'000));
  // 1 % of a millisecond is 10 us: 322 pages at 31 ns, or 12 that turn out written.
  for (uint64_t i = 0; i < 100; ++i) chooser.classify(PageIndex(i * 7), WriteBit::kWritten);
  EXPECT_LT(chooser.stats().probes, 20u);
  EXPECT_EQ(chooser.stats().visits, 100u);
}

TEST_F(VictimTest, NoProbesWithoutSampling) {
  VictimConfig off = config();
  off.sampling_cpu = 0;
  VictimChooser chooser(off, memory());
  for (uint64_t i = 0; i < 1000; ++i) {
    chooser.onFault(PageIndex(i * 3 % 4096), Nanoseconds(i * 1'000'000));
    EXPECT_NE(chooser.classify(PageIndex(i * 3 % 4096), WriteBit::kNotArmed), Verdict::kProbe);
  }
}

}  // namespace
}  // namespace tidepool
