// SPDX-License-Identifier: Apache-2.0
// How many pages of a range are where, counted from their state words. Pure values, and one
// function that only reads: thread-safe, without a lock; pages may move while it counts.
#pragma once

#include <array>

#include "runtime/base/units.h"
#include "runtime/stats/stats_page.h"

namespace tidepool {

class ManagedSpace;

struct Residency {
  PageCount empty;    // never written, discarded, or zeros when evicted: holds no memory
  PageCount local;    // in local memory
  PageCount leaving;  // unmapped, being written to a fetch tier, or written: still local memory
  PageCount coming;   // still far, a read of them is under way
  PageCount lost;
  std::array<PageCount, kMaxTiers> far{};  // by tier; direct tiers' pages can be used in place
  PageCount in_place;                      // of these, those in direct tiers

  PageCount farPages() const {
    PageCount sum;
    for (const PageCount pages : far) sum += pages;
    return sum;
  }
  Residency& operator+=(const Residency& other);
};

/// Of the pages [first, first + count).
Residency residencyOf(const ManagedSpace& space, PageIndex first, PageCount count);

}  // namespace tidepool
