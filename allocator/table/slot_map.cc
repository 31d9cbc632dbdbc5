// SPDX-License-Identifier: Apache-2.0
// SlotMap: linear probing from bucket to bucket. A search ends at the first bucket that nobody
// passed; where erase() leaves room in a bucket, one of those that passed it comes back.
#include "allocator/table/slot_map.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "allocator/table/find_slots.h"
#include "runtime/base/check.h"
#include "runtime/base/debug_check.h"

namespace tidepool {
namespace {

// An entry costs 9.9 bytes. Of the rows of a map that is full one in sixty is not in its first
// bucket, and one in fifteen of the others' searches goes on to a second.
constexpr size_t kLoadNumerator = 13, kLoadDenominator = 20;
// Rows that are farther from home than this would make searches long: they are beyond.
constexpr uint64_t kMostReach = 64;
// An entry of a map on top of its nodes and table, about.
constexpr uint64_t kBeyondBytes = 64;

constexpr uint32_t kEmptyWord = ~uint32_t{0};
constexpr uint16_t kEmptyLow = 0xffff;

void removeEntry(SlotMap::Bucket& bucket, size_t way, size_t entries) {
  bucket.words[way] = bucket.words[entries - 1];
  bucket.lows[way] = bucket.lows[entries - 1];
  bucket.words[entries - 1] = kEmptyWord;
  bucket.lows[entries - 1] = kEmptyLow;
}

size_t entriesIn(const SlotMap::Bucket& bucket) {
  size_t ways = SlotMap::kWays;
  while (ways > 0 && bucket.words[ways - 1] == kEmptyWord && bucket.lows[ways - 1] == kEmptyLow) {
    --ways;
  }
  return ways;
}

}  // namespace

Result<SlotMap> SlotMap::create(const Limits& limits, size_t room) {
  TP_CHECK_OP(limits.rows, <=, kRowLimit);
  TP_CHECK_OP(limits.slots, <=, kNoSlot);
  SlotMap map;
  auto memory = HugeMemory::allocate(memoryFor(limits.most));
  if (!memory) return tl::unexpected(memory.error());
  map.memory_ = std::move(*memory);
  map.limits_ = limits;
  map.row_bits_ = std::max<unsigned>(std::bit_width(limits.rows), 1);
  // One value more than there are slots: that of empty entries.
  const unsigned slot_bits = std::bit_width(limits.slots);
  map.high_bits_ = std::max(slot_bits, kLowBits) - kLowBits;
  map.restart(room);
  return map;
}

uint64_t SlotMap::bucketsFor(size_t rows) {
  const size_t entries = std::max<size_t>(rows, 1) * kLoadDenominator / kLoadNumerator + kWays;
  return entries / kWays + 1;
}

void SlotMap::restart(size_t room) {
  TP_CHECK_OP(memoryFor(room).value(), <=, memory_.size().value());
  room_ = std::max<size_t>(room, 1);
  count_ = 0;
  beyond_ = Beyond();
  bucket_count_ = bucketsFor(room);
  // Of the mixed numbers whose homes are `reach_` buckets in a row no two have the same low bits.
  const uint64_t in_a_bucket = ((uint64_t{1} << row_bits_) - 1) / bucket_count_ + 1;
  const uint64_t told_apart = uint64_t{1} << (32 - high_bits_);
  reach_ = std::min({told_apart / in_a_bucket, kMostReach, bucket_count_});
  const Bytes size(bucket_count_ * sizeof(Bucket));
  memory_.use(size);
  memset(memory_.data(), 0xff, size.value());
  // Where no bucket can tell its rows apart, every search goes on, beyond.
  const uint32_t passed = reach_ == 0 ? 1 : 0;
  for (uint64_t bucket = 0; bucket < bucket_count_; ++bucket) buckets()[bucket].passed = passed;
}

Bytes SlotMap::memory() const {
  return Bytes(bucket_count_ * sizeof(Bucket) + beyond_.size() * kBeyondBytes);
}

uint64_t SlotMap::View::mixedAt(uint64_t bucket, uint32_t word) const {
  // The last number whose home is no later; and before it the last one with the word's bits.
  const uint64_t last = (((bucket + 1) << row_bits) - 1) / count;
  const uint64_t back = (last - (word >> high_bits)) & ((uint64_t{1} << (32 - high_bits)) - 1);
  return (last - back) & ((uint64_t{1} << row_bits) - 1);
}

Slot SlotMap::View::find(RowNumber row, uint64_t mixed) const {
  uint64_t bucket = home(mixed);
  for (uint64_t passed = 0; passed < reach; ++passed, bucket = next(bucket)) {
    const Bucket& here = buckets[bucket];
    for (size_t way = 0; way < kWays; ++way) {
      if (((here.words[way] ^ wanted(mixed)) & rowMask()) != 0) continue;
      const Slot slot = slotAt(here, way);
      if (slot != noSlot()) return slot;
      break;  // empty, and so are those behind it
    }
    if (here.passed == 0) return kNoSlot;
  }
  const auto found = beyond->find(row);
  return found == beyond->end() ? kNoSlot : found->second;
}

Slot SlotMap::find(RowNumber row) const {
  const View map = view();
  return map.find(row, map.mix(row));
}

void SlotMap::findMany(std::span<const RowNumber> rows, Slot* slots) const {
  findSlots()(view(), rows.data(), rows.size(), slots);
}

void SlotMap::insert(RowNumber row, Slot slot) {
  TP_CHECK_OP(count_, <, room_);
  TP_CHECK_OP(row, <, limits_.rows);
  TP_CHECK_OP(slot, <, limits_.slots);
  ++count_;
  const View map = view();
  const uint64_t mixed = map.mix(row);
  TP_DCHECK_OP(map.find(row, mixed), ==, kNoSlot);
  uint64_t bucket = map.home(mixed);
  for (uint64_t passed = 0; passed < reach_; ++passed, bucket = map.next(bucket)) {
    Bucket& here = buckets()[bucket];
    const size_t way = entriesIn(here);
    if (way < kWays) {
      here.words[way] = map.wanted(mixed) | static_cast<uint32_t>(slot >> kLowBits);
      here.lows[way] = static_cast<uint16_t>(slot);
      return;
    }
    ++here.passed;
  }
  beyond_.emplace(row, slot);
}

Slot SlotMap::findOrInsert(RowNumber row, Slot slot) {
  const Slot found = find(row);
  if (found != kNoSlot) return found;
  insert(row, slot);
  return slot;
}

/// The bucket has room: if rows passed it, one of them moves there, and so on where it was.
void SlotMap::takeBack(uint64_t bucket) {
  for (uint64_t distance = 1; buckets()[bucket].passed > 0 && distance < reach_; ++distance) {
    const uint64_t from = (bucket + distance) % bucket_count_;
    if (!takeBackFrom(from, distance, bucket)) continue;
    bucket = from;
    distance = 0;
  }
}

/// Moves a row over that is `distance` buckets behind this one, and passed it; false if none did.
bool SlotMap::takeBackFrom(uint64_t from, uint64_t distance, uint64_t bucket) {
  const View map = view();
  Bucket& there = buckets()[from];
  Bucket& here = buckets()[bucket];
  const size_t entries = entriesIn(there);
  for (size_t way = 0; way < entries; ++way) {
    const uint64_t home = map.home(map.mixedAt(from, there.words[way]));
    if ((from + bucket_count_ - home) % bucket_count_ < distance) continue;
    const size_t to = entriesIn(here);
    TP_CHECK_OP(to, <, kWays);
    here.words[to] = there.words[way];
    here.lows[to] = there.lows[way];
    removeEntry(there, way, entries);
    for (uint64_t at = bucket; at != from; at = map.next(at)) --buckets()[at].passed;
    return true;
  }
  return false;
}

void SlotMap::erase(RowNumber row) {
  const View map = view();
  const uint64_t mixed = map.mix(row);
  const uint32_t wanted = map.wanted(mixed);
  uint64_t bucket = map.home(mixed);
  TP_CHECK_OP(count_, >, 0u);
  --count_;
  for (uint64_t passed = 0; passed < reach_; ++passed, bucket = map.next(bucket)) {
    Bucket& here = buckets()[bucket];
    const size_t entries = entriesIn(here);
    for (size_t way = 0; way < entries; ++way) {
      if (((here.words[way] ^ wanted) & map.rowMask()) != 0) continue;
      removeEntry(here, way, entries);
      takeBack(bucket);
      return;
    }
    TP_CHECK_OP(here.passed, >, 0u);
    --here.passed;
  }
  TP_CHECK_OP(beyond_.erase(row), ==, 1u);
}

}  // namespace tidepool
