// SPDX-License-Identifier: Apache-2.0
// When each row of a table was used last, and how often, for tables that give up rows by that. A
// row is used when it changes: by a step of the optimizer, once however often it occurs in the
// batch, and each time that it is written. Under the table's lock; used() may run in several
// workers at once, for different rows.
#pragma once

#include <algorithm>
#include <cstdint>

#include "allocator/rows/row_numbers.h"
#include "runtime/base/mapping.h"
#include "runtime/base/result.h"

namespace tidepool {

/// What is kept a row: four bytes for the step of its last use, two for the number of its uses.
enum class Tracked : uint8_t { kNothing = 0, kLastUse = 1, kUses = 2, kBoth = 3 };
inline bool tracks(Tracked what, Tracked one) {
  return (static_cast<unsigned>(what) & static_cast<unsigned>(one)) != 0;
}

struct RowUse {
  uint32_t last = 0;  // step
  uint16_t uses = 0;
  uint64_t packed() const { return uint64_t{uses} << 32 | last; }
  static RowUse unpacked(uint64_t word) {
    return {static_cast<uint32_t>(word), static_cast<uint16_t>(word >> 32)};
  }
};

class RowUses {
 public:
  /// Uses beyond are not counted. Nor are steps told apart, which takes years.
  static constexpr uint64_t kMostUses = UINT16_MAX, kMostSteps = UINT32_MAX;

  RowUses() = default;
  /// Memory is taken as it is touched. Errors: kNoMemory.
  static Result<RowUses> create(Tracked what, RowNumber rows);
  static Bytes memoryFor(Tracked what, RowNumber rows);

  Tracked tracked() const { return tracked_; }
  /// An id got this row.
  void born(RowNumber row, uint64_t step) { set(row, {stepOf(step), 0}); }
  void used(RowNumber row, uint64_t step) {
    if (last_ != nullptr) last_[row] = stepOf(step);
    if (uses_ != nullptr && uses_[row] < kMostUses) ++uses_[row];
  }
  /// 0 for what is not kept.
  RowUse get(RowNumber row) const {
    return {last_ == nullptr ? 0 : last_[row], uses_ == nullptr ? uint16_t{0} : uses_[row]};
  }
  void set(RowNumber row, RowUse use) {
    if (last_ != nullptr) last_[row] = use.last;
    if (uses_ != nullptr) uses_[row] = use.uses;
  }

 private:
  static uint32_t stepOf(uint64_t step) {
    return static_cast<uint32_t>(std::min(step, kMostSteps));
  }

  Tracked tracked_ = Tracked::kNothing;
  Mapping last_memory_, uses_memory_;
  uint32_t* last_ = nullptr;  // null: not kept
  uint16_t* uses_ = nullptr;
};

/// Which rows are to go: both must hold where both are asked for. 0: not asked for.
struct Expiry {
  uint64_t unused_for = 0;       // no use in so many steps, the newest one included
  uint64_t used_fewer_than = 0;  // times, since it got its id
  bool takes(RowUse use, uint64_t step) const {
    return (unused_for == 0 || step - std::min<uint64_t>(use.last, step) >= unused_for) &&
           (used_fewer_than == 0 || use.uses < used_fewer_than);
  }
};

}  // namespace tidepool
