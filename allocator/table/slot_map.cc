// SPDX-License-Identifier: Apache-2.0
// SlotMap: linear probing from bucket to bucket; a search ends at the first bucket with an empty
// word, and erase() moves words back so that this stays true.
#include "allocator/table/slot_map.h"

#include <algorithm>
#include <cstring>

#include "allocator/table/find_slots.h"
#include "runtime/base/check.h"

namespace tidepool {
namespace {

// An entry costs 9.8 bytes. Fuller, searches that go on to a second bucket soon cost more than the
// memory is worth.
constexpr size_t kLoadNumerator = 13, kLoadDenominator = 16;

uint64_t rowOf(uint64_t word) { return word >> kSlotBits; }

}  // namespace

Result<SlotMap> SlotMap::create(size_t most, size_t rows) {
  SlotMap map;
  auto memory = HugeMemory::allocate(memoryFor(most));
  if (!memory) return tl::unexpected(memory.error());
  map.memory_ = std::move(*memory);
  map.restart(rows);
  return map;
}

uint64_t SlotMap::bucketsFor(size_t rows) {
  const size_t words = std::max<size_t>(rows, 1) * kLoadDenominator / kLoadNumerator + kWays;
  return (words + kWays - 1) / kWays + 1;
}

void SlotMap::restart(size_t rows) {
  TP_CHECK_OP(memoryFor(rows).value(), <=, memory_.size().value());
  room_ = std::max<size_t>(rows, 1);
  count_ = 0;
  bucket_count_ = bucketsFor(rows);
  memory_.use(memory());
  memset(memory_.data(), 0xff, memory().value());
}

Slot SlotMap::find(RowNumber row) const {
  for (uint64_t bucket = home(row, bucket_count_);; bucket = next(bucket)) {
    for (const uint64_t word : buckets()[bucket].words) {
      if (rowOf(word) == row && word != kEmpty) return word & kNoSlot;
      if (word == kEmpty) return kNoSlot;
    }
  }
}

void SlotMap::findMany(std::span<const RowNumber> rows, Slot* slots) const {
  findSlots()(view(), rows.data(), rows.size(), slots);
}

void SlotMap::insert(RowNumber row, Slot slot) {
  TP_CHECK_OP(count_, <, room_);
  TP_CHECK_OP(row, <, kRowLimit);
  TP_CHECK_OP(slot, <, kNoSlot);
  for (uint64_t bucket = home(row, bucket_count_);; bucket = next(bucket)) {
    for (uint64_t& word : buckets()[bucket].words) {
      if (word != kEmpty) continue;
      word = row << kSlotBits | slot;
      ++count_;
      return;
    }
  }
}

Slot SlotMap::findOrInsert(RowNumber row, Slot slot) {
  TP_CHECK_OP(row, <, kRowLimit);
  TP_CHECK_OP(slot, <, kNoSlot);
  for (uint64_t bucket = home(row, bucket_count_);; bucket = next(bucket)) {
    for (uint64_t& word : buckets()[bucket].words) {
      if (rowOf(word) == row && word != kEmpty) return word & kNoSlot;
      if (word != kEmpty) continue;
      TP_CHECK_OP(count_, <, room_);
      word = row << kSlotBits | slot;
      ++count_;
      return slot;
    }
  }
}

/// Fills the last word of `hole`, a bucket that was full, with a word of bucket `from` whose search
/// begins at or before the hole; false if there is none.
bool SlotMap::refill(uint64_t from, uint64_t hole, uint64_t& moved_from, size_t& moved_way) {
  const uint64_t reach = (from + bucket_count_ - hole) % bucket_count_;
  for (size_t way = kWays; way-- > 0;) {
    const uint64_t word = buckets()[from].words[way];
    if (word == kEmpty) continue;
    const uint64_t start = home(rowOf(word), bucket_count_);
    if ((from + bucket_count_ - start) % bucket_count_ < reach) continue;
    buckets()[hole].words[kWays - 1] = word;
    moved_from = from;
    moved_way = way;
    return true;
  }
  return false;
}

void SlotMap::erase(RowNumber row) {
  uint64_t bucket = home(row, bucket_count_);
  size_t way = 0;
  for (;; bucket = next(bucket)) {
    uint64_t* const words = buckets()[bucket].words;
    for (way = 0; way < kWays && (words[way] == kEmpty || rowOf(words[way]) != row); ++way) {
      TP_CHECK_OP(words[way], !=, kEmpty);
    }
    if (way < kWays) break;
  }
  --count_;
  for (;;) {
    // The empty words of a bucket are its last ones: the last word takes the place of the erased.
    uint64_t* const words = buckets()[bucket].words;
    const bool was_full = words[kWays - 1] != kEmpty;
    size_t last = kWays - 1;
    while (words[last] == kEmpty) --last;
    words[way] = words[last];
    words[last] = kEmpty;
    if (!was_full) return;
    uint64_t from = next(bucket);
    while (!refill(from, bucket, from, way)) {
      if (buckets()[from].words[kWays - 1] == kEmpty) return;
      from = next(from);
    }
    bucket = from;
  }
}

}  // namespace tidepool
