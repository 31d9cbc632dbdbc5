// SPDX-License-Identifier: Apache-2.0
// An embedding table's core as the row policy sees it: which row is in which slot, and nothing
// else. Used by the simulator and by the policy's tests. Header-only, single-thread.
#pragma once

#include <cstdint>
#include <vector>

#include "allocator/policy/row_policy.h"

namespace tidepool::bench {

enum class FarTier : uint8_t { kDirect, kFetch };

class RowEngine {
 public:
  RowEngine(uint32_t rows, const RowPolicyConfig& config, FarTier tier)
      : tier_(tier),
        slot_of_(rows, kOut),
        row_of_(config.most.value(), kOut),
        memory_(RowPolicy::memoryFor(config.most).value()),
        policy_(config, memory_) {
    for (uint64_t slot = config.capacity.value(); slot-- > 0;) free_.push_back(slot);
  }

  bool resident(uint32_t row) const { return slot_of_[row] != kOut; }
  SlotIndex slotOf(uint32_t row) const { return SlotIndex(slot_of_[row]); }
  uint32_t rowOf(SlotIndex slot) const { return row_of_[slot.value()]; }
  RowPolicy& policy() { return policy_; }

  /// One lookup; returns whether it was a hit.
  bool access(uint32_t row, NextUse next = NextUse()) {
    if (resident(row)) {
      policy_.onHit(slotOf(row), next);
      return true;
    }
    const Admission admission = policy_.onMiss(RowIndex(row), next);
    if (admission == Admission::kRefuse && tier_ == FarTier::kDirect) return false;
    if (free_.empty() && !evictOne()) return false;
    const uint64_t slot = free_.back();
    free_.pop_back();
    slot_of_[row] = static_cast<uint32_t>(slot);
    row_of_[slot] = row;
    policy_.onInsert(SlotIndex(slot), RowIndex(row), admission, next);
    return false;
  }

  bool evictOne() {
    const std::optional<SlotIndex> slot = policy_.nextVictim();
    if (!slot) return false;
    uint32_t& row = row_of_[slot->value()];
    policy_.onRemove(*slot, RowIndex(row));
    slot_of_[row] = kOut;
    row = kOut;
    free_.push_back(slot->value());
    return true;
  }

 private:
  static constexpr uint32_t kOut = UINT32_MAX;
  FarTier tier_;
  std::vector<uint32_t> slot_of_, row_of_;
  std::vector<uint64_t> free_;
  std::vector<std::byte> memory_;
  RowPolicy policy_;
};

}  // namespace tidepool::bench
