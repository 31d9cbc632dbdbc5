// SPDX-License-Identifier: Apache-2.0
// How much of the local budget compressed pages should have, by marginal gain in time. A page of
// memory that the pool gets is a page less that is local as it is, and makes room for several that
// would be far. Both are counted: faults on the pages put in last, and on pages that have just gone
// to far memory, which would be local with a smaller pool; faults on the oldest, which a smaller
// pool would have written to far memory; faults on pages written there lately, which a larger one
// would have kept (a table of samples remembers them). What such faults cost is measured. And
// whether compressing pays at all: while most of the pages put in leave for far memory unwanted,
// only a sample of pages is put in. Pure and deterministic; not thread-safe: one owner. Allocates
// nothing.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>

#include "runtime/base/units.h"
#include "runtime/policy/fault_cost.h"

namespace tidepool {

class PoolSize {
 public:
  /// Ages of entries are given as 0, the youngest, to this.
  static constexpr uint32_t kOldest = 15;
  /// Where pages that are remembered went.
  enum class Left : uint8_t { kWrittenBack, kPassedBy };
  static constexpr size_t kKinds = 2;

  /// What has been seen since the last change of size.
  struct Window {
    uint64_t hits = 0;            // faults on compressed pages
    uint64_t young = 0, old = 0;  // of these: on the youngest and on the oldest eighth
    std::array<uint64_t, kKinds> left{}, back{};  // remembered pages, and faults on them
    uint64_t near = 0;  // faults on far pages since whose eviction less than a step of others went
    PageCount step;     // by which the target changes
    PageCount held, entries;  // memory of the pool, and pages in it
  };
  /// Moving averages: of a fault answered by the pool or from far memory, of packing a page, and of
  /// what any fault costs beside that.
  struct Costs {
    Nanoseconds hit{4'000}, far{40'000}, pack{5'000}, fault = FaultCost::kGuess;
  };
  /// What one page of memory is worth a window, in ns: local as it is, as one more of the pool, and
  /// as the pool's last.
  struct Worth {
    double local = 0, more = 0, last = 0;
  };
  static Worth worthOf(const Window& window, const Costs& costs);

  /// What a page from far memory takes, a guess until it has been measured.
  void setRoundTrip(Nanoseconds round_trip) { costs_.far = round_trip + costs_.hit; }
  // What was measured. Of faults: from when they were heard of until the page was there.
  void onHitTook(Nanoseconds took) { average(costs_.hit, took); }
  void onFarTook(Nanoseconds took) { average(costs_.far, took); }
  void onPackTook(Nanoseconds took) { average(costs_.pack, took); }
  /// Of any fault, from the touch until it is heard of, and from the answer until the thread goes
  /// on.
  void setFaultCost(Nanoseconds cost) { costs_.fault = cost; }

  /// A fault on a compressed page of that age.
  void onHit(uint32_t age);
  /// One on a page of far memory. `away`: how many pages have left local memory since it did.
  void onFarFault(PageIndex page, std::optional<PageCount> away);
  /// A page left the pool for far memory, or has a copy there and went past the pool.
  void onLeft(PageIndex page, Left how);

  /// To be called now and then: sets the target by what has been seen, if that is enough. `limit`:
  /// of all local memory. `held`: what the pool takes of it, with `entries` pages.
  void adjust(PageCount limit, PageCount held, PageCount entries);
  /// Pages of memory that the pool may take.
  PageCount target() const { return target_; }
  /// Whether a page that is to go should be tried.
  bool takes(PageIndex page) const { return !resting_ || sampled(page); }
  /// Whether a page that has a copy in far memory should be tried, too. Some are left out always,
  /// to see what becomes of those that are.
  bool takesClean(PageIndex page) const { return clean_pays_ && !sampled(page); }
  bool resting() const { return resting_; }
  const Costs& costs() const { return costs_; }

 private:
  static constexpr uint64_t kEnough = 512;       // faults to resize by
  static constexpr uint64_t kEnoughLeft = 4096;  // pages that have left the pool, to judge by
  static constexpr uint64_t kTurns = 4;
  static constexpr size_t kRemembered = 4096;
  static constexpr uint32_t kSampleEvery = 8;
  static constexpr uint64_t kMostShare = 2, kLeastShare = 128, kStepShare = 32;

  // The chunks that are filled at a time, of a budget that has room for them.
  static constexpr PageCount kLeast{32};

  static PageCount leastOf(PageCount limit) {
    return std::max(limit / kLeastShare, std::min(limit / kStepShare, kLeast));
  }
  static PageCount stepOf(PageCount limit) { return std::max(limit / kStepShare, PageCount(1)); }
  static uint64_t hashOf(PageIndex page) { return page.value() * 0x9e3779b97f4a7c15 >> 20; }
  static bool sampled(PageIndex page) { return hashOf(page) % kSampleEvery == 0; }
  static void average(Nanoseconds& of, Nanoseconds sample);
  static size_t placeOf(PageIndex page) { return hashOf(page) % kRemembered; }
  Nanoseconds saved() const {
    return costs_.far > costs_.hit ? costs_.far - costs_.hit : Nanoseconds();
  }
  void judge();
  void judgeClean(PageCount spare);
  bool holdsWhatNobodyWants();
  void resize(PageCount limit);

  Costs costs_;
  PageCount target_;
  bool resting_ = false;
  bool clean_pays_ = false;
  // Since the last judgement: pages that were wanted back, and that left for far memory instead.
  uint64_t wanted_ = 0, unwanted_ = 0;
  Window seen_;
  Window turns_;  // since the pool was weighed last while it was not full
  // Pages that left lately, by kind, at the place of their hash; 0: none.
  std::array<std::array<uint32_t, kRemembered>, kKinds> remembered_{};
};

}  // namespace tidepool
