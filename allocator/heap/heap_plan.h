// SPDX-License-Identifier: Apache-2.0
// Where the memory of a heap is to be: the policy of the public API with its tiers looked up. Plain
// values.
#pragma once

#include <vector>

#include "runtime/base/result.h"
#include "runtime/space/placement.h"

namespace tidepool {

/// One tier's part of an interleaved heap.
struct TierShare {
  Placement placement;
  uint32_t weight = 1;
};

/// The granules of a heap go to these placements in turn, round and round.
class HeapPlan {
 public:
  /// Hot pages local, the rest wherever the policy puts it.
  static HeapPlan tiered() { return HeapPlan({Placement()}); }
  static HeapPlan pinned(Placement placement) { return HeapPlan({placement}); }
  /// Each tier as often as its weight says, spread as evenly as that allows. Errors:
  /// kInvalidArgument for no share at all, a weight of 0, or a sum above kMostWeight.
  static Result<HeapPlan> interleaved(const std::vector<TierShare>& shares);

  static constexpr uint32_t kMostWeight = 1024;

  const std::vector<Placement>& turns() const { return turns_; }
  /// All of it is ordinary local memory, outside managed space.
  bool isPlain() const { return turns_.size() == 1 && turns_[0].isLocal(); }

 private:
  explicit HeapPlan(std::vector<Placement> turns) : turns_(std::move(turns)) {}
  std::vector<Placement> turns_;
};

}  // namespace tidepool
