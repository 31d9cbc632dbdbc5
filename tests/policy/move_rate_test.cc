// SPDX-License-Identifier: Apache-2.0
// The rate of background moves: never above it in the long run whatever the pattern of calls,
// overdrafts are paid back, idle time does not buy a burst.
#include "runtime/policy/move_rate.h"

#include <gtest/gtest.h>

#include <random>

namespace tidepool {
namespace {

constexpr double kRate = 64 << 20;  // bytes a second
constexpr uint64_t kSecond = 1'000'000'000;

TEST(MoveRate, WithoutALimitItIsAlwaysOpen) {
  MoveRate rate(0);
  EXPECT_TRUE(rate.open(Bytes(0)));
  rate.earn(Nanoseconds(1), Bytes(kTiB));
  EXPECT_TRUE(rate.open(Bytes(kTiB)));
}

TEST(MoveRate, ClosesAtTheBurstAndOpensWithTime) {
  MoveRate rate(kRate);
  rate.earn(Nanoseconds(kSecond), Bytes(0));
  const Bytes burst(static_cast<uint64_t>(kRate) / 4);
  EXPECT_TRUE(rate.open(burst - Bytes(1)));
  EXPECT_FALSE(rate.open(burst));
  rate.earn(Nanoseconds(kSecond + kSecond / 8), burst);
  EXPECT_TRUE(rate.open(burst));
  EXPECT_FALSE(rate.open(burst + Bytes(static_cast<uint64_t>(kRate) / 8)));
}

TEST(MoveRate, AnOverdraftIsPaidBack) {
  MoveRate rate(kRate);
  rate.earn(Nanoseconds(kSecond), Bytes(0));
  // Pressure moved a second's worth beyond the burst.
  const Bytes moved(static_cast<uint64_t>(kRate) * 5 / 4);
  rate.earn(Nanoseconds(kSecond + kSecond * 9 / 10), moved);
  EXPECT_FALSE(rate.open(moved));
  rate.earn(Nanoseconds(2 * kSecond + kSecond / 10), moved);
  EXPECT_TRUE(rate.open(moved));
}

TEST(MoveRate, IdleTimeBuysNoMoreThanTheBurst) {
  MoveRate rate(kRate);
  rate.earn(Nanoseconds(kSecond), Bytes(0));
  rate.earn(Nanoseconds(1000 * kSecond), Bytes(0));
  EXPECT_FALSE(rate.open(Bytes(static_cast<uint64_t>(kRate) / 4)));
}

TEST(MoveRate, IsKeptInTheLongRun) {
  std::mt19937_64 random(20261121);
  MoveRate rate(kRate);
  uint64_t now = kSecond;
  uint64_t moved = 0;
  uint64_t largest = 0;
  for (int i = 0; i < 100'000; ++i) {
    now += random() % 5'000'000;
    rate.earn(Nanoseconds(now), Bytes(moved));
    while (rate.open(Bytes(moved))) {
      const uint64_t move = kPageSize * (1 + random() % 512);
      moved += move;
      largest = std::max(largest, move);
    }
  }
  const double most = kRate * (static_cast<double>(now - kSecond) * 1e-9 + 0.25);
  EXPECT_LE(static_cast<double>(moved), most + static_cast<double>(largest));
  EXPECT_GE(static_cast<double>(moved), most * 0.95);
}

}  // namespace
}  // namespace tidepool
