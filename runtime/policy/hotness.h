// SPDX-License-Identifier: Apache-2.0
// How hot is a page or granule, and what counts as hot today: frequency and momentum sketches make
// one score; the threshold is whatever lets the hot set fit the DRAM budget. Pure; not thread-safe;
// borrows the caller's memory, never allocates. Histogram entries are bytes.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "runtime/base/units.h"
#include "runtime/policy/sketch.h"

namespace tidepool {

/// Frequency remembers for long, momentum forgets fast: a unit that has just become busy scores
/// high before its frequency has caught up, and one that stopped loses momentum first.
class Hotness {
 public:
  static constexpr uint32_t kMaxScore = 2 * CountSketch::kMaxCount;
  // Momentum coolings per frequency cooling.
  static constexpr uint32_t kFrequencyPeriod = 8;

  /// Memory for each of the two sketches, as CountSketch wants it. `cool_every` samples make one
  /// momentum cooling: a few times the number of units expected to be hot.
  Hotness(std::span<std::byte> frequency, std::span<std::byte> momentum, uint64_t cool_every);

  /// A sample saw `key` (a page or granule number) accessed `weight` times.
  void record(uint64_t key, uint32_t weight);
  /// 0 (not seen lately) to kMaxScore.
  uint32_t score(uint64_t key) const;
  /// One step of ageing, for callers that age by time as well (an idle program sends no samples).
  void cool();

  uint64_t samples() const { return samples_; }

 private:
  CountSketch frequency_;
  CountSketch momentum_;
  uint64_t cool_every_;
  uint64_t samples_ = 0;
  uint64_t until_cool_;
  uint32_t coolings_ = 0;
};

/// Bytes at each score. Filled by a sweep over the tracked units, then read by fitThreshold().
class ScoreHistogram {
 public:
  void add(uint32_t score, Bytes size);
  void clear() { bytes_ = {}; }
  Bytes at(uint32_t score) const { return Bytes(bytes_[score]); }
  /// Bytes at `score` and above.
  Bytes from(uint32_t score) const;

 private:
  std::array<uint64_t, Hotness::kMaxScore + 1> bytes_{};
};

enum class Heat : uint8_t { kCold, kWarm, kHot };

/// Scores from `hot` up are worth local memory; from `warm` up they stay where they are.
struct HeatThreshold {
  uint32_t hot = 1;
  uint32_t warm = 1;

  Heat heatOf(uint32_t score) const {
    return score >= hot ? Heat::kHot : score >= warm ? Heat::kWarm : Heat::kCold;
  }
};

/// The lowest threshold whose hot set fits `capacity` (MEMTIS). The warm band below it covers up to
/// `warm_share` of the capacity more, and at least one score: units there move in neither
/// direction, so that noise of one sample does not make them ping-pong. A unit never seen
/// (score 0) is never hot. `previous` gives hysteresis: the threshold falls only when what would
/// become hot leaves an eighth of the warm allowance free.
HeatThreshold fitThreshold(const ScoreHistogram& histogram, Bytes capacity, double warm_share,
                           HeatThreshold previous);

}  // namespace tidepool
