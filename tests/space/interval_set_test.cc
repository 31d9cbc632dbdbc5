// SPDX-License-Identifier: Apache-2.0
// IntervalSet against a set of single addresses: any mix of intervals that go in and out.
#include "runtime/base/interval_set.h"

#include <gtest/gtest.h>
#include <rapidcheck.h>
#include <rapidcheck/gtest.h>

#include <bitset>
#include <tuple>
#include <vector>

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

}  // namespace
}  // namespace tidepool
