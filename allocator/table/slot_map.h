// SPDX-License-Identifier: Apache-2.0
// Which slot a row has, if any: a hash map whose buckets are cache lines of eight words, so that a
// look-up reads one line, hit or miss, in nearly every case. Full associativity: any set of rows
// fits. Look-ups may run in several threads at once; whoever changes the map must be alone.
#pragma once

#include <cstddef>
#include <span>

#include "allocator/rows/row_numbers.h"
#include "allocator/table/huge_memory.h"
#include "runtime/base/result.h"

namespace tidepool {

class SlotMap {
 public:
  SlotMap() = default;
  /// A map with room for `rows` rows, and address space for `most`. Errors: kNoMemory.
  static Result<SlotMap> create(size_t most, size_t rows);
  static Result<SlotMap> create(size_t rows) { return create(rows, rows); }
  /// Empties it, and gives it room for so many rows, at most those it was made for.
  void restart(size_t rows);
  /// What a map for so many rows costs.
  static Bytes memoryFor(size_t rows) { return Bytes(bucketsFor(rows) * sizeof(Bucket)); }

  /// kNoSlot if the row has none.
  Slot find(RowNumber row) const;
  /// The slots of many rows, looked up side by side. `slots` is as long as `rows`.
  void findMany(std::span<const RowNumber> rows, Slot* slots) const;
  /// The row must not be in the map, which must hold fewer rows than it has room for.
  void insert(RowNumber row, Slot slot);
  /// The slot of the row, which it now has if it had none; else as insert().
  Slot findOrInsert(RowNumber row, Slot slot);
  /// The row must be in the map.
  void erase(RowNumber row);

  /// insert() or erase() is going to be asked about this row.
  void prefetch(RowNumber row) const {
    __builtin_prefetch(buckets() + home(row, bucket_count_), 1);
  }
  /// erase() is going to be asked about this row: it looks at the bucket behind the row's own, too.
  void prefetchNext(RowNumber row) const {
    __builtin_prefetch(buckets() + next(home(row, bucket_count_)), 1);
  }

  size_t count() const { return count_; }
  size_t room() const { return room_; }
  Bytes memory() const { return Bytes(bucket_count_ * sizeof(Bucket)); }

  static constexpr size_t kWays = 8;
  static constexpr uint64_t kEmpty = ~uint64_t{0};
  struct alignas(64) Bucket {
    uint64_t words[kWays];  // row << kSlotBits | slot, or kEmpty
  };
  struct View {
    const Bucket* buckets;
    uint64_t count;
  };
  /// For the loops that are compiled for each kind of processor.
  View view() const { return {buckets(), bucket_count_}; }
  static uint64_t home(RowNumber row, uint64_t bucket_count) {
    // Fibonacci hashing (Knuth, The Art of Computer Programming 3, 6.4), then a multiplication in
    // place of a division (Lemire 2019).
    const uint64_t mixed = row * 0x9E3779B97F4A7C15ull;
    return ((mixed >> 32) * bucket_count) >> 32;
  }

 private:
  static uint64_t bucketsFor(size_t rows);
  Bucket* buckets() const { return reinterpret_cast<Bucket*>(memory_.data()); }
  uint64_t next(uint64_t bucket) const { return bucket + 1 == bucket_count_ ? 0 : bucket + 1; }
  bool refill(uint64_t from, uint64_t hole, uint64_t& moved_from, size_t& moved_way);

  HugeMemory memory_;
  uint64_t bucket_count_ = 0;
  size_t room_ = 0;
  size_t count_ = 0;
};

}  // namespace tidepool
