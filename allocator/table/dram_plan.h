// SPDX-License-Identifier: Apache-2.0
// What a table costs in local memory, and how a budget is divided: buffers of the link take an
// eighth, up to what does any good, and what is fixed; slots have the rest. Pure; under the table's
// lock.
#pragma once

#include <optional>
#include <utility>

#include "allocator/table/table_options.h"
#include "runtime/base/result.h"
#include "runtime/tier/tier.h"

namespace tidepool {

class DramPlan {
 public:
  /// Of a table that is not local. `options` outlive it; `curve` is what is kept of a table that
  /// shares a budget.
  DramPlan(const TableOptions& options, TierKind tier, Bytes curve)
      : options_(options), tier_(tier), curve_(curve) {}

  /// Local memory that a table in a tier of this kind needs to have `slots` rows in slots, and the
  /// least that any table can do with, a checkpoint of it counted in. Rows of local tables are not
  /// counted.
  static Bytes forSlots(const TableOptions& options, TierKind tier, uint64_t slots);
  static Bytes least(const TableOptions& options, TierKind tier);
  /// Slots that a table may have.
  static uint64_t mostSlots(const TableOptions& options);
  /// What is kept of ids and rows, wherever the rows are.
  static Bytes ofRows(const TableOptions& options, TierKind tier);

  /// What this table needs for that many slots, and at the least, as it is.
  Bytes forSlots(uint64_t slots) const;
  Bytes least() const;
  /// What is neither slots nor link.
  Bytes fixed() const;
  /// With which so many rows have room to wait, about, also when the table has been saved: some of
  /// what requests hold is for others.
  Bytes forAhead(uint64_t rows) const;

  /// Memory of the link's buffers, and for what is known of rows that wait for their batch; how
  /// many may; and how many slots there are.
  struct Division {
    Bytes link;
    Bytes prefetched;
    size_t prefetched_rows = 0;
    Slot slots = 0;
  };
  /// `held`: what link and waiting rows have to keep, while some wait. Errors: kInvalidArgument for
  /// less than least().
  Result<Division> divide(Bytes dram, const std::optional<Division>& held) const;

  /// Whether batches are announced: rows that wait for theirs have a share.
  void setAnnounces(bool announces) { announces_ = announces; }
  bool announces() const { return announces_; }
  /// From now on what tells a checkpoint which rows have changed has its memory. True: it had none.
  bool reserveChanges() { return !std::exchange(reserves_changes_, true); }

 private:
  bool fetches() const { return tier_ == TierKind::kFetch; }
  Division divideLink(Bytes share) const;

  const TableOptions& options_;
  const TierKind tier_;
  const Bytes curve_;
  bool announces_ = false;
  bool reserves_changes_ = false;
};

}  // namespace tidepool
