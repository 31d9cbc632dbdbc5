// SPDX-License-Identifier: Apache-2.0
// The promotion and demotion planner. See plan.h.
#include "runtime/policy/plan.h"

#include <algorithm>

#include "runtime/base/check.h"

namespace tidepool {
namespace {

// What one wasted move does to the bar, and how fast calm plans bring it down again: one waste is
// forgotten after about eight calm plans.
constexpr double kBarUp = 1.5;
constexpr double kBarDown = 0.95;
// Unused rate is saved up for at most this long, so that a quiet hour does not buy a storm.
constexpr double kBurstSeconds = 0.25;

}  // namespace

Planner::Planner(const PlanConfig& config) : config_(config) {
  TP_CHECK(config.rate_bytes_per_second > 0);
  TP_CHECK(config.warm_band >= 0);
  TP_CHECK_OP(config.horizon.value(), >, 0u);
}

void Planner::earn(Nanoseconds now) {
  // A granule must always be affordable in the end, however low the rate.
  const double most = std::max(config_.rate_bytes_per_second * kBurstSeconds,
                               2.0 * static_cast<double>(kGranuleSize));
  if (!started_) {
    started_ = true;
    tokens_ = most;
  } else {
    TP_CHECK_OP(now.value(), >=, last_now_.value());
    tokens_ += config_.rate_bytes_per_second * static_cast<double>((now - last_now_).value()) / 1e9;
    tokens_ = std::min(tokens_, most);
  }
  last_now_ = now;
}

double Planner::savingNs(double accesses_per_second) const {
  return accesses_per_second * static_cast<double>(config_.extra_latency.value()) *
         static_cast<double>(config_.horizon.value()) / 1e9;
}

bool Planner::affordable(size_t moves) const {
  return tokens_ >= static_cast<double>(moves * kGranuleSize);
}

bool Planner::undoesRecent(GranuleMove move, Nanoseconds now) const {
  return std::any_of(recent_.begin(), recent_.end(), [&](const Remembered& past) {
    return past.used && past.move.granule == move.granule && past.move.kind != move.kind &&
           now - past.when < config_.horizon;
  });
}

void Planner::emit(Output& out, GranuleMove move, Nanoseconds now) {
  TP_CHECK_OP(out.count, <, out.moves.size());
  if (undoesRecent(move, now)) {
    ++stats_.wasted;
    bar_ = std::min(bar_ * kBarUp, kHighestBar);
  }
  out.moves[out.count++] = move;
  ++(move.kind == MoveKind::kPromote ? stats_.promotions : stats_.demotions);
  tokens_ -= static_cast<double>(kGranuleSize);
  recent_[next_recent_] = Remembered{move, now, true};
  next_recent_ = (next_recent_ + 1) % kRemembered;
}

// Demotes the coldest until enough is free. Not subject to the bar or the rate (the tokens go
// negative instead, and promotions wait): exceeding the budget is worse than moving too much.
size_t Planner::relieve(const PlanInput& input, std::span<uint32_t> local, Output& out) {
  if (input.local_free >= input.local_free_wanted) return 0;
  const uint64_t lacking = (input.local_free_wanted - input.local_free).value();
  const size_t wanted = (lacking + kGranuleSize - 1) / kGranuleSize;
  const size_t count = std::min({wanted, local.size(), out.moves.size()});
  for (size_t i = 0; i < count; ++i) {
    emit(out, {input.granules[local[i]].granule, MoveKind::kDemote}, input.now);
  }
  return count;
}

// Takes the busiest far granules, in turn, into free room or in exchange for the coldest local one.
void Planner::promote(const PlanInput& input, std::span<uint32_t> far, std::span<uint32_t> local,
                      uint64_t free_granules, Output& out) {
  const auto promote_cost = static_cast<double>(config_.promote_cost.value());
  const auto swap_cost = promote_cost + static_cast<double>(config_.demote_cost.value());
  size_t victim = 0;
  for (uint32_t index : far) {
    const GranuleHeat& heat = input.granules[index];
    const bool swap = free_granules == 0;
    double saving = savingNs(heat.accesses_per_second);
    if (swap) {
      if (victim == local.size()) return;
      const double lost = input.granules[local[victim]].accesses_per_second;
      if (heat.accesses_per_second <= lost * (1 + config_.warm_band)) return;
      saving -= savingNs(lost);
    }
    if (saving <= bar_ * (swap ? swap_cost : promote_cost)) {
      ++stats_.refused_by_cost;
      return;  // the rest are colder still
    }
    const size_t moves = swap ? 2 : 1;
    if (out.count + moves > out.moves.size()) return;
    if (!affordable(moves)) {
      ++stats_.refused_by_rate;
      return;
    }
    if (swap) {
      emit(out, {input.granules[local[victim]].granule, MoveKind::kDemote}, input.now);
      ++victim;
    } else {
      --free_granules;
    }
    emit(out, {heat.granule, MoveKind::kPromote}, input.now);
  }
}

size_t Planner::plan(const PlanInput& input, std::span<uint32_t> scratch,
                     std::span<GranuleMove> out) {
  const size_t total = input.granules.size();
  TP_CHECK_OP(scratch.size(), >=, total);
  earn(input.now);
  const uint64_t wasted_before = stats_.wasted;

  // Local granules fill the scratch from the front, far ones from the back.
  size_t locals = 0, fars = total;
  for (uint32_t i = 0; i < total; ++i) {
    if (input.granules[i].place == Place::kLocal) {
      scratch[locals++] = i;
    } else {
      scratch[--fars] = i;
    }
  }
  std::span<uint32_t> local = scratch.first(locals);
  std::span<uint32_t> far = scratch.subspan(fars, total - fars);
  // Only the ends matter: the coldest local and the busiest far granules. Ties go by granule
  // number, so that equal input gives an equal plan.
  const size_t most = std::min(config_.most_moves, out.size());
  const auto colder = [&](uint32_t a, uint32_t b) {
    const GranuleHeat &x = input.granules[a], &y = input.granules[b];
    if (x.accesses_per_second != y.accesses_per_second) {
      return x.accesses_per_second < y.accesses_per_second;
    }
    return x.granule < y.granule;
  };
  const auto busier = [&](uint32_t a, uint32_t b) { return colder(b, a); };
  const auto end = [most](std::span<uint32_t> span) {
    return span.begin() + static_cast<std::ptrdiff_t>(std::min(most, span.size()));
  };
  std::partial_sort(local.begin(), end(local), local.end(), colder);
  std::partial_sort(far.begin(), end(far), far.end(), busier);
  local = local.first(std::min(most, local.size()));
  far = far.first(std::min(most, far.size()));

  Output output{out.first(most)};
  const size_t relieved = relieve(input, local, output);
  const uint64_t spare = input.local_free > input.local_free_wanted
                             ? (input.local_free - input.local_free_wanted).value()
                             : 0;
  if (relieved == 0) promote(input, far, local, spare / kGranuleSize, output);
  if (stats_.wasted == wasted_before) bar_ = std::max(1.0, bar_ * kBarDown);
  return output.count;
}

}  // namespace tidepool
