// SPDX-License-Identifier: Apache-2.0
// addressRows, row by row and four at a time: no branch depends on whether a row has a slot.
#include "allocator/table/row_addresses.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace tidepool {

size_t addressRowsScalar(const RowPlaces& places, const RowNumber* rows, const Slot* slots,
                         size_t count, std::byte** addresses) {
  size_t at_home = 0;
  for (size_t i = 0; i < count; ++i) {
    const bool here = slots[i] != kNoSlot;
    addresses[i] = hereOrThere(here, places.slots + size_t{slots[i]} * places.stride,
                               places.homes + rows[i] * places.stride);
    at_home += here ? 0 : 1;
  }
  return at_home;
}

#if defined(__x86_64__)
namespace {

constexpr size_t kLanes = 4;

[[gnu::target("avx2")]] size_t avx2(const RowPlaces& places, const RowNumber* rows,
                                    const Slot* slots, size_t count, std::byte** addresses) {
  const auto each = [&](uint64_t value) __attribute__((target("avx2"))) {
    return _mm256_set1_epi64x(static_cast<int64_t>(value));
  };
  // Lanes of 64 bits hold whole products of numbers of 32.
  size_t done = 0;
  __m256i homes = _mm256_setzero_si256();
  if (places.rows <= uint64_t{1} << 32) {
    const __m256i stride = each(places.stride), none = each(kNoSlot);
    const __m256i slot_base = each(reinterpret_cast<uintptr_t>(places.slots));
    const __m256i home_base = each(reinterpret_cast<uintptr_t>(places.homes));
    for (; done + kLanes <= count; done += kLanes) {
      const __m256i slot =
          _mm256_cvtepu32_epi64(_mm_loadu_si128(reinterpret_cast<const __m128i*>(slots + done)));
      const __m256i row = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(rows + done));
      const __m256i at_home = _mm256_cmpeq_epi64(slot, none);
      const __m256i base = _mm256_blendv_epi8(slot_base, home_base, at_home);
      const __m256i number = _mm256_blendv_epi8(slot, row, at_home);
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(addresses + done),
                          _mm256_add_epi64(base, _mm256_mul_epu32(number, stride)));
      homes = _mm256_sub_epi64(homes, at_home);
    }
  }
  uint64_t lanes[kLanes];
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(lanes), homes);
  return lanes[0] + lanes[1] + lanes[2] + lanes[3] +
         addressRowsScalar(places, rows + done, slots + done, count - done, addresses + done);
}

}  // namespace

AddressRows addressRowsAvx2() { return __builtin_cpu_supports("avx2") ? avx2 : nullptr; }
#else
AddressRows addressRowsAvx2() { return nullptr; }
#endif

AddressRows addressRows() {
  static const AddressRows best =
      addressRowsAvx2() != nullptr ? addressRowsAvx2() : addressRowsScalar;
  return best;
}

}  // namespace tidepool
