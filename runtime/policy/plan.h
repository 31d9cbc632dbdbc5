// SPDX-License-Identifier: Apache-2.0
// Plans promotions and demotions of a direct tier's granules: a granule moves only if what it is
// expected to save exceeds what moving costs, within a byte rate, and less eagerly after moves
// that proved useless. Pure and deterministic; not thread-safe; allocates nothing after
// construction.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "runtime/base/units.h"

namespace tidepool {

enum class Place : uint8_t { kLocal, kFar };
enum class MoveKind : uint8_t { kPromote, kDemote };

/// What the sampler and the space know of one granule.
struct GranuleHeat {
  GranuleIndex granule;
  Place place = Place::kLocal;
  double accesses_per_second = 0;  // that reach memory, scaled up from samples
};

struct GranuleMove {
  GranuleIndex granule;
  MoveKind kind = MoveKind::kPromote;
  bool operator==(const GranuleMove&) const = default;
};

struct PlanConfig {
  Nanoseconds extra_latency = Nanoseconds(250);     // of a far access beyond a local one
  Nanoseconds promote_cost = Nanoseconds(500'000);  // copy, mapping, and the program's stalls
  Nanoseconds demote_cost = Nanoseconds(700'000);
  Nanoseconds horizon =
      Nanoseconds(10'000'000'000);     // for how long the present is believed to last
  double rate_bytes_per_second = 1e9;  // of all moves together
  // A far granule replaces a local one only if it is busier by this share.
  double warm_band = 0.25;
  size_t most_moves = 64;  // per plan
};

struct PlanInput {
  Nanoseconds now;  // never goes back
  std::span<const GranuleHeat> granules;
  Bytes local_free;         // room for promotions
  Bytes local_free_wanted;  // demote, whatever the heat, until so much is free: the budget is real
};

struct PlanStats {
  uint64_t promotions = 0;
  uint64_t demotions = 0;
  uint64_t wasted = 0;  // moves that undid a recent one
  uint64_t refused_by_cost = 0;
  uint64_t refused_by_rate = 0;
};

class Planner {
 public:
  explicit Planner(const PlanConfig& config);

  /// Writes the moves into `out`, demotions before the promotions that need their room; returns
  /// how many. `scratch` holds at least granules.size() entries and is borrowed for the call.
  size_t plan(const PlanInput& input, std::span<uint32_t> scratch, std::span<GranuleMove> out);

  /// How many times its cost a move must save just now: 1 when calm, up to kHighestBar when
  /// recent moves were wasted.
  double bar() const { return bar_; }
  const PlanStats& stats() const { return stats_; }

  static constexpr double kHighestBar = 16;

 private:
  static constexpr size_t kRemembered = 1024;  // recent moves, for telling wasted ones
  struct Remembered {
    GranuleMove move;
    Nanoseconds when;
    bool used = false;
  };
  struct Output {
    std::span<GranuleMove> moves;
    size_t count = 0;
  };

  void earn(Nanoseconds now);
  double savingNs(double accesses_per_second) const;
  bool affordable(size_t moves) const;
  void emit(Output& out, GranuleMove move, Nanoseconds now);
  bool undoesRecent(GranuleMove move, Nanoseconds now) const;
  size_t relieve(const PlanInput& input, std::span<uint32_t> local, Output& out);
  void promote(const PlanInput& input, std::span<uint32_t> far, std::span<uint32_t> local,
               uint64_t free_granules, Output& out);

  PlanConfig config_;
  PlanStats stats_;
  double bar_ = 1;
  double tokens_ = 0;  // bytes that may be moved now
  Nanoseconds last_now_;
  bool started_ = false;
  std::array<Remembered, kRemembered> recent_{};
  size_t next_recent_ = 0;
};

}  // namespace tidepool
