// SPDX-License-Identifier: Apache-2.0
// The PMU sampler over rings that the test fills: every sample of this process once, whichever ring
// it is in; events stopped while the budget is overdrawn; processors that cannot be opened.
#include "runtime/sample/pmu_sampler.h"

#include <gtest/gtest.h>

#include <set>

#include "tests/sample/fake_perf.h"

namespace tidepool {
namespace {

constexpr Nanoseconds kSecond(1'000'000'000);

PmuSamplerConfig config(int processors) {
  return {.processors = processors, .process = 100, .cpu_share = 0.01};
}

TEST(PmuSampler, TakesEverySampleOfThisProcessOnce) {
  FakePerfPort port;
  auto sampler = PmuSampler::create(port, MemoryEvent{.name = "pebs"}, config(3));
  ASSERT_TRUE(sampler) << sampler.error().text();
  std::multiset<uint64_t> put, got;
  for (uint64_t round = 0; round < 50; ++round) {
    for (size_t cpu = 0; cpu < 3; ++cpu) {
      for (uint64_t i = 0; i < 1 + round % 40; ++i) {
        const uint64_t address = 0x1000 * (1 + put.size());
        put.insert(address);
        port.ring(cpu).sample(100, address);
        port.ring(cpu).sample(200, address);  // a forked child's
      }
    }
    std::array<PmuSample, 7> out;
    for (size_t i = 0; i < 200; ++i) {
      const size_t count = (*sampler)->poll(out);
      ASSERT_LE(count, out.size());
      for (size_t at = 0; at < count; ++at) got.insert(out[at].address);
    }
  }
  EXPECT_EQ(got, put);
}

TEST(PmuSampler, StopsWhileTheBudgetIsOverdrawn) {
  FakePerfPort port;
  auto sampler = PmuSampler::create(port, MemoryEvent{}, config(2));
  ASSERT_TRUE(sampler);
  EXPECT_TRUE(port.ring(0).running && port.ring(1).running);
  // 1 % of a second is 10 ms.
  (*sampler)->charge(kSecond, Nanoseconds(0));
  (*sampler)->charge(kSecond + kSecond, Nanoseconds(9'000'000));
  EXPECT_TRUE((*sampler)->running());
  EXPECT_EQ((*sampler)->charge(kSecond + kSecond, Nanoseconds(5'000'000)), Nanoseconds(5'000'000));
  EXPECT_FALSE((*sampler)->running());
  EXPECT_FALSE(port.ring(0).running || port.ring(1).running);
  (*sampler)->charge(kSecond + kSecond + Nanoseconds(300'000'000), Nanoseconds(0));
  EXPECT_FALSE((*sampler)->running());
  (*sampler)->charge(kSecond + kSecond + Nanoseconds(500'000'000), Nanoseconds(0));
  EXPECT_TRUE(port.ring(0).running && port.ring(1).running);
}

TEST(PmuSampler, SamplesThemselvesCost) {
  FakePerfPort port;
  auto sampler = PmuSampler::create(port, MemoryEvent{}, config(1));
  ASSERT_TRUE(sampler);
  (*sampler)->charge(kSecond, Nanoseconds(0));
  for (int i = 0; i < 100; ++i) port.ring(0).sample(100, 0x1000);
  std::array<PmuSample, 200> out;
  EXPECT_EQ((*sampler)->poll(out), 100u);
  EXPECT_EQ((*sampler)->charge(kSecond, Nanoseconds(10)), Nanoseconds(100'010));
  EXPECT_FALSE((*sampler)->running());
}

TEST(PmuSampler, LeavesOutProcessorsThatAreNot) {
  FakePerfPort port;
  port.absent = 1;
  EXPECT_TRUE(PmuSampler::create(port, MemoryEvent{}, config(3)));
  EXPECT_EQ(port.rings(), 2u);
}

TEST(PmuSampler, WhatIsRefusedIsAnError) {
  FakePerfPort refused;
  refused.refuses = ErrorCode::kPermission;
  EXPECT_EQ(PmuSampler::create(refused, MemoryEvent{}, config(2)).error().code(),
            ErrorCode::kPermission);
  FakePerfPort nothing;
  EXPECT_EQ(PmuSampler::create(nothing, MemoryEvent{}, config(0)).error().code(),
            ErrorCode::kNotFound);
}

}  // namespace
}  // namespace tidepool
