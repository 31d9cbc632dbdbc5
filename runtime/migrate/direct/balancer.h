// SPDX-License-Identifier: Apache-2.0
// Keeps the busiest pages of granules with a direct tier in local DRAM. Watches a few granules at a
// time for a short window, the length of which says what is hot (runtime/policy/watching.h); then
// moves their pages, and only then watches the next, so that no window is longer than it should be.
// Local pages are asked first, by a sample: where what was hot has fallen silent, the granule is
// cleared of it, and looked at afresh. A page moves if what it saves over the horizon is more than
// the move costs (ARMS). Runs on the migrator's thread; sampling, with the faults it causes, stays
// within its share of one core.
#pragma once

#include <array>
#include <utility>

#include "runtime/base/clock.h"
#include "runtime/base/mapping.h"
#include "runtime/migrate/core/core.h"
#include "runtime/migrate/core/look_times.h"
#include "runtime/migrate/direct/access_watch.h"
#include "runtime/migrate/direct/granule_mover.h"
#include "runtime/policy/move_rate.h"
#include "runtime/policy/spread_order.h"
#include "runtime/policy/watching.h"

namespace tidepool {

class Balancer {
 public:
  /// Errors: kNoMemory, kPermission (/proc/self/pagemap).
  static Result<std::unique_ptr<Balancer>> create(Core& core, GranuleMover& mover);

  /// Does what is due; returns when it wants to be called again.
  Nanoseconds step(Nanoseconds now);
  /// Ends what it watches, so that every page is where its word says: before a fork.
  void rest();
  /// Likewise, and nothing keeps a tier in use that must be left.
  void letGo();

  /// What is remembered of a page. For statistics.
  PageScore score(PageIndex page) const { return PageScore(rawScores()[page.value()]); }
  /// When pages of the granule were last watched; 0: never.
  Nanoseconds lookedAt(GranuleIndex granule) const { return looks_.of(granule); }

 private:
  /// What is asked about a granule: its local pages (a sample of them, if it has others), its long
  /// runs of direct ones, or all direct ones, which is dear if they are in pieces.
  /// kAgain: as kDirect, right after one, to tell what is hot from what was seen by chance.
  enum class Look : uint8_t { kLocal, kDirect, kAgain, kWhole };
  struct Visit {
    GranuleIndex granule;
    Look look;
    AccessWatch::Seen found;
    bool outdated;    // what was known of its local pages no longer holds
    bool telling;     // sightings count, not only silence
    uint64_t cooled;  // local pages that turned out cold
    Nanoseconds cost;
  };
  static constexpr size_t kBatch = AccessWatch::kSlots;

  Balancer(Core& core, GranuleMover& mover, Mapping scores, Mapping runs, LookTimes looks,
           std::unique_ptr<AccessWatch> watch);
  void earn(Nanoseconds now);
  bool settled() const;
  bool filling();
  size_t looksAtOnce() const;
  void openBatch(Nanoseconds now);
  bool openNext(SpreadOrder& order, Look look);
  /// Charges the visit from `since` on: finding it costs time too.
  bool open(GranuleIndex index, Look look, Nanoseconds since);
  Places sampleOf(const Places& places);
  void closeBatch(Nanoseconds now);
  void closeVisit(Visit& visit, WatchWindow::Sample& far, WatchWindow::Sample& local);
  void scoreDirect(const Visit& visit);
  void scoreLocal(const GranuleLock& granule, Visit& visit);
  void prove(const GranuleLock& granule, PageIndex page, bool seen);
  /// Carries out what the closed visits suggest, until the time for moves is used up.
  void act();
  /// Says once that pages in use are not promoted, and what keeps them. No lock is held.
  void sayIfHeld();
  void actOn(const Visit& visit);
  void followUp(const Visit& visit);
  /// Has a granule looked at once more if one of the pages seen there may have been seen by chance.
  void askAgain(const Visit& visit, const PageSet& hot);
  void lookNext(GranuleIndex granule, Look look);
  void beginPromotion(const GranuleLock& granule, const PageSet& hot);
  /// Of all that were begun, with one look at the process's descriptors.
  void finishPromotions();
  void markUnproven(const GranuleLock& granule, const Promoter::Run& run, const PageSet& hot);
  PageSet hotOf(const Visit& visit) const;
  /// Demotes cold pages under a hand of its own until there is room for a batch of promotions.
  void makeRoom();
  uint64_t demoteCold(const GranuleLock& granule);
  /// Demotes all of it: a granule without local pages is cheap to look at.
  void clear(const GranuleLock& granule);
  void countRuns(const GranuleLock& granule);
  void judgeMoves(Nanoseconds now);
  MoveWorth moveWorth() const;
  bool worthMoving() const { return moveWorth().pays(window_.length(), bar_.height()); }
  void charge(Nanoseconds spent);
  void chargeVisit(Visit& visit, Nanoseconds since, double faults_ns);
  GranuleIndex end() const { return granuleOf(core_.space->highWater() + (kPagesPerGranule - 1)); }
  void setScore(PageIndex page, PageScore score) { rawScores()[page.value()] = score.raw(); }
  uint8_t* rawScores() const { return reinterpret_cast<uint8_t*>(scores_.data()); }

  Core& core_;
  GranuleMover& mover_;
  Mapping scores_;  // a PageScore a page
  Mapping runs_;    // runs of local pages a granule, 2 bytes each
  LookTimes looks_;
  std::unique_ptr<AccessWatch> watch_;
  SampleStats* source_;
  WatchWindow window_;
  LookShares shares_;
  std::array<Visit, kBatch> visits_{};
  size_t visit_count_ = 0;
  size_t acted_ = 0;       // visits that are done with; the others wait for time to move
  bool watching_ = false;  // the visits are being watched now
  Nanoseconds opened_at_;
  std::array<std::pair<GranuleIndex, Look>, kBatch> next_{};  // to be looked at before others
  size_t next_count_ = 0;
  SpreadOrder local_order_, far_order_;  // of granules with local pages, and without
  GranuleIndex cold_hand_;
  Nanoseconds earned_at_;
  Nanoseconds judged_at_;
  double sampling_ns_ = 0;  // CPU time that sampling may still use
  double moving_ns_ = 0;    // CPU time that moving may still use
  PromotionBar bar_;
  MoveRate rate_;
  double unrest_ = 1;  // share of watched pages that had to move, smoothed
  uint64_t most_runs_ = 0;
  uint64_t run_count_ = 0;
  struct Promoted {
    GranuleIndex granule;
    PageSet hot;
    Promoter::Promotion promotion;
  };
  std::array<Promoted, ClosingGranules::kMost> promoted_;  // begun, and not finished yet
  size_t promoted_count_ = 0;
  uint64_t begun_runs_ = 0;
  PageCount begun_;  // in these runs
  bool said_held_ = false;
  uint64_t used_ = 0;  // pages in use when last asked
};

}  // namespace tidepool
