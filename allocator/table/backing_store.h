// SPDX-License-Identifier: Apache-2.0
// The backing store of all rows of one table: local DRAM, a direct tier (both are read in place)
// or a fetch tier. Owns the memory, which is given back with it. Rows lie one after the other, a
// stride each. Thread-safe but for link().
#pragma once

#include <cstddef>
#include <memory>

#include "allocator/fabric/fabric_rows.h"
#include "allocator/rows/row_format.h"
#include "allocator/rows/row_numbers.h"
#include "allocator/table/huge_memory.h"
#include "allocator/table/row_link.h"
#include "allocator/table/unwritten_rows.h"
#include "runtime/base/result.h"
#include "runtime/tier/row_channel.h"
#include "runtime/tier/tier.h"

namespace tidepool {

class BackingStore {
 public:
  /// All in local DRAM. Errors: kNoMemory.
  static Result<std::unique_ptr<BackingStore>> inLocalMemory(const RowFormat& format,
                                                             RowNumber rows);
  /// In a far tier, which must outlive it. Errors: kNoSpace, also when there is enough, but not in
  /// one piece; of a fetch tier, what opening a connection can end in.
  static Result<std::unique_ptr<BackingStore>> inStore(RowStore& store, const RowFormat& format,
                                                       RowNumber rows);
  /// In memory of the fabric, whose pool outlives it. Errors: what opening a connection can end in.
  static Result<std::unique_ptr<BackingStore>> inFabric(std::unique_ptr<FabricRows> rows);
  ~BackingStore();
  BackingStore(const BackingStore&) = delete;
  BackingStore& operator=(const BackingStore&) = delete;

  TierKind kind() const { return kind_; }
  /// The first row, for those that can be read in place; null in a fetch tier.
  std::byte* memory() const { return memory_; }
  /// Of those that cannot; null otherwise.
  RowLink* link() const { return link_.get(); }
  /// From now on rows that were never written are made of these values, which outlive it, and
  /// not asked for. None of its `rows` was written yet. Of those that cannot be read in place.
  /// Errors: kNoMemory.
  Status beginWith(const FirstValues& values, RowNumber rows);
  /// Another link to the same rows, for somebody who reads beside the calls; there is no order
  /// between the two. Only of those that cannot be read in place. Thread-safe. Errors: what opening
  /// a connection can end in.
  Result<std::unique_ptr<RowLink>> openLink() const;
  /// Pieces of it that makeHuge() is to be asked for before rows are written there.
  /// Thread-safe for different pieces.
  uint64_t hugePieces() const {
    return fabric_ ? fabric_->granules() : frames_.count.value() / kPagesPerGranule;
  }
  void makeHuge(uint64_t piece);
  /// Errors: kLost when the memory was taken away: no row is to be used any more.
  Status verdict() const { return fabric_ ? fabric_->verdict() : Status(); }
  /// Who sees to it that nobody is at the rows while they are moved; null: they stay from now on.
  void setKeeper(RowsKeeper* keeper) {
    if (fabric_) fabric_->setKeeper(keeper);
  }
  /// Bytes of all rows together.
  Bytes size() const { return size_; }

 private:
  BackingStore(TierKind kind, Bytes size) : kind_(kind), size_(size) {}

  const TierKind kind_;
  const Bytes size_;
  HugeMemory local_;
  RowStore* store_ = nullptr;  // whose frames these are
  FrameRun frames_{};
  RowArea area_;                        // in a fetch tier
  std::unique_ptr<FabricRows> fabric_;  // or they are there
  std::byte* memory_ = nullptr;
  std::unique_ptr<UnwrittenRows> unwritten_;  // null: all were written
  std::unique_ptr<RowLink> link_;
};

}  // namespace tidepool
