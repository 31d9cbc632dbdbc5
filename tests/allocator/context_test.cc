// SPDX-License-Identifier: Apache-2.0
// The context as embedding tables use it: local memory that is charged, with and without a runtime,
// alone and by many threads at once, and the list of far tiers.
#include "allocator/context.h"

#include <gtest/gtest.h>

#include <cstring>
#include <random>
#include <thread>
#include <vector>

namespace tidepool {
namespace {

Options optionsWith(const char* conf) {
  const auto options = parseOptions(conf, nullptr);
  EXPECT_TRUE(options) << options.error().text();
  return *options;
}

std::unique_ptr<Context> open(const char* conf) {
  auto context = Context::open(optionsWith(conf));
  EXPECT_TRUE(context) << context.error().text();
  return std::move(*context);
}

TEST(Context, ListsTheFarTiersAsTheyWereGiven) {
  const auto context = open("far:remote:[::1]:7777:1G,far:cxl:64M");
  ASSERT_EQ(context->farTiers().size(), 2u);
  EXPECT_EQ(context->farTiers()[0].kind, farKind("remote"));
  EXPECT_STREQ(context->farTiers()[0].target, "[::1]:7777");
  EXPECT_EQ(context->farTiers()[1].size, Bytes(64 * kMiB));
  EXPECT_EQ(context->startedMemory(), nullptr) << "nothing is connected to";
}

TEST(Context, ChargesALedgerWhileNothingIsStarted) {
  const auto context = open("dram:64M");
  EXPECT_TRUE(context->chargeLocal(Bytes(40 * kMiB)));
  const Status refused = context->chargeLocal(Bytes(30 * kMiB));
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code(), ErrorCode::kNoSpace);
  EXPECT_EQ(context->chargedLocal(), Bytes(40 * kMiB)) << "all or nothing";
  EXPECT_TRUE(context->chargeLocal(Bytes(20 * kMiB)));
  context->dischargeLocal(Bytes(60 * kMiB));
  EXPECT_EQ(context->chargedLocal(), Bytes());
}

TEST(Context, WithoutABudgetTheMachineIsTheLimit) {
  const auto context = open("");
  EXPECT_FALSE(context->chargeLocal(localMemory() + Bytes(1)));
  EXPECT_FALSE(context->chargeLocal(Bytes(~uint64_t{0})));
  EXPECT_TRUE(context->chargeLocal(localMemory() / 2));
  EXPECT_FALSE(context->chargeLocal(localMemory() / 2 + Bytes(1)));
  context->dischargeLocal(localMemory() / 2);
}

TEST(Context, WhatIsPromisedIsNotCharged) {
  const auto context = open("dram:64M");
  EXPECT_TRUE(context->promiseLocal(Bytes(40 * kMiB)));
  EXPECT_EQ(context->chargedLocal(), Bytes());
  EXPECT_FALSE(context->chargeLocal(Bytes(30 * kMiB)));
  EXPECT_TRUE(context->chargeLocal(Bytes(20 * kMiB)));
  EXPECT_FALSE(context->promiseLocal(Bytes(10 * kMiB)));
  context->forgoLocal(Bytes(40 * kMiB));
  EXPECT_TRUE(context->promiseLocal(Bytes(40 * kMiB)));
  context->forgoLocal(Bytes(40 * kMiB));
  context->dischargeLocal(Bytes(20 * kMiB));
}

TEST(Context, ThreadsNeverGetMoreThanThereIs) {
  const auto context = open("dram:64M");
  std::atomic<bool> exceeded{false};
  std::vector<std::thread> threads;
  for (uint64_t seed = 0; seed < 4; ++seed) {
    threads.emplace_back([&, seed] {
      std::mt19937_64 random(seed);
      std::vector<Bytes> mine;
      for (int step = 0; step < 5000; ++step) {
        const Bytes size(1 + random() % (8 * kMiB));
        if (random() % 2 == 0 && context->chargeLocal(size)) mine.push_back(size);
        if (context->chargedLocal() > Bytes(64 * kMiB)) exceeded = true;
        if (!mine.empty() && random() % 2 == 0) {
          context->dischargeLocal(mine.back());
          mine.pop_back();
        }
      }
      for (const Bytes size : mine) context->dischargeLocal(size);
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_FALSE(exceeded);
  EXPECT_EQ(context->chargedLocal(), Bytes());
}

TEST(Context, WhatWasChargedBeforeTheStartLimitsManagedPages) {
  const auto context = open("dram:48M,far:cxl:256M,space:64G,budget_scope:managed,sampling:false");
  ASSERT_TRUE(context->chargeLocal(Bytes(32 * kMiB)));
  const auto memory = context->memory();
  ASSERT_TRUE(memory) << memory.error().text();
  // The migrator hears of the charge by its next tick; what is touched from then on is limited.
  const Bytes size(64 * kMiB);
  void* range = nullptr;
  Result<Residency> where = Residency();
  do {
    if (range != nullptr) {
      ASSERT_TRUE((*memory)->release(range, size));
    }
    const auto fresh = (*memory)->allocate(size, Bytes(kGranuleSize));
    ASSERT_TRUE(fresh);
    range = *fresh;
    memset(range, 1, size.value());
    where = (*memory)->residency(range, size);
    ASSERT_TRUE(where);
  } while (toBytes(where->local) > Bytes(18 * kMiB));
  EXPECT_GE(toBytes(where->in_place), Bytes(44 * kMiB));
  EXPECT_TRUE((*memory)->release(range, size));
  EXPECT_FALSE(context->chargeLocal(Bytes(20 * kMiB)));
  context->dischargeLocal(Bytes(32 * kMiB));
}

TEST(Context, FindsTiersByWhatTheyAreCalled) {
  const auto context = open("dram:48M,far:cxl:64M,far:cxl:128M,space:64G");
  const auto memory = context->memory();
  ASSERT_TRUE(memory) << memory.error().text();
  const StatsPage& stats = *(*memory)->stats();
  EXPECT_TRUE(findTier(stats, "local")->isLocal());
  EXPECT_EQ(findTier(stats, "2")->tier(), 2);
  EXPECT_EQ(findTier(stats, stats.tiers[1].name)->tier(), 1);
  for (const char* name : {"cxl", "3", "-1", "1x", "", "remote"}) {
    const auto tier = findTier(stats, name);
    ASSERT_FALSE(tier) << name;
    EXPECT_EQ(tier.error().code(), ErrorCode::kNotFound);
  }
}

}  // namespace
}  // namespace tidepool
