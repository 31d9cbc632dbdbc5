// SPDX-License-Identifier: Apache-2.0
// Traces of lookups in an embedding table for the row simulator, each a function of its seed alone.
// Ranks (0 is the hottest) are scattered over the row numbers by a permutation.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace tidepool::bench {

struct RowTrace {
  std::string name;
  uint32_t rows = 0;
  size_t measured = 0;  // lookups before this one warm up
  std::vector<uint32_t> lookups = {};

  /// Before lookup number `at`, two rows exchange their places in the order of hotness.
  struct Exchange {
    size_t at;
    uint32_t a, b;
  };
  /// Of skew and rotating: the share of lookups each row has at first, and what changes that.
  std::vector<double> frequency = {};
  std::vector<Exchange> exchanges = {};
};

struct RowTraceSize {
  uint32_t rows = 0;
  size_t lookups = 0;
  size_t measured = 0;
};

/// A skew as production tables have it: the hottest 0.2 % of rows take 31 % of lookups, 0.9 % 42 %,
/// 5 % 60 %, 12 % 72 %, 37 % 89 %. Between these points the share of lookups is a power of the
/// share of rows.
class ProductionSkew {
 public:
  explicit ProductionSkew(uint32_t rows) : rows_(rows) {}
  /// The share of lookups that the hottest `share` of rows take.
  static double lookupShare(double share);
  /// The rank at which the hottest ranks' lookups reach the share `u`, 0 <= u < 1.
  uint32_t rankAt(double u) const;
  /// The share of lookups that a rank has.
  double frequency(uint32_t rank) const;

 private:
  uint32_t rows_;
};

/// The hot set rotates: after every `rows * kPeriod` lookups, kShare of the ranks in the hottest
/// kHottest of rows, drawn at random, exchange their rows with ranks drawn from all.
struct Rotation {
  static constexpr double kPeriod = 0.125;
  static constexpr double kShare = 0.02;
  static constexpr double kHottest = 0.2;
};

/// The generators' names, in the order in which the simulator shows them:
///   skew       production-like skew, independent draws
///   rotating   the same with Rotation
///   uniform    every row alike
///   zipf-0.8, zipf-1.05, zipf-1.3
///   scan       skew; every fourth lookup goes to the next row of a scan over all rows
///   change     skew; halfway through what is measured all ranks change their rows
const std::vector<std::string>& rowTraceNames();

/// An empty trace (no lookups) for a name that is not one of them.
RowTrace makeRowTrace(std::string_view name, const RowTraceSize& size, uint64_t seed);

}  // namespace tidepool::bench
