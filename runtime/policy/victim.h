// SPDX-License-Identifier: Apache-2.0
// Chooses what leaves local memory for a fetch tier, from few and cheap observations: faults,
// rescues from limbo, answers to write-protect probes, PMU samples. It keeps a score a page, by
// which eviction_rule.h decides, and the budget of probes. Pure and deterministic.
// Not thread-safe: one owner. Borrows the caller's memory, never allocates.
//
// How the engine uses it (one owner at a time: a call takes tens of nanoseconds, so the engine's
// own lock will do):
//   fault on an absent page      run = onFault(page, now); bring in what of run is absent and
//                                exists, and tell onPrefetched() of each such page but this one
//   re-fault on a page in limbo  onRescue(page, now)
//   needs victims                first streams().takeBehind() runs: evict the local pages for which
//                                classifyBehind() says so. Then pages from the clock hand in
//                                address order: ask classify() about every local one, and
//     kEvict   move it out
//     kProbe   write-protect ("arm") it now, so that the next visit can answer kClean or kWritten
//     kKeep    change nothing: a page found written stays unarmed, a clean one stays armed
//   armed pages, or asked        chargeProbes() with the processor time that took
// The engine remembers in the page's state word that a page was armed; to the kernel a page that
// was never armed and one written since look the same.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "runtime/base/debug_check.h"
#include "runtime/base/units.h"
#include "runtime/policy/eviction_rule.h"
#include "runtime/policy/stream.h"

namespace tidepool {

struct VictimConfig {
  PageCount capacity;                               // local pages there may be
  double sampling_cpu = 0.01;                       // share of one core for probes; 0: no probes
  Nanoseconds write_fault_cost = Nanoseconds(800);  // what the program pays on the first write
  bool streams = true;                              // follow streams
  Nanoseconds started;                              // when sampling time begins to be earned
  VictimTuning tuning;
};

struct VictimStats {
  uint64_t faults = 0;
  uint64_t rescues = 0;
  uint64_t prefetch_hits = 0;  // pages fetched ahead that the scan has passed
  uint64_t samples = 0;
  uint64_t visits = 0;      // classify() calls
  uint64_t evictions = 0;   // kEvict answers
  uint64_t probes = 0;      // kProbe answers
  Nanoseconds probe_spent;  // what was charged, and the write faults
};

class VictimChooser {
 public:
  /// Metadata for a space of `pages`: two bytes each. Only what covers pages that were used is
  /// touched, so a large reservation costs 0.05 % of the part in use.
  static Bytes memoryFor(PageCount pages) { return Bytes(2 * pages.value()); }

  /// `memory` is zero-filled and outlives the chooser; half its size bounds the page indexes.
  VictimChooser(const VictimConfig& config, std::span<std::byte> memory);

  /// An absent page was touched; `now` never goes back. Returns the run to bring in: `page`, and
  /// more beside it when it belongs to a stream. Clip the rest to absent pages that exist.
  PageRun onFault(PageIndex page, Nanoseconds now);
  /// `page`, of a run that onFault() gave and not its own page, was brought in. Not to be told
  /// of pages that were local already: a scan must not mark the hot ones in its way.
  void onPrefetched(PageIndex page);
  /// `page`, which no stream brings in, was fetched since an instruction will probably touch it.
  void onForetold(PageIndex page) { onReturn(page); }
  /// A page in limbo was touched and is local again.
  void onRescue(PageIndex page, Nanoseconds now);
  /// A PMU sample, or an exact count from the API, saw `page` accessed.
  void onSample(PageIndex page, uint32_t weight);
  /// The program says that the local page is not in use, ...
  void onCold(PageIndex page) { setScore(byteOf(page), 0); }
  /// ... or will not be: classifyBehind() says that it goes. Tell streams().giveUp() of its run.
  void onGivenUp(PageIndex page);
  /// The page was freed or discarded: nothing of its past counts.
  void onDiscard(PageIndex page);

  /// Verdict on one local page. Ages the page: ask once per turn of the hand.
  Verdict classify(PageIndex page, WriteBit written);

  /// The same for a local page of a run that takeBehind() gave: it goes only if the stream brought
  /// it in. Does not age it, so that a scan leaves the hot pages in its way alone.
  Verdict classifyBehind(PageIndex page);

  /// About how many pages have been evicted since the absent page was; none if it never was. To be
  /// asked before onFault().
  std::optional<PageCount> evictedSince(PageIndex page) const;

  StreamTracker& streams() { return streams_; }
  void setCapacity(PageCount capacity);
  /// What arming pages and asking about them cost the engine, as measured: it depends on how they
  /// lie. Write faults of armed pages are charged here already, at config's cost each.
  void chargeProbes(Nanoseconds cost) { spend(cost.value()); }
  const VictimStats& stats() const { return stats_; }
  /// 0 (never seen) to kMaxScore, as it stands now. For statistics and tests.
  uint32_t score(PageIndex page) const;

  static constexpr uint32_t kMaxScore = EvictionRule::kMaxScore;

 private:
  // A page's first byte: score in bits 0-3, "brought in by a stream and not seen used since" in bit
  // 4, "fetched ahead, and the stream has not passed it yet" in bit 5. The score of a page outlives
  // its eviction; nothing ages it then (ageing changed no result).
  static constexpr uint8_t kScoreMask = 0x0f;
  static constexpr uint8_t kStreamed = 0x10;
  static constexpr uint8_t kAhead = 0x20;

  uint8_t& byteOf(PageIndex page);
  static uint32_t scoreOf(uint8_t byte) { return byte & kScoreMask; }
  static void setScore(uint8_t& byte, uint32_t score) {
    TP_DCHECK_OP(score, <=, kMaxScore);
    byte = static_cast<uint8_t>((byte & ~kScoreMask) | score);
  }
  void onLeaving(PageIndex page);
  void onReturn(PageIndex page);
  void countPassed(const PageRun& run);
  void earn(Nanoseconds now);
  void spend(uint64_t nanoseconds);

  // Epochs are numbered 1 to kEpochs, round and round: four turnovers of the capacity.
  static constexpr uint64_t kEpochsPerTurnover = 64;
  static constexpr uint32_t kEpochs = 255;

  std::span<uint8_t> bytes_;
  std::span<uint8_t> left_;  // epoch in which the page last left; 0: never did
  VictimConfig config_;
  EvictionRule rule_;
  VictimStats stats_;
  StreamTracker streams_;
  uint8_t epoch_ = 1;
  uint64_t epoch_evictions_ = 0;  // in this epoch
  Nanoseconds last_now_;
  int64_t budget_ = 0;  // nanoseconds of probing that may still be spent
};

}  // namespace tidepool
