// SPDX-License-Identifier: Apache-2.0
// How much of the local budget compressed pages should have, by marginal gain. A page of memory
// that the pool gets holds several pages more, whose faults cost a decompression then instead of a
// fetch; but one page less is local as it is. What either is worth is counted: faults on the pages
// put in last, which would be local with a smaller pool; faults on the oldest, which a smaller pool
// would have written to far memory; faults on pages written there lately, which a larger one would
// have kept (a table of samples remembers them). And whether compressing pays at all: while most of
// the pages put in leave for far memory unwanted, only a sample of pages is put in.
// Pure and deterministic; not thread-safe: one owner. Allocates nothing.
#pragma once

#include <array>
#include <cstdint>

#include "runtime/base/units.h"

namespace tidepool {

class PoolSize {
 public:
  /// Ages of entries are given as 0, the youngest, to this.
  static constexpr uint32_t kOldest = 15;

  /// Of a page from far memory: what a decompression saves. A guess until it is told.
  void setRoundTrip(Nanoseconds round_trip) { saved_ = round_trip; }

  /// A fault on a compressed page of that age.
  void onHit(uint32_t age);
  void onFarFault(PageIndex page);
  /// A page left the pool for far memory.
  void onWrittenBack(PageIndex page);
  /// One that has a copy in far memory went back there, past the pool.
  void onPassedBy(PageIndex page) { remember(page); }

  /// To be called now and then: sets the target by what has been seen, if that is enough. `limit`:
  /// of all local memory. `held`: what the pool takes of it, with `entries` pages.
  void adjust(PageCount limit, PageCount held, PageCount entries);
  /// Pages of memory that the pool may take.
  PageCount target() const { return target_; }
  /// Whether a page that is to go should be tried.
  bool takes(PageIndex page) const { return !resting_ || sampled(page); }
  /// Whether a page that has a copy in far memory should be tried, too: not while what is in the
  /// pool returns sooner than what goes past it, as in scans of more than fits.
  bool takesClean() const { return clean_pays_; }
  bool resting() const { return resting_; }

 private:
  static constexpr uint64_t kEnough = 512;       // faults to resize by
  static constexpr uint64_t kEnoughLeft = 4096;  // pages that have left the pool, to judge by
  static constexpr size_t kRemembered = 4096;
  static constexpr uint32_t kSampleEvery = 8;
  static constexpr uint64_t kMostShare = 2, kLeastShare = 32, kStepShare = 32;

  static uint64_t hashOf(PageIndex page) { return page.value() * 0x9e3779b97f4a7c15 >> 20; }
  static bool sampled(PageIndex page) { return hashOf(page) % kSampleEvery == 0; }
  void remember(PageIndex page);
  void judge();
  void resize(PageCount limit, PageCount held, PageCount entries);

  Nanoseconds saved_{40'000};
  PageCount target_;
  bool resting_ = false;
  bool clean_pays_ = false;
  // Since the last judgement: pages that were wanted back, and that left for far memory instead.
  uint64_t wanted_ = 0, unwanted_ = 0;
  // Since the last change of size.
  uint64_t hits_ = 0, young_ = 0, old_ = 0, ghosts_ = 0;
  // Pages written back, at the place of their hash; 0: none. One in (1 << sample_shift_) of them.
  std::array<uint32_t, kRemembered> remembered_{};
  uint32_t sample_shift_ = 0;
};

}  // namespace tidepool
