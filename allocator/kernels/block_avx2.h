// SPDX-License-Identifier: Apache-2.0
// A block's operations with AVX2, FMA and F16C: two registers a block. A part of a block of
// elements narrower than a float goes by way of the stack.
#pragma once

#include <immintrin.h>

#include "allocator/kernels/block.h"

namespace tidepool {
namespace {

struct Avx2 {
  static constexpr uint32_t kAccumulators = 4;
  struct Floats {
    __m256 low, high;
  };
  using Halves = __m256i;
  using Octets = __m128i;

  TP_KERNEL Floats load(const void* from, Whole) {
    const float* const at = static_cast<const float*>(from);
    return {_mm256_loadu_ps(at), _mm256_loadu_ps(at + 8)};
  }
  TP_KERNEL Floats load(const void* from, Part part) {
    const float* const at = static_cast<const float*>(from);
    return {_mm256_maskload_ps(at, first(part, 0)), _mm256_maskload_ps(at + 8, first(part, 8))};
  }
  TP_KERNEL void store(void* to, Floats x, Whole) {
    _mm256_storeu_ps(static_cast<float*>(to), x.low);
    _mm256_storeu_ps(static_cast<float*>(to) + 8, x.high);
  }
  TP_KERNEL void store(void* to, Floats x, Part part) {
    _mm256_maskstore_ps(static_cast<float*>(to), first(part, 0), x.low);
    _mm256_maskstore_ps(static_cast<float*>(to) + 8, first(part, 8), x.high);
  }
  TP_KERNEL Halves loadHalves(const void* from, Whole) {
    return _mm256_loadu_si256(static_cast<const __m256i_u*>(from));
  }
  TP_KERNEL Halves loadHalves(const void* from, Part part) {
    __m256i x = _mm256_setzero_si256();
    __builtin_memcpy(&x, from, part.count * 2);
    return x;
  }
  TP_KERNEL void storeHalves(void* to, Halves x, Whole) {
    _mm256_storeu_si256(static_cast<__m256i_u*>(to), x);
  }
  TP_KERNEL void storeHalves(void* to, Halves x, Part part) {
    __builtin_memcpy(to, &x, part.count * 2);
  }
  TP_KERNEL Octets loadOctets(const void* from, Whole) {
    return _mm_loadu_si128(static_cast<const __m128i_u*>(from));
  }
  TP_KERNEL Octets loadOctets(const void* from, Part part) {
    __m128i x = _mm_setzero_si128();
    __builtin_memcpy(&x, from, part.count);
    return x;
  }
  TP_KERNEL void storeOctets(void* to, Octets x, Whole) {
    _mm_storeu_si128(static_cast<__m128i_u*>(to), x);
  }
  TP_KERNEL void storeOctets(void* to, Octets x, Part part) {
    __builtin_memcpy(to, &x, part.count);
  }

  TP_KERNEL Floats zero() { return {_mm256_setzero_ps(), _mm256_setzero_ps()}; }
  TP_KERNEL Floats set(float value) { return {_mm256_set1_ps(value), _mm256_set1_ps(value)}; }
  TP_KERNEL Floats add(Floats a, Floats b) {
    return {_mm256_add_ps(a.low, b.low), _mm256_add_ps(a.high, b.high)};
  }
  TP_KERNEL Floats sub(Floats a, Floats b) {
    return {_mm256_sub_ps(a.low, b.low), _mm256_sub_ps(a.high, b.high)};
  }
  TP_KERNEL Floats mul(Floats a, Floats b) {
    return {_mm256_mul_ps(a.low, b.low), _mm256_mul_ps(a.high, b.high)};
  }
  TP_KERNEL Floats div(Floats a, Floats b) {
    return {_mm256_div_ps(a.low, b.low), _mm256_div_ps(a.high, b.high)};
  }
  TP_KERNEL Floats sqrt(Floats a) { return {_mm256_sqrt_ps(a.low), _mm256_sqrt_ps(a.high)}; }
  TP_KERNEL Floats fma(Floats a, Floats b, Floats c) {
    return {_mm256_fmadd_ps(a.low, b.low, c.low), _mm256_fmadd_ps(a.high, b.high, c.high)};
  }
  TP_KERNEL Floats clean(Floats a) { return {clean(a.low), clean(a.high)}; }
  TP_KERNEL Floats maxMagnitude(Floats a, Floats b) {
    return {maxMagnitude(a.low, b.low), maxMagnitude(a.high, b.high)};
  }

  TP_KERNEL Floats widenFloat16(Halves h) {
    return {_mm256_cvtph_ps(_mm256_castsi256_si128(h)),
            _mm256_cvtph_ps(_mm256_extracti128_si256(h, 1))};
  }
  TP_KERNEL Halves narrowFloat16(Floats x) {
    return _mm256_set_m128i(_mm256_cvtps_ph(x.high, _MM_FROUND_TO_NEAREST_INT),
                            _mm256_cvtps_ph(x.low, _MM_FROUND_TO_NEAREST_INT));
  }
  TP_KERNEL Floats widenBfloat16(Halves h) {
    return {upper(_mm256_castsi256_si128(h)), upper(_mm256_extracti128_si256(h, 1))};
  }
  TP_KERNEL Halves narrowBfloat16(Floats x) {
    // Packing works on each 128-bit lane by itself: the quarters come out as 0, 2, 1, 3.
    const __m256i packed = _mm256_packus_epi32(roundToUpper(x.low), roundToUpper(x.high));
    return _mm256_permute4x64_epi64(packed, _MM_SHUFFLE(3, 1, 2, 0));
  }
  TP_KERNEL Floats widenInt8(Octets q) {
    return {_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(q)),
            _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_unpackhi_epi64(q, q)))};
  }
  TP_KERNEL Octets narrowInt8(Floats x) {
    const __m256i packed = _mm256_packs_epi32(toInteger(x.low), toInteger(x.high));
    const __m256i ordered = _mm256_permute4x64_epi64(packed, _MM_SHUFFLE(3, 1, 2, 0));
    return _mm_packs_epi16(_mm256_castsi256_si128(ordered), _mm256_extracti128_si256(ordered, 1));
  }

 private:
  /// All ones in the lanes of [from, from + 8) that the part has.
  TP_KERNEL __m256i first(Part part, int from) {
    const __m256i lanes = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    return _mm256_cmpgt_epi32(_mm256_set1_epi32(static_cast<int>(part.count) - from), lanes);
  }
  TP_KERNEL __m256 clean(__m256 a) {
    const __m256 none = _mm256_cmp_ps(a, a, _CMP_UNORD_Q);
    return _mm256_blendv_ps(a, _mm256_castsi256_ps(_mm256_set1_epi32(kNotANumber)), none);
  }
  TP_KERNEL __m256 maxMagnitude(__m256 a, __m256 b) {
    const __m256i size =
        _mm256_and_si256(_mm256_castps_si256(b), _mm256_set1_epi32(static_cast<int>(kMagnitude)));
    return _mm256_castsi256_ps(_mm256_max_epu32(_mm256_castps_si256(a), size));
  }
  TP_KERNEL __m256 upper(__m128i halves) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(halves), 16));
  }
  TP_KERNEL __m256i roundToUpper(__m256 x) {
    const __m256i bits = _mm256_castps_si256(x);
    const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    const __m256i rounded =
        _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
    const __m256i none = _mm256_castps_si256(_mm256_cmp_ps(x, x, _CMP_UNORD_Q));
    const __m256i quiet = _mm256_or_si256(bits, _mm256_set1_epi32(0x400000));
    return _mm256_srli_epi32(_mm256_blendv_epi8(rounded, quiet, none), 16);
  }
  TP_KERNEL __m256i toInteger(__m256 x) {
    const __m256 most = _mm256_min_ps(x, _mm256_set1_ps(127.0f));
    return _mm256_cvtps_epi32(_mm256_max_ps(most, _mm256_set1_ps(-127.0f)));
  }
};

}  // namespace
}  // namespace tidepool
