// SPDX-License-Identifier: Apache-2.0
// The rows of one table that are in DRAM although their homes are far: slots packed one after the
// other in huge pages, a map from row to slot, and the policy that says who stays. A row in a slot
// has its one authoritative copy there. How many slots there are may change while they are in use.
// Who only looks may do so in several threads at once; who places, evicts or resizes must be
// alone (the table's lock).
#pragma once

#include <algorithm>
#include <cstddef>
#include <memory>
#include <span>
#include <vector>

#include "allocator/policy/row_policy.h"
#include "allocator/rows/row_format.h"
#include "allocator/rows/row_numbers.h"
#include "allocator/table/backing_store.h"
#include "allocator/table/huge_memory.h"
#include "allocator/table/slot_map.h"
#include "runtime/base/debug_check.h"
#include "runtime/base/result.h"

namespace tidepool {

class RowCache {
 public:
  /// With room for `slots` rows of a table of `rows`, whose homes outlive the cache, and address
  /// space for `most`. Errors: kNoMemory.
  static Result<std::unique_ptr<RowCache>> create(const RowFormat& format, BackingStore& backing,
                                                  RowNumber rows, Slot slots, Slot most);
  /// What so many slots cost, rows and metadata; and how many a budget holds, at most `most`.
  static Bytes memoryFor(const RowFormat& format, uint64_t slots);
  static uint64_t slotsIn(const RowFormat& format, Bytes budget, uint64_t most);

  std::byte* row(Slot slot) const { return slots_ + size_t{slot} * stride_; }
  const SlotMap& map() const { return map_; }
  Slot capacity() const { return capacity_; }
  Slot most() const { return most_; }
  size_t count() const { return map_.count(); }
  bool full() const { return map_.count() >= capacity_; }
  /// miss() and place() are going to be asked about this row.
  void prefetch(RowNumber row) const {
    map_.prefetch(row);
    policy_->prefetch(RowIndex(row));
  }

  /// Has so many slots from now on, at most `most`. When they become fewer, rows leave, changed
  /// ones for their homes, the others move together, and memory goes back to the system. Rows that
  /// are needed stay: capacity() then says how many slots there are. Errors: those of writing to
  /// the homes.
  Status setCapacity(Slot slots);

  /// hit() is going to be told of this slot.
  void prefetchHit(Slot slot) const { policy_->prefetchHit(SlotIndex(slot)); }
  /// A look-up found the row in this slot. Thread-safe.
  void hit(Slot slot) {
    TP_DCHECK((states_[slot] & kOccupied) != 0);
    policy_->onHit(SlotIndex(slot));
  }
  /// The row in this slot differs from its home from now on. Thread-safe for different slots.
  void markDirty(Slot slot) {
    TP_DCHECK(slot < capacity_ && (states_[slot] & kOccupied) != 0);
    states_[slot] |= kDirty;
  }

  /// A look-up found the row in no slot: whether it deserves one, be it another's.
  Admission miss(RowNumber row) { return policy_->onMiss(RowIndex(row)); }
  /// A slot for a row that has none, with undefined contents: the caller fills it before anybody
  /// looks. kNoSlot if no row may leave. A row that leaves is written to its home first. One that
  /// was refused is the first to leave again.
  Result<Slot> place(RowNumber row, Admission admission);
  /// The row in this slot is of no id any more, and is written nowhere. Whatever needs it.
  void drop(Slot slot);
  /// The row stays until the batch is finished.
  void needUntil(Slot slot, uint64_t batch) { policy_->needUntil(SlotIndex(slot), Step(batch)); }
  /// The same of many, kNoSlot passed over, where no later batch needs any, or that need be known
  /// no more.
  void needUntilNewest(std::span<const Slot> slots, uint64_t batch) {
    policy_->needUntilNewest(slots, kNoSlot, Step(batch));
  }
  void finished(uint64_t batch) { policy_->finished(Step(batch)); }
  /// The policy is to be told of one in so many look-ups, of hits and misses alike, so that both
  /// count the same: of all while there is room, and of few while the hot rows stay the same.
  size_t sampleStep() const { return !full() ? 1 : policy_->calm() ? 16 : 4; }
  /// A row that has no slot is written to its home: copied now, sent with what leaves slots.
  Status writeOut(RowNumber row, const std::byte* bytes);
  /// What evictions have yet to write goes on its way. Reads that are started after it see it.
  Status sendWriteBack();
  /// Writes every changed row to its home; they stay. Returns once the homes have them.
  Status writeBackAll();
  /// Takes out all rows without writing them anywhere.
  void forgetAll();

  /// Index, policy and slot words; the rows themselves are not counted.
  Bytes metadata() const;
  uint64_t evictions() const { return evictions_; }
  uint64_t writtenBack() const { return written_back_; }
  /// Calls act(row, slot) for every row that has a slot.
  template <typename Act>
  void forEach(Act act) const {
    for (Slot slot = 0; slot < used_; ++slot) {
      if ((states_[slot] & kOccupied) != 0) act(rowOf(slot), slot);
    }
  }

 private:
  // A slot's row and state take five bytes: the row's low half; its high bits and these. States are
  // bytes of their own, so that threads can mark different slots at once.
  static constexpr uint8_t kOccupied = 1, kDirty = 2;
  static constexpr unsigned kHighShift = 4;
  static constexpr uint64_t kWordBytes = sizeof(uint32_t) + sizeof(uint8_t);

  RowCache(const RowFormat& format, BackingStore& backing, Slot slots, Slot most);
  RowNumber rowOf(Slot slot) const {
    return RowNumber{states_[slot]} >> kHighShift << 32 | low_rows_[slot];
  }
  void occupy(Slot slot, RowNumber row, uint8_t flags) {
    TP_DCHECK_OP(states_[slot], ==, 0);
    low_rows_[slot] = static_cast<uint32_t>(row);
    states_[slot] = static_cast<uint8_t>(row >> 32 << kHighShift | flags);
  }
  void prefetchRow(const std::byte* row) const {
    // The hardware sees the rest of a long row coming.
    for (uint32_t at = 0; at < std::min<uint32_t>(stride_, 512); at += 64) {
      __builtin_prefetch(row + at, 1);
    }
  }
  void prefetchVictims() const;
  Result<Slot> evictOne();
  Status empty(Slot slot);
  void moveBelow(Slot end);
  void fitMemory();

  const uint32_t stride_, row_bytes_;
  BackingStore& backing_;
  const Slot most_;
  Slot capacity_;
  HugeMemory memory_, low_row_memory_, state_memory_, policy_memory_;
  std::byte* slots_ = nullptr;
  uint32_t* low_rows_ = nullptr;
  uint8_t* states_ = nullptr;
  SlotMap map_;
  std::unique_ptr<RowPolicy> policy_;
  Slot used_ = 0;           // slots that were ever given out
  std::vector<Slot> free_;  // of those, the ones that are empty
  RowChunk* writing_ = nullptr;
  uint64_t evictions_ = 0, written_back_ = 0;
};

}  // namespace tidepool
