// SPDX-License-Identifier: Apache-2.0
// Which far copies are kept: those of granules and scans whose copies paid before.
#include "runtime/policy/far_copies.h"

#include <gtest/gtest.h>

#include <vector>

namespace tidepool {
namespace {

class Copies : public testing::Test {
 protected:
  static constexpr PageCount kPages{8 * kPagesPerGranule};
  uint32_t keptOf(uint32_t asked, GranuleIndex granule, Arrival arrival) {
    uint32_t kept = 0;
    for (uint32_t i = 0; i < asked; ++i) kept += copies_.worthKeeping(granule, arrival) ? 1 : 0;
    return kept;
  }
  std::vector<std::byte> memory_ = std::vector<std::byte>(FarCopies::memoryFor(kPages).value());
  FarCopies copies_{memory_};
};

TEST_F(Copies, TakeOneByteAGranule) { EXPECT_EQ(FarCopies::memoryFor(kPages), Bytes(8)); }

TEST_F(Copies, AreTriedNowAndThenAtFirst) {
  EXPECT_EQ(keptOf(160, GranuleIndex(3), Arrival::kFault), 160 / FarCopies::kExploreEvery);
}

TEST_F(Copies, OfAGranuleThatPaidAreKept) {
  copies_.saved(GranuleIndex(3), Arrival::kFault);
  EXPECT_EQ(keptOf(100, GranuleIndex(3), Arrival::kFault), 100u);
  EXPECT_LT(keptOf(100, GranuleIndex(4), Arrival::kFault), 10u) << "another granule";
}

TEST_F(Copies, ThatStopPayingAreGivenUpAndComeBack) {
  for (int i = 0; i < 1000; ++i) copies_.saved(GranuleIndex(0), Arrival::kFault);
  for (int i = 0; i < 20; ++i) copies_.outdated(GranuleIndex(0), Arrival::kFault);
  EXPECT_LT(keptOf(100, GranuleIndex(0), Arrival::kFault), 10u) << "long ago counts no more";
  for (int i = 0; i < 1000; ++i) copies_.outdated(GranuleIndex(0), Arrival::kFault);
  for (int i = 0; i < 20; ++i) copies_.saved(GranuleIndex(0), Arrival::kFault);
  EXPECT_EQ(keptOf(100, GranuleIndex(0), Arrival::kFault), 100u);
}

TEST_F(Copies, OfScansAreKeptUntilTheyDoNotPay) {
  EXPECT_EQ(keptOf(100, GranuleIndex(1), Arrival::kScan), 100u);
  for (int i = 0; i < 4; ++i) copies_.outdated(GranuleIndex(1), Arrival::kScan);
  EXPECT_LT(keptOf(100, GranuleIndex(7), Arrival::kScan), 10u) << "scans are judged together";
  EXPECT_EQ(keptOf(100, GranuleIndex(7), Arrival::kFault), 6u) << "apart from faults";
}

}  // namespace
}  // namespace tidepool
