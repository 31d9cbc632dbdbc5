// SPDX-License-Identifier: Apache-2.0
// The table of surrendered ranges against a model of single pages: any mix of overlapping and
// touching ranges, and every question about every stretch.
#include "shim/surrendered.h"

#include <gtest/gtest.h>
#include <rapidcheck.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <set>
#include <utility>
#include <vector>

namespace tidepool {
namespace {

constexpr uintptr_t kPage = 4096;
constexpr uintptr_t kPages = 64;

/// The table is the process's own and only grows, so each run gets addresses of its own.
uintptr_t freshBase() {
  static uintptr_t next = uintptr_t{1} << 40;
  return next += 2 * kPages * kPage;
}

TEST(Surrendered, NothingIsToBeginWith) {
  const SurrenderedSpan span = surrenderedSpan(kPage, 10 * kPage);
  EXPECT_FALSE(span.surrendered);
  EXPECT_EQ(span.size, 10 * kPage);
}

RC_GTEST_PROP(Surrendered, AgreesWithAModelOfPages, ()) {
  const uintptr_t base = freshBase();
  std::set<uintptr_t> model;
  const auto ranges = *rc::gen::container<std::vector<std::pair<uintptr_t, uintptr_t>>>(
      rc::gen::pair(rc::gen::inRange<uintptr_t>(0, kPages), rc::gen::inRange<uintptr_t>(1, 9)));
  for (const auto& [first, wanted] : ranges) {
    const uintptr_t count = std::min(wanted, kPages - first);
    surrender(base + first * kPage, count * kPage);
    for (uintptr_t page = first; page < first + count; ++page) model.insert(page);
  }
  for (uintptr_t first = 0; first < kPages; ++first) {
    const SurrenderedSpan span = surrenderedSpan(base + first * kPage, (kPages - first) * kPage);
    RC_ASSERT(span.surrendered == (model.count(first) != 0));
    RC_ASSERT(span.size % kPage == 0u && span.size > 0u);
    const uintptr_t end = first + span.size / kPage;
    for (uintptr_t page = first; page < end; ++page) {
      RC_ASSERT((model.count(page) != 0) == span.surrendered);
    }
    // As long as it can be: the next page differs, or the question ended there.
    RC_ASSERT(end == kPages || (model.count(end) != 0) != span.surrendered);
  }
}

}  // namespace
}  // namespace tidepool
