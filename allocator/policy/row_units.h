// SPDX-License-Identifier: Apache-2.0
// Quantities of the embedding tables' policy: rows, DRAM slots and steps of the known future. Plain
// values.
#pragma once

#include "runtime/base/units.h"

namespace tidepool {

/// Row of one table, counted from 0.
using RowIndex = Ordinal<struct RowIndexTag>;
/// Place for one row in DRAM, counted from the table's first.
using SlotIndex = Ordinal<struct SlotIndexTag>;
using SlotCount = Quantity<struct SlotCountTag>;
/// A batch of lookups, counted from the table's first; or, where the lookups of a batch are carried
/// out in order, an equal part of one: the finer the steps, the better the choice.
using Step = Ordinal<struct StepTag>;

/// The step that uses a row next, as far as it is known, in one byte.
class NextUse {
 public:
  /// No step further ahead than this can be told from the past.
  static constexpr uint64_t kMostAhead = 120;
  static constexpr uint32_t kUnknown = kMostAhead + 1;

  constexpr NextUse() = default;
  constexpr explicit NextUse(Step step) : code_(static_cast<uint8_t>(1 + step.value() % kCodes)) {}
  constexpr explicit NextUse(uint8_t code) : code_(code) {}
  constexpr uint8_t code() const { return code_; }
  constexpr bool known() const { return code_ != 0; }
  /// Steps from `now`, the first step that is not finished, to the use; kUnknown if it is not known
  /// or lies in the past.
  constexpr uint32_t ahead(Step now) const {
    if (code_ == 0) return kUnknown;
    const auto at = static_cast<uint32_t>(now.value() % kCodes);
    const uint32_t distance = code_ - 1u - at + (code_ - 1u < at ? kCodes : 0);
    return distance <= kMostAhead ? distance : kUnknown;
  }
  bool operator==(const NextUse&) const = default;

 private:
  static constexpr uint32_t kCodes = 255;
  uint8_t code_ = 0;
};

}  // namespace tidepool
