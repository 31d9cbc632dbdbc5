// SPDX-License-Identifier: Apache-2.0
// findSlots: eight words of a bucket are compared at once where the processor can. Buckets are
// asked for some rows ahead, so that their cache lines are on the way before they are needed.
#include "allocator/table/find_slots.h"

#include <algorithm>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace tidepool {
namespace {

// Look-ups whose cache lines are on their way at the same time. Measured: 64 take a third less time
// than 16 do, with maps that are larger than the caches.
constexpr size_t kAhead = 64;

inline void prefetchBucket(const SlotMap::View& map, RowNumber row) {
  __builtin_prefetch(map.buckets + SlotMap::home(row, map.count));
}

inline uint64_t nextBucket(const SlotMap::View& map, uint64_t bucket) {
  return bucket + 1 == map.count ? 0 : bucket + 1;
}

}  // namespace

void findSlotsScalar(SlotMap::View map, const RowNumber* rows, size_t count, Slot* slots) {
  for (size_t i = 0; i < std::min(count, kAhead); ++i) prefetchBucket(map, rows[i]);
  for (size_t i = 0; i < count; ++i) {
    if (i + kAhead < count) prefetchBucket(map, rows[i + kAhead]);
    Slot found = kNoSlot;
    for (uint64_t bucket = SlotMap::home(rows[i], map.count);; bucket = nextBucket(map, bucket)) {
      const uint64_t* words = map.buckets[bucket].words;
      for (size_t way = 0; way < SlotMap::kWays; ++way) {
        if (words[way] >> kSlotBits == rows[i]) found = words[way] & kNoSlot;
      }
      if (found != kNoSlot || words[SlotMap::kWays - 1] == SlotMap::kEmpty) break;
    }
    slots[i] = found;
  }
}

#if defined(__x86_64__)
namespace {

// A row number has 36 bits and an empty word is all ones, which no row number equals (kRowLimit).
[[gnu::target("avx2")]] void avx2(SlotMap::View map, const RowNumber* rows, size_t count,
                                  Slot* slots) {
  for (size_t i = 0; i < std::min(count, kAhead); ++i) prefetchBucket(map, rows[i]);
  for (size_t i = 0; i < count; ++i) {
    if (i + kAhead < count) prefetchBucket(map, rows[i + kAhead]);
    const __m256i wanted = _mm256_set1_epi64x(static_cast<long long>(rows[i]));
    Slot found = kNoSlot;
    for (uint64_t bucket = SlotMap::home(rows[i], map.count);; bucket = nextBucket(map, bucket)) {
      const uint64_t* words = map.buckets[bucket].words;
      const auto* const halves = reinterpret_cast<const __m256i*>(words);
      const __m256i low = _mm256_srli_epi64(_mm256_load_si256(halves), kSlotBits);
      const __m256i high = _mm256_srli_epi64(_mm256_load_si256(halves + 1), kSlotBits);
      const unsigned mask =
          static_cast<unsigned>(
              _mm256_movemask_pd(_mm256_castsi256_pd(_mm256_cmpeq_epi64(low, wanted)))) |
          static_cast<unsigned>(
              _mm256_movemask_pd(_mm256_castsi256_pd(_mm256_cmpeq_epi64(high, wanted))))
              << 4;
      if (mask != 0) {
        found = words[__builtin_ctz(mask)] & kNoSlot;
        break;
      }
      if (words[SlotMap::kWays - 1] == SlotMap::kEmpty) break;
    }
    slots[i] = found;
  }
}

[[gnu::target("avx512f")]] void avx512(SlotMap::View map, const RowNumber* rows, size_t count,
                                       Slot* slots) {
  for (size_t i = 0; i < std::min(count, kAhead); ++i) prefetchBucket(map, rows[i]);
  for (size_t i = 0; i < count; ++i) {
    if (i + kAhead < count) prefetchBucket(map, rows[i + kAhead]);
    const __m512i wanted = _mm512_set1_epi64(static_cast<long long>(rows[i]));
    Slot found = kNoSlot;
    for (uint64_t bucket = SlotMap::home(rows[i], map.count);; bucket = nextBucket(map, bucket)) {
      const uint64_t* words = map.buckets[bucket].words;
      const __m512i shifted = _mm512_srli_epi64(_mm512_load_si512(words), kSlotBits);
      const unsigned mask = _mm512_cmpeq_epi64_mask(shifted, wanted);
      if (mask != 0) {
        found = words[__builtin_ctz(mask)] & kNoSlot;
        break;
      }
      if (words[SlotMap::kWays - 1] == SlotMap::kEmpty) break;
    }
    slots[i] = found;
  }
}

}  // namespace

FindSlots findSlotsAvx2() { return __builtin_cpu_supports("avx2") ? avx2 : nullptr; }
FindSlots findSlotsAvx512() { return __builtin_cpu_supports("avx512f") ? avx512 : nullptr; }
#else
FindSlots findSlotsAvx2() { return nullptr; }
FindSlots findSlotsAvx512() { return nullptr; }
#endif

FindSlots findSlots() {
  static const FindSlots best = findSlotsAvx512() != nullptr ? findSlotsAvx512()
                                : findSlotsAvx2() != nullptr ? findSlotsAvx2()
                                                             : findSlotsScalar;
  return best;
}

}  // namespace tidepool
