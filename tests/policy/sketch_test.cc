// SPDX-License-Identifier: Apache-2.0
// The counting sketch against exact counts, over random key streams.
#include "runtime/policy/sketch.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <unordered_map>
#include <vector>

namespace tidepool {
namespace {

struct alignas(64) Line {
  std::byte bytes[64];
};

std::span<std::byte> bytesOf(std::vector<Line>& lines) {
  return {lines[0].bytes, lines.size() * sizeof(Line)};
}

std::vector<Line> linesFor(uint64_t keys) {
  return std::vector<Line>(CountSketch::memoryFor(keys).value() / sizeof(Line));
}

TEST(CountSketch, NeverUnderestimatesAndIsMostlyExact) {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    std::vector<Line> lines = linesFor(4096);
    CountSketch sketch(bytesOf(lines));
    std::mt19937_64 random(seed);
    std::unordered_map<uint64_t, uint32_t> exact;
    for (int i = 0; i < 8192; ++i) {
      const uint64_t key = random() % 4096;
      ++exact[key];
      sketch.add(key, 1);
    }
    uint64_t error = 0;
    for (const auto& [key, count] : exact) {
      const uint32_t saturated = std::min(count, CountSketch::kMaxCount);
      ASSERT_GE(sketch.estimate(key), saturated);
      error += sketch.estimate(key) - saturated;
    }
    EXPECT_LT(static_cast<double>(error) / static_cast<double>(exact.size()), 0.35);
  }
}

TEST(CountSketch, CoolingHalvesExactly) {
  std::vector<Line> lines = linesFor(64);
  CountSketch sketch(bytesOf(lines));
  sketch.add(7, 13);
  const uint32_t expected[] = {13, 6, 3, 1, 0, 0};
  for (uint32_t value : expected) {
    EXPECT_EQ(sketch.estimate(7), value);
    sketch.cool();
  }
}

TEST(CountSketch, CoolingAppliesBeforeTheNextAdd) {
  std::vector<Line> lines = linesFor(64);
  CountSketch sketch(bytesOf(lines));
  sketch.add(7, 8);
  sketch.cool();
  EXPECT_EQ(sketch.add(7, 1), 5u);
  for (int i = 0; i < 100; ++i) sketch.cool();
  EXPECT_EQ(sketch.add(7, 1), 1u);
}

TEST(CountSketch, SaturatesAndTakesAnyWeight) {
  std::vector<Line> lines = linesFor(64);
  CountSketch sketch(bytesOf(lines));
  EXPECT_EQ(sketch.add(1, 0), 0u);
  EXPECT_EQ(sketch.add(1, UINT32_MAX), CountSketch::kMaxCount);
  EXPECT_EQ(sketch.add(1, UINT32_MAX), CountSketch::kMaxCount);
}

TEST(CountSketch, GrowingKeepsEveryEstimate) {
  std::vector<Line> small = linesFor(256);
  std::vector<Line> large = linesFor(2048);
  CountSketch sketch(bytesOf(small));
  std::mt19937_64 random(3);
  for (int i = 0; i < 600; ++i) sketch.add(random() % 300, 1 + random() % 3);
  sketch.cool();
  std::vector<uint32_t> before;
  for (uint64_t key = 0; key < 300; ++key) before.push_back(sketch.estimate(key));
  sketch.grow(bytesOf(large));
  for (uint64_t key = 0; key < 300; ++key) EXPECT_EQ(sketch.estimate(key), before[key]);
  EXPECT_EQ(sketch.memoryUsed(), Bytes(4096));
}

}  // namespace
}  // namespace tidepool
