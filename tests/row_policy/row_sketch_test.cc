// SPDX-License-Identifier: Apache-2.0
// The counting sketch: never too low, exact when there is room, keeps its counts when resized.
#include "allocator/policy/row_sketch.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <vector>

namespace tidepool {
namespace {

class Sketch : public testing::Test {
 protected:
  static constexpr uint64_t kBytes = 64 * 1024;
  Sketch() { sketch_.resize(Bytes(kBytes)); }
  static uint64_t hashOf(uint64_t row) { return rowHash(row, 5); }
  std::vector<uint8_t> memory_ = std::vector<uint8_t>(2 * kBytes);
  RowSketch sketch_{memory_};
};

TEST_F(Sketch, CountsToItsMost) {
  for (uint32_t i = 1; i <= 40; ++i) {
    EXPECT_EQ(sketch_.add(hashOf(1)), std::min(i, RowSketch::kMost));
  }
  EXPECT_EQ(sketch_.estimate(hashOf(1)), RowSketch::kMost);
  EXPECT_EQ(sketch_.estimate(hashOf(2)), 0u);
}

TEST_F(Sketch, NeverErrsLow) {
  std::mt19937_64 random(1);
  std::map<uint64_t, uint32_t> model;
  uint64_t too_high = 0, asked = 0;
  for (int i = 0; i < 60'000; ++i) {
    const uint64_t row = random() % 200 * (random() % 200);
    const uint32_t count = sketch_.add(hashOf(row));
    const uint32_t exact = std::min(++model[row], RowSketch::kMost);
    ASSERT_GE(count, exact);
    too_high += count > exact;
    ++asked;
  }
  EXPECT_LT(too_high * 10, asked) << "rows share counters, but not as much as that";
}

TEST_F(Sketch, HalvingEveryLineHalvesEveryCount) {
  for (uint64_t row = 0; row < 1000; ++row) sketch_.raise(hashOf(row), row % 16);
  std::vector<uint32_t> before(1000);
  for (uint64_t row = 0; row < 1000; ++row) before[row] = sketch_.estimate(hashOf(row));
  for (uint64_t line = 0; line < sketch_.lines(); ++line) sketch_.halveOne();
  for (uint64_t row = 0; row < 1000; ++row) {
    ASSERT_EQ(sketch_.estimate(hashOf(row)), before[row] / 2);
  }
}

TEST_F(Sketch, RaisingNeverLowers) {
  sketch_.raise(hashOf(3), 9);
  sketch_.raise(hashOf(3), 4);
  EXPECT_EQ(sketch_.estimate(hashOf(3)), 9u);
  sketch_.raise(hashOf(3), 99);
  EXPECT_EQ(sketch_.estimate(hashOf(3)), RowSketch::kMost);
}

TEST_F(Sketch, ResizingNeverLosesACount) {
  std::mt19937_64 random(2);
  std::map<uint64_t, uint32_t> model;
  for (const uint64_t bytes :
       {kBytes * 2, kBytes, kBytes * 3 / 2, kBytes / 3, uint64_t{64}, kBytes / 2, kBytes * 2}) {
    for (int i = 0; i < 50; ++i) {
      const uint64_t row = random() % 1000;
      model[row] = std::max(model[row], sketch_.add(hashOf(row)));
    }
    sketch_.resize(Bytes(bytes));
    EXPECT_EQ(sketch_.bytes(), Bytes(std::max<uint64_t>(bytes / 64 * 64, 64)));
    for (const auto& [row, count] : model) {
      ASSERT_GE(sketch_.estimate(hashOf(row)), count) << row << " at " << bytes;
    }
  }
}

TEST_F(Sketch, MemoryBeyondItsSizeIsNotTouched) {
  for (uint64_t row = 0; row < 100'000; ++row) sketch_.add(hashOf(row));
  for (uint64_t line = 0; line < 3 * sketch_.lines(); ++line) sketch_.halveOne();
  EXPECT_TRUE(std::all_of(memory_.begin() + kBytes, memory_.end(), [](uint8_t b) { return !b; }));
}

}  // namespace
}  // namespace tidepool
