// SPDX-License-Identifier: Apache-2.0
// The rule by which local pages leave for a fetch tier: what each thing seen of a page does to its
// score, and who goes. VictimChooser (victim.h, which says what is seen and when) keeps the scores
// and asks; the engine and the simulator know no rule. For another one this file is changed.
// Pure and deterministic. Not thread-safe: one owner.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>

#include "runtime/base/debug_check.h"

namespace tidepool {

enum class Verdict : uint8_t { kEvict, kKeep, kProbe };

/// What is known of the writes to a local page since it was armed (write-protected).
enum class WriteBit : uint8_t {
  kNotArmed,  // it is not armed: nobody knows
  kClean,     // armed, and not written since
  kWritten,   // armed, written since; it is no longer armed
};

/// Whether the budget of probes has room for one more.
enum class Probes : uint8_t { kSpent, kLeft };

/// The knobs of the algorithm. The defaults are what the simulator found best over its traces
/// (docs/policy.md); results are flat around them.
struct VictimTuning {
  // Score of a page that returns at once, added to what it had, and what it loses for each doubling
  // of its absence: nothing is left after an eighth of the capacity has been evicted.
  uint32_t return_gain = 15;
  uint32_t return_fades = 4;
  uint32_t written_gain = 4;  // on an answer "written", after doubling the score
  // From here on a page is not probed but loses a point a turn: the probing interval of a busy page
  // grows to a dozen turns, which is what keeps write faults within the budget.
  uint32_t unprobed_from = 5;
  // The eviction threshold rises or falls when the share of visits that ends in an eviction leaves
  // this range (of 1024): fewer means the hand spins, more means it knows too little.
  uint32_t least_yield = 16;
  uint32_t most_yield = 256;
};

/// Scores are 0 (never seen) to kMaxScore; what is added beyond that is cut.
class EvictionRule {
 public:
  static constexpr uint32_t kMaxScore = 15;

  explicit EvictionRule(const VictimTuning& tuning) : tuning_(tuning) {}

  /// A page that is wanted again soon after it went should have stayed: the sooner, the more it
  /// gains. This is all that tells of pages that are read but not written. `epochs`: how long it
  /// was away, of which there are 64 a turnover of the capacity.
  uint32_t returned(uint32_t score, uint32_t epochs) const {
    const uint32_t faded = static_cast<uint32_t>(std::bit_width(epochs)) * tuning_.return_fades;
    return cut(score + tuning_.return_gain - std::min(faded, tuning_.return_gain));
  }

  /// A sampler saw it in use.
  uint32_t sampled(uint32_t score, uint32_t weight) const {
    return cut(score + std::min(weight, kMaxScore));
  }

  /// The clock hand is at a local page; changes its score.
  Verdict visited(uint32_t& score, WriteBit written, Probes probes) {
    const Verdict verdict = judge(score, written, probes);
    adaptThreshold(verdict);
    return verdict;
  }

 private:
  // Visits between two reviews of the threshold.
  static constexpr uint32_t kWindow = 1024;

  static uint32_t cut(uint32_t score) { return std::min(score, kMaxScore); }

  Verdict judge(uint32_t& score, WriteBit written, Probes probes) const {
    const bool may_probe = probes == Probes::kLeft;
    if (written == WriteBit::kWritten) {
      score = cut(score * 2 + tuning_.written_gain);
      // Only a threshold that rose because nothing else was left takes a page known to be in use.
      if (score <= threshold_) return Verdict::kEvict;
      return score < tuning_.unprobed_from && may_probe ? Verdict::kProbe : Verdict::kKeep;
    }
    // A page that is about to go is asked about first, if that can be paid for: one turn's delay is
    // cheap beside a fault.
    if (written == WriteBit::kNotArmed && score < tuning_.unprobed_from && may_probe) {
      if (score > 0) --score;
      return Verdict::kProbe;
    }
    if (score <= threshold_) return Verdict::kEvict;
    --score;
    return Verdict::kKeep;  // one that is armed stays so
  }

  void adaptThreshold(Verdict verdict) {
    if (verdict == Verdict::kProbe) return;  // its answer is still to come
    if (verdict == Verdict::kEvict) ++window_evictions_;
    if (++window_visits_ < kWindow) return;
    TP_DCHECK_OP(window_evictions_, <=, window_visits_);
    if (window_evictions_ < tuning_.least_yield && threshold_ < kMaxScore) ++threshold_;
    if (window_evictions_ > tuning_.most_yield && threshold_ > 0) --threshold_;
    window_visits_ = 0;
    window_evictions_ = 0;
  }

  VictimTuning tuning_;
  uint32_t threshold_ = 0;  // pages at or below it go
  uint32_t window_visits_ = 0;
  uint32_t window_evictions_ = 0;
};

}  // namespace tidepool
