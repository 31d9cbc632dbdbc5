// SPDX-License-Identifier: Apache-2.0
// The live curve against exact reuse distances, with all rows sampled and with a few in a hundred;
// its memory, ageing, and that it samples by row.
#include "allocator/policy/miss_ratio_curve.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "bench/row_peers.h"
#include "bench/row_trace.h"

namespace tidepool {
namespace {

void feed(MissRatioCurve& curve, const std::vector<uint32_t>& lookups) {
  for (size_t i = 0; i < lookups.size(); ++i) {
    if (curve.sampled(RowIndex(lookups[i]))) curve.onSampled(RowIndex(lookups[i]));
    if (i % 1000 == 999) curve.onLookups(1000);
  }
}

double lruMissRatio(const bench::RowTrace& trace, uint32_t slots) {
  return 1 - bench::hitRate(trace, bench::runRowPeer("lru", trace, slots));
}

TEST(MissRatioCurve, KnowsNothingAtFirst) {
  MissRatioCurve curve(1);
  EXPECT_EQ(curve.missRatio(SlotCount(100)), 1);
  EXPECT_EQ(curve.sampledShare(), 1);
}

TEST(MissRatioCurve, TakesAFixedAmountOfMemory) {
  EXPECT_LE(MissRatioCurve::metadataBytes().value(), 256u * 1024);
}

TEST(MissRatioCurve, IsExactOfALoop) {
  MissRatioCurve curve(1);
  std::vector<uint32_t> lookups(100'000);
  for (uint32_t i = 0; i < lookups.size(); ++i) lookups[i] = i % 1024;
  feed(curve, lookups);
  EXPECT_NEAR(curve.missRatio(SlotCount(1023)), 1, 1e-6);
  EXPECT_NEAR(curve.missRatio(SlotCount(1024)), 1024e-5, 1e-6);
}

// With every row sampled and room for all, the buckets' bounds are exact.
TEST(MissRatioCurve, MatchesLruWhileAllRowsAreSampled) {
  const bench::RowTrace trace = bench::makeRowTrace("zipf-0.8", {3000, 200'000, 0}, 5);
  MissRatioCurve curve(2);
  feed(curve, trace.lookups);
  EXPECT_GT(curve.sampledShare(), 0.99);
  for (unsigned bucket = 8; bucket < 46; ++bucket) {
    const SlotCount slots = MissRatioCurve::slotsOf(bucket);
    EXPECT_NEAR(curve.missRatio(slots), lruMissRatio(trace, slots.value()), 1e-6) << slots.value();
  }
}

// 150,000 rows through 4096 places, of which a hundred stand for 4096 slots: within 0.03 from there
// on and 0.02 from four times that on. Fewer slots depend on which hot rows are in the sample.
TEST(MissRatioCurve, ComesNearWithAFewRowsInAHundred) {
  for (const char* name : {"zipf-0.8", "skew", "scan"}) {
    const bench::RowTrace trace = bench::makeRowTrace(name, {150'000, 1'000'000, 0}, 6);
    double error = 0;
    for (uint64_t seed = 1; seed <= 4; ++seed) {
      MissRatioCurve curve(seed);
      feed(curve, trace.lookups);
      EXPECT_LT(curve.sampledShare(), 0.06);
      error += (curve.missRatio(SlotCount(1024)) - lruMissRatio(trace, 1024)) / 4;
      for (const uint32_t slots : {4096u, 16384u, 65536u}) {
        EXPECT_NEAR(curve.missRatio(SlotCount(slots)), lruMissRatio(trace, slots),
                    slots > 4096 ? 0.02 : 0.031)
            << name << " " << slots << " seed " << seed;
      }
    }
    EXPECT_NEAR(error, 0, 0.04) << "no bias to speak of";
  }
}

TEST(MissRatioCurve, FallsWithMoreSlots) {
  const bench::RowTrace trace = bench::makeRowTrace("skew", {50'000, 200'000, 0}, 7);
  MissRatioCurve curve(4);
  feed(curve, trace.lookups);
  double before = 1;
  for (uint64_t slots = 1; slots < 100'000; slots = slots * 5 / 4 + 1) {
    const double now = curve.missRatio(SlotCount(slots));
    ASSERT_LE(now, before + 1e-12);
    ASSERT_GE(now, 0);
    before = now;
  }
}

TEST(MissRatioCurve, ForgetsByHalves) {
  MissRatioCurve curve(1);
  std::vector<uint32_t> loop(50'000), distinct(50'000);
  for (uint32_t i = 0; i < loop.size(); ++i) loop[i] = i % 100;
  feed(curve, loop);
  EXPECT_LT(curve.missRatio(SlotCount(128)), 0.01);
  for (int i = 0; i < 6; ++i) curve.age();
  EXPECT_LT(curve.missRatio(SlotCount(128)), 0.01) << "no news, no change";
  for (uint32_t i = 0; i < distinct.size(); ++i) distinct[i] = 1000 + i;
  feed(curve, distinct);
  EXPECT_GT(curve.missRatio(SlotCount(128)), 0.9);
}

TEST(MissRatioCurve, SamplesByRowNotByLookup) {
  MissRatioCurve curve(9);
  for (uint64_t row = 0; row < 300'000; ++row) curve.onSampled(RowIndex(row));
  EXPECT_NEAR(curve.sampledShare(), 4096.0 / 300'000, 0.002);
  uint64_t sampled = 0;
  for (uint64_t row = 0; row < 300'000; ++row) sampled += curve.sampled(RowIndex(row));
  EXPECT_LE(sampled, MissRatioCurve::kMostRows);
  EXPECT_GT(sampled, MissRatioCurve::kMostRows * 95 / 100);
}

}  // namespace
}  // namespace tidepool
