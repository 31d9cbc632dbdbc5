// SPDX-License-Identifier: Apache-2.0
// Keeps the busiest pages of granules with a direct tier in local DRAM. Samples accesses by taking
// pages out of the page table for a short window (direct pages) or arming them against writes
// (local ones) and seeing which came back; the window shrinks or grows until the pages seen in it
// are about as many as fit locally, so capacity, not a constant, says what is hot (MEMTIS). A page
// moves if what it saves over the horizon is more than the move costs (ARMS). Runs on the
// migrator's thread; sampling stays within its share of one core.
#pragma once

#include <array>
#include <bitset>

#include "runtime/base/clock.h"
#include "runtime/base/mapping.h"
#include "runtime/base/unique_fd.h"
#include "runtime/migrate/core.h"
#include "runtime/migrate/granule_mover.h"
#include "runtime/policy/move_rate.h"

namespace tidepool {

class Balancer {
 public:
  /// Errors: kNoMemory, kPermission (/proc/self/pagemap).
  static Result<std::unique_ptr<Balancer>> create(Core& core, GranuleMover& mover);

  /// Does what is due; returns when it wants to be called again.
  Nanoseconds step(Nanoseconds now);

 private:
  using PageSet = std::bitset<kPagesPerGranule>;
  static constexpr size_t kOpen = 32;  // granules being watched at a time

  struct Watch {
    GranuleIndex granule;
    Nanoseconds since;
    bool local;  // local pages are watched too
  };
  /// Which pages of a granule are where, and which of them were seen.
  struct View {
    PageSet direct, local, seen;
  };

  Balancer(Core& core, GranuleMover& mover, Mapping scores, UniqueFd pagemap);
  bool openWatch(Nanoseconds now);
  void closeWatch(const Watch& watch);
  View look(GranuleIndex granule) const;
  void readSeen(GranuleIndex granule, View& view);
  void score(GranuleIndex granule, const View& view);
  void adaptWindow(const View& view);
  void move(GranuleIndex granule, const View& view);
  void promoteSeen(GranuleIndex granule, const View& view);
  /// Demotes cold pages under a hand of its own until there is room for promotions.
  void makeRoom();
  void demoteCold(GranuleIndex granule);
  /// Once a second: asks for more benefit if many promotions proved useless, else for less.
  void judgeMoves(Nanoseconds now);
  bool worthMoving() const;
  void charge(Nanoseconds spent);
  uint8_t& scoreOf(PageIndex page) {
    return reinterpret_cast<uint8_t*>(scores_.data())[page.value()];
  }

  Core& core_;
  GranuleMover& mover_;
  Mapping scores_;  // a byte a page: kObserved, and recent sightings in the lower bits
  UniqueFd pagemap_;
  SampleStats* source_;
  std::array<Watch, kOpen> open_;
  size_t open_first_ = 0;
  size_t open_count_ = 0;
  GranuleIndex hand_;
  uint64_t turn_ = 0;  // of the hand
  GranuleIndex cold_hand_;
  Nanoseconds window_ = Nanoseconds(20'000'000);
  Nanoseconds earned_at_;
  Nanoseconds judged_at_;
  double sampling_ns_ = 0;              // CPU time that sampling may still use
  double moving_ns_ = 0;                // CPU time that moving may still use
  uint64_t promoted_ = 0, wasted_ = 0;  // since the bar was last set
  double bar_ = 1;
  MoveRate rate_;
  double misplaced_ = 1;  // share of seen pages that are far, smoothed
  uint64_t most_splits_ = 0;
  uint64_t splits_ = 0;
};

}  // namespace tidepool
