// SPDX-License-Identifier: Apache-2.0
// Which slot a row has, if any: a hash map whose buckets are cache lines of ten entries, so that a
// look-up reads one line, hit or miss, in nearly every case. An entry takes six bytes: the slot,
// and of the row no more than its bucket leaves open (quotienting: Cleary 1984). Rows whose
// bucket is full go to one of the next, and the buckets that they passed count them, so that a
// search for a row that has no slot knows where to end (F14: Bronson and Shi 2019). Full
// associativity: any set of rows fits. Look-ups may run in several threads at once; a change
// must be alone.
#pragma once

#include <cstddef>
#include <span>
#include <unordered_map>

#include "allocator/rows/row_numbers.h"
#include "allocator/table/huge_memory.h"
#include "runtime/base/result.h"

namespace tidepool {

class SlotMap {
 public:
  /// Row numbers are below `rows`, slots below `slots`, and there is never room for more than
  /// `most` rows.
  struct Limits {
    RowNumber rows = kRowLimit;
    Slot slots = kNoSlot;
    size_t most = 0;
  };
  SlotMap() = default;
  /// A map with room for `room` rows, and address space for the most. Errors: kNoMemory.
  static Result<SlotMap> create(const Limits& limits, size_t room);
  /// Empties it, and gives it room for so many rows, at most those it was made for.
  void restart(size_t room);
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
    const View map = view();
    __builtin_prefetch(map.buckets + map.home(map.mix(row)), 1);
  }

  size_t count() const { return count_; }
  size_t room() const { return room_; }
  RowNumber rows() const { return limits_.rows; }
  Bytes memory() const;

  static constexpr size_t kWays = 10;
  static constexpr unsigned kLowBits = 16;
  /// Entries are packed: empty ones, all ones, come last.
  struct alignas(64) Bucket {
    uint32_t words[kWays];  // what is left of the row, then the high bits of the slot
    uint16_t lows[kWays];   // the low bits of the slot
    uint32_t passed;        // rows that would be here, or came by, if there had been room
  };
  /// Rows that found all buckets full in which an entry could tell who it is: with row numbers as
  /// large as a table may have, and next to no slots.
  using Beyond = std::unordered_map<RowNumber, Slot>;
  /// For the loops that are compiled for each kind of processor.
  struct View {
    const Bucket* buckets;
    uint64_t count;
    uint64_t reach;      // buckets, from a row's home on, in which it may be
    unsigned row_bits;   // of a row number
    unsigned high_bits;  // of a slot, in a word
    const Beyond* beyond;

    static constexpr uint64_t kFirstFactor = 0x9E3779B97F4A7C15ull;
    static constexpr uint64_t kSecondFactor = 0xD6E8FEB86659FD93ull;
    /// Another number of as many bits for every row, in which each of them counts in all of the
    /// high ones: multiplications by odd numbers and a shift (Knuth, The Art of Computer
    /// Programming 3, 6.4), each of which can be undone.
    uint64_t mix(RowNumber row) const {
      const uint64_t mask = (uint64_t{1} << row_bits) - 1;
      uint64_t mixed = row * kFirstFactor & mask;
      mixed ^= mixed >> (row_bits + 1) / 2;
      return mixed * kSecondFactor & mask;
    }
    /// A multiplication in place of a division (Lemire 2019).
    uint64_t home(uint64_t mixed) const { return mixed * count >> row_bits; }
    uint64_t next(uint64_t bucket) const { return bucket + 1 == count ? 0 : bucket + 1; }
    /// Rows that can be in the same bucket differ in this.
    uint32_t wanted(uint64_t mixed) const { return static_cast<uint32_t>(mixed) << high_bits; }
    /// What of a word is not the slot's.
    uint32_t rowMask() const { return ~uint32_t{0} << high_bits; }
    /// The slot of an entry; noSlot(), all ones, if it is empty.
    Slot slotAt(const Bucket& bucket, size_t way) const {
      return (bucket.words[way] & ~rowMask()) << kLowBits | bucket.lows[way];
    }
    Slot noSlot() const { return (Slot{1} << (high_bits + kLowBits)) - 1; }
    /// Of a row that is in this bucket.
    uint64_t mixedAt(uint64_t bucket, uint32_t word) const;
    /// Bucket by bucket, from the row's home on.
    Slot find(RowNumber row, uint64_t mixed) const;
  };
  View view() const { return {buckets(), bucket_count_, reach_, row_bits_, high_bits_, &beyond_}; }

 private:
  static uint64_t bucketsFor(size_t rows);
  Bucket* buckets() const { return reinterpret_cast<Bucket*>(memory_.data()); }
  void takeBack(uint64_t bucket);
  bool takeBackFrom(uint64_t from, uint64_t distance, uint64_t bucket);

  HugeMemory memory_;
  Limits limits_;
  uint64_t bucket_count_ = 0, reach_ = 0;
  unsigned row_bits_ = 1, high_bits_ = 0;
  size_t room_ = 0;
  size_t count_ = 0;
  Beyond beyond_;
};

}  // namespace tidepool
