// SPDX-License-Identifier: Apache-2.0
// Chooses what leaves local memory for a fetch tier, from few and cheap observations: faults,
// rescues from limbo, answers to write-protect probes, PMU samples. Pure and deterministic.
// Not thread-safe: one owner. Borrows the caller's memory, never allocates.
//
// How the engine uses it:
//   fault on an absent page      run = onFault(page, now); bring in run (absent, existing pages)
//   re-fault on a page in limbo  onRescue(page, now)
//   needs victims                take streams().takeBehind() runs first, then pages from the clock
//                                hand in address order; ask classify() about every local one:
//     kEvict   move it out
//     kKeep    leave it as it is (armed or not)
//     kProbe   write-protect it, so that the next visit can answer kClean or kWritten
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "runtime/base/units.h"
#include "runtime/policy/stream.h"

namespace tidepool {

enum class Verdict : uint8_t { kEvict, kKeep, kProbe };

/// What is known of the writes to a local page since it was armed (write-protected).
enum class WriteBit : uint8_t {
  kNotArmed,  // it is not armed: nobody knows
  kClean,     // armed, and not written since
  kWritten,   // armed, written since; it is no longer armed
};

struct VictimConfig {
  PageCount capacity;                      // local pages there may be
  double sampling_cpu = 0.01;              // share of one core that probes may use; 0: no probes
  Nanoseconds ask_cost = Nanoseconds(31);  // to ask about or to arm one page, in bulk
  Nanoseconds write_fault_cost = Nanoseconds(800);  // what the program pays on the first write
  bool streams = true;                              // follow ascending streams
};

struct VictimStats {
  uint64_t faults = 0;
  uint64_t rescues = 0;
  uint64_t samples = 0;
  uint64_t visits = 0;      // classify() calls
  uint64_t evictions = 0;   // kEvict answers
  uint64_t forced = 0;      // of those, pages above the threshold of the day
  uint64_t probes = 0;      // kProbe answers
  Nanoseconds probe_spent;  // modelled cost of all probes
};

class VictimChooser {
 public:
  /// Metadata for a space of `pages`: two bytes each. Only what covers pages that were used is
  /// touched, so a large reservation costs 0.05 % of the part in use.
  static Bytes memoryFor(PageCount pages) { return Bytes(pages.value() * sizeof(uint16_t)); }

  /// `memory` is zero-filled, 2-byte aligned and outlives the chooser; it bounds the page indexes.
  VictimChooser(const VictimConfig& config, std::span<std::byte> memory);

  /// An absent page was touched; `now` never goes back. Returns the run to bring in: `page`, and
  /// more when it belongs to an ascending stream. Clip the rest to absent pages that exist.
  PageRun onFault(PageIndex page, Nanoseconds now);
  /// A page in limbo was touched and is local again.
  void onRescue(PageIndex page, Nanoseconds now);
  /// A PMU sample, or an exact count from the API, saw `page` accessed.
  void onSample(PageIndex page, uint32_t weight);
  /// The page was freed or discarded: nothing of its past counts.
  void onDiscard(PageIndex page);

  /// Verdict on one local page. Advances the page's age: ask once per turn of the hand.
  Verdict classify(PageIndex page, WriteBit written);

  StreamTracker& streams() { return streams_; }
  void setCapacity(PageCount capacity);
  /// Corrects the modelled probe cost by what the engine measured beyond it.
  void chargeProbes(Nanoseconds cost) { spend(cost.value()); }
  const VictimStats& stats() const { return stats_; }
  /// 0 (never seen) to kMaxScore, as it stands now. For statistics and tests.
  uint32_t score(PageIndex page) const;

  static constexpr uint32_t kMaxScore = 63;

 private:
  // A page's word: score in bits 0-5, "brought in by a stream and not seen used since" in bit 6,
  // the turn of the hand it was last updated in bits 8-15 (modulo 256).
  static constexpr uint16_t kScoreMask = 0x3f;
  static constexpr uint16_t kStreamed = 0x40;

  uint32_t agedScore(uint16_t word) const;
  uint16_t pack(uint32_t score) const;
  void raise(PageIndex page, uint32_t gain);
  void earn(Nanoseconds now);
  void spend(uint64_t nanoseconds);
  void adaptThreshold(Verdict verdict);

  std::span<uint16_t> words_;
  VictimConfig config_;
  VictimStats stats_;
  StreamTracker streams_;
  uint64_t turn_visits_ = 0;  // visits since the turn began
  uint8_t turn_ = 0;          // turns of the hand over `capacity` pages, modulo 256
  uint32_t threshold_ = 0;    // pages at or below it go
  uint32_t window_visits_ = 0;
  uint32_t window_evictions_ = 0;
  Nanoseconds last_now_;
  int64_t budget_ = 0;  // nanoseconds of probing that may still be spent
};

}  // namespace tidepool
