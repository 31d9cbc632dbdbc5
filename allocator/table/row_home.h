// SPDX-License-Identifier: Apache-2.0
// Where all rows of one table have their homes: local DRAM, a direct tier (both are read in place)
// or a fetch tier. Owns the memory, which is given back with it. Rows lie one after the other, a
// stride each. Thread-safe but for link().
#pragma once

#include <cstddef>
#include <memory>

#include "allocator/rows/row_format.h"
#include "allocator/rows/row_numbers.h"
#include "allocator/table/huge_memory.h"
#include "allocator/table/row_link.h"
#include "runtime/base/result.h"
#include "runtime/tier/tier.h"

namespace tidepool {

class RemoteTier;

class RowHome {
 public:
  /// All in local DRAM. Errors: kNoMemory.
  static Result<std::unique_ptr<RowHome>> inLocalMemory(const RowFormat& format, RowNumber rows);
  /// In granules of a direct tier, which must outlive it. Errors: kNoSpace, also when there is
  /// enough, but not in one piece.
  static Result<std::unique_ptr<RowHome>> inDirectTier(DirectTier& tier, const RowFormat& format,
                                                       RowNumber rows);
  /// In frames of a memory server's tier, which must outlive it. Errors: kNoSpace, and what
  /// opening a connection can end in.
  static Result<std::unique_ptr<RowHome>> inRemoteTier(RemoteTier& tier, const RowFormat& format,
                                                       RowNumber rows);
  ~RowHome();
  RowHome(const RowHome&) = delete;
  RowHome& operator=(const RowHome&) = delete;

  TierKind kind() const { return kind_; }
  /// The first row, for those that can be read in place; null in a fetch tier.
  std::byte* memory() const { return memory_; }
  /// Of those that cannot; null otherwise.
  RowLink* link() const { return link_.get(); }
  /// Bytes of all rows together.
  Bytes size() const { return size_; }

 private:
  RowHome(TierKind kind, Bytes size) : kind_(kind), size_(size) {}

  const TierKind kind_;
  const Bytes size_;
  HugeMemory local_;
  Tier* tier_ = nullptr;  // whose frames these are
  FrameRun frames_{};
  std::byte* memory_ = nullptr;
  std::unique_ptr<RowLink> link_;
};

}  // namespace tidepool
