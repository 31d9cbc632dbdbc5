// SPDX-License-Identifier: Apache-2.0
// Smooth weighted round robin: at each turn every tier earns its weight, and the richest pays the
// whole for its turn. So 3:1 is a, a, b, a and not a, a, a, b. Pure.
#include "allocator/heap/heap_plan.h"

#include <cstdint>

namespace tidepool {

Result<HeapPlan> HeapPlan::interleaved(const std::vector<TierShare>& shares) {
  uint64_t sum = 0;
  for (const TierShare& share : shares) {
    if (share.weight == 0) {
      return fail(ErrorCode::kInvalidArgument, "a tier with weight 0: leave it out instead");
    }
    sum += share.weight;
  }
  if (sum == 0) return fail(ErrorCode::kInvalidArgument, "an interleaved heap needs tiers");
  if (sum > kMostWeight) {
    return fail(ErrorCode::kInvalidArgument, "the weights sum up to %llu: at most %u in all",
                static_cast<unsigned long long>(sum), kMostWeight);
  }
  std::vector<int64_t> earned(shares.size());
  std::vector<Placement> turns;
  for (uint64_t turn = 0; turn < sum; ++turn) {
    size_t richest = 0;
    for (size_t i = 0; i < shares.size(); ++i) {
      earned[i] += shares[i].weight;
      if (earned[i] > earned[richest]) richest = i;
    }
    earned[richest] -= static_cast<int64_t>(sum);
    turns.push_back(shares[richest].placement);
  }
  return HeapPlan(std::move(turns));
}

}  // namespace tidepool
