// SPDX-License-Identifier: Apache-2.0
// IntervalSet against a set of single addresses: any mix of intervals that go in and out.
#include "runtime/base/interval_set.h"

#include <gtest/gtest.h>
#include <rapidcheck.h>
#include <rapidcheck/gtest.h>

#include <bitset>
#include <tuple>
#include <vector>

#include "runtime/base/result.h"
#include "runtime/space/address_ranges.h"

namespace tidepool {
namespace {

constexpr uintptr_t kAddresses = 48;
using Model = std::bitset<kAddresses>;

size_t alikeFrom(const Model& model, uintptr_t at, size_t most) {
  size_t length = 1;
  while (length < most && model[at + length] == model[at]) ++length;
  return length;
}

size_t runsOf(const Model& model) { return (model & ~(model << 1)).count(); }

RC_GTEST_PROP(IntervalSet, AgreesWithAModel, ()) {
  IntervalSet set;
  Model model;
  const auto steps = *rc::gen::container<std::vector<std::tuple<bool, uintptr_t, uintptr_t>>>(
      rc::gen::tuple(rc::gen::arbitrary<bool>(), rc::gen::inRange<uintptr_t>(0, kAddresses),
                     rc::gen::inRange<uintptr_t>(1, 12)));
  for (const auto& [adds, start, wanted] : steps) {
    const uintptr_t end = std::min(kAddresses, start + wanted);
    adds ? set.add(start, end) : set.remove(start, end);
    for (uintptr_t at = start; at < end; ++at) model[at] = adds;
    RC_ASSERT(set.count() == runsOf(model));
  }
  for (uintptr_t at = 0; at < kAddresses; ++at) {
    const IntervalSet::Span span = set.spanAt(at, kAddresses - at);
    RC_ASSERT(span.inside == model[at]);
    RC_ASSERT(span.size == alikeFrom(model, at, kAddresses - at));
  }
}

TEST(AddressRanges, SayWhatOfARangeTheyTouchAndLeaveOut) {
  AddressRanges ranges;
  EXPECT_FALSE(ranges.touches(0, Bytes(100)));
  ranges.add(20, Bytes(10));
  ranges.add(28, Bytes(12));
  EXPECT_FALSE(ranges.touches(0, Bytes(20)));
  EXPECT_TRUE(ranges.touches(0, Bytes(21)));
  EXPECT_TRUE(ranges.touches(39, Bytes(5)));
  EXPECT_FALSE(ranges.touches(40, Bytes(5)));
  using Outside = std::vector<std::pair<uintptr_t, Bytes>>;
  Outside outside;
  const auto note = [&](uintptr_t start, Bytes size) -> Status {
    outside.emplace_back(start, size);
    return outside.size() < 2 ? Status() : fail(ErrorCode::kNoMemory, "two are enough");
  };
  EXPECT_TRUE(ranges.forEachOutside(25, 60, note));
  EXPECT_EQ(outside, Outside({{40, Bytes(20)}}));
  EXPECT_FALSE(ranges.forEachOutside(5, 60, note)) << "the second failed";
  EXPECT_EQ(outside, Outside({{40, Bytes(20)}, {5, Bytes(15)}}));
}

TEST(AddressRanges, AreTakenOutOneByOne) {
  AddressRanges ranges;
  EXPECT_EQ(ranges.takeLowest().second, Bytes());
  ranges.remove(0, Bytes(100));
  ranges.add(50, Bytes(10));
  ranges.add(10, Bytes(10));
  ranges.remove(14, Bytes(2));
  EXPECT_TRUE(ranges.contains(13));
  EXPECT_FALSE(ranges.contains(14));
  EXPECT_EQ(ranges.takeLowest(), std::pair(uintptr_t{10}, Bytes(4)));
  EXPECT_EQ(ranges.takeLowest(), std::pair(uintptr_t{16}, Bytes(4)));
  EXPECT_EQ(ranges.takeLowest(), std::pair(uintptr_t{50}, Bytes(10)));
  EXPECT_EQ(ranges.takeLowest().second, Bytes());
  EXPECT_FALSE(ranges.contains(50));
}

}  // namespace
}  // namespace tidepool
