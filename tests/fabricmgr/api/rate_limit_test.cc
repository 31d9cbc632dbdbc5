// SPDX-License-Identifier: Apache-2.0
// Token buckets with time in hand: the burst, the rate, long pauses, a clock that stands still.
#include "fabricmgr/api/rate_limit.h"

#include <gtest/gtest.h>

namespace tidepool::api {
namespace {

constexpr uint64_t kSecondInNs = 1'000'000'000;

int taken(TokenBucket& bucket, Nanoseconds now, int tries) {
  int count = 0;
  for (int i = 0; i < tries; ++i) count += bucket.take(now) ? 1 : 0;
  return count;
}

TEST(TokenBucket, LetsTheBurstThroughAndThenTheRate) {
  TokenBucket bucket({10, 25}, Nanoseconds(kSecondInNs));
  EXPECT_EQ(taken(bucket, Nanoseconds(kSecondInNs), 100), 25);
  EXPECT_EQ(taken(bucket, Nanoseconds(kSecondInNs), 100), 0);
  EXPECT_EQ(taken(bucket, Nanoseconds(2 * kSecondInNs), 100), 10);
  EXPECT_EQ(taken(bucket, Nanoseconds(2 * kSecondInNs + kSecondInNs / 10), 100), 1);
}

TEST(TokenBucket, APauseOfAnyLengthFillsItOnce) {
  TokenBucket bucket({1'000'000, 1'000'000}, Nanoseconds(0));
  EXPECT_EQ(taken(bucket, Nanoseconds(0), 2'000'000), 1'000'000);
  EXPECT_EQ(taken(bucket, Nanoseconds(UINT64_MAX), 2'000'000), 1'000'000);
}

TEST(TokenBucket, TimeThatGoesBackGivesNothing) {
  TokenBucket bucket({1, 1}, Nanoseconds(10 * kSecondInNs));
  EXPECT_EQ(taken(bucket, Nanoseconds(10 * kSecondInNs), 2), 1);
  EXPECT_EQ(taken(bucket, Nanoseconds(5 * kSecondInNs), 2), 0);
  EXPECT_EQ(taken(bucket, Nanoseconds(11 * kSecondInNs), 2), 1);
}

TEST(TokenBucket, WithoutARateThereIsNoLimit) {
  TokenBucket bucket({0, 0}, Nanoseconds(0));
  EXPECT_EQ(taken(bucket, Nanoseconds(0), 1000), 1000);
}

}  // namespace
}  // namespace tidepool::api
