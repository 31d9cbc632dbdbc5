// SPDX-License-Identifier: Apache-2.0
// Counting page words. A granule that has no pages is passed over without reading its words.
#include "runtime/space/residency.h"

#include <algorithm>

#include "runtime/base/debug_check.h"
#include "runtime/space/managed_space.h"

namespace tidepool {
namespace {

void add(Residency& sum, PageWord word) {
  const PageCount one(1);
  switch (word.state()) {
    case PageState::kEmpty:
    case PageState::kZero:
      sum.empty += one;
      break;
    case PageState::kLocal:
      sum.local += one;
      break;
    case PageState::kEvicting:
      sum.leaving += one;
      break;
    case PageState::kFetching:
      sum.coming += one;
      [[fallthrough]];
    case PageState::kFar:
      sum.far[word.tier() % kMaxTiers] += one;
      break;
    case PageState::kDirect:
      sum.in_place += one;
      sum.far[word.tier() % kMaxTiers] += one;
      break;
    case PageState::kLost:
      sum.lost += one;
      break;
  }
}

}  // namespace

Residency& Residency::operator+=(const Residency& other) {
  empty += other.empty;
  local += other.local;
  leaving += other.leaving;
  coming += other.coming;
  lost += other.lost;
  in_place += other.in_place;
  for (size_t tier = 0; tier < far.size(); ++tier) far[tier] += other.far[tier];
  return *this;
}

Residency residencyOf(const ManagedSpace& space, PageIndex first, PageCount count) {
  Residency sum;
  const PageIndex end = first + count.value();
  TP_DCHECK(end <= space.pageEnd());
  for (PageIndex page = first; page < end;) {
    const PageIndex next = std::min(end, firstPage(granuleOf(page) + 1));
    if (!space.hasPages(granuleOf(page))) {
      sum.empty += PageCount(next - page);
      page = next;
      continue;
    }
    for (; page < next; ++page) add(sum, space.word(page));
  }
  return sum;
}

}  // namespace tidepool
