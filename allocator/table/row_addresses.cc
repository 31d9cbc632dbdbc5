// SPDX-License-Identifier: Apache-2.0
// addressRows: whether a row has a slot is as good as random, so that no branch depends on it.
#include "allocator/table/row_addresses.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace tidepool {

size_t addressRowsScalar(const RowPlaces& places, const RowNumber* rows, const Slot* slots,
                         size_t count, std::byte** addresses) {
  size_t at_home = 0;
  for (size_t i = 0; i < count; ++i) {
    // A conditional expression becomes a branch.
    const uintptr_t mask = -uintptr_t{slots[i] == kNoSlot};
    const auto slot = reinterpret_cast<uintptr_t>(places.slots + size_t{slots[i]} * places.stride);
    const auto home = reinterpret_cast<uintptr_t>(places.homes + rows[i] * places.stride);
    addresses[i] = reinterpret_cast<std::byte*>(slot ^ ((slot ^ home) & mask));
    at_home += mask & 1;
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
  __m256i here = _mm256_setzero_si256();
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
      here = _mm256_sub_epi64(here, at_home);
    }
  }
  uint64_t lanes[kLanes];
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(lanes), here);
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
