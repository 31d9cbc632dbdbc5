// SPDX-License-Identifier: Apache-2.0
// A block's operations with AVX-512 (F, BW, DQ, VL): one register a block, masks for a part of one.
// bfloat16 is rounded with integers: the instruction for it takes subnormal numbers for zeros.
#pragma once

#include <immintrin.h>

#include "allocator/kernels/block.h"

namespace tidepool {
namespace {

struct Avx512 {
  static constexpr uint32_t kAccumulators = 16;
  static constexpr int kNearest = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
  using Floats = __m512;
  using Halves = __m256i;
  using Octets = __m128i;

  TP_KERNEL Floats load(const void* from, Whole) { return _mm512_loadu_ps(from); }
  TP_KERNEL Floats load(const void* from, Part part) {
    return _mm512_maskz_loadu_ps(first(part), from);
  }
  TP_KERNEL void store(void* to, Floats x, Whole) { _mm512_storeu_ps(to, x); }
  TP_KERNEL void store(void* to, Floats x, Part part) { _mm512_mask_storeu_ps(to, first(part), x); }
  TP_KERNEL Halves loadHalves(const void* from, Whole) {
    return _mm256_loadu_si256(static_cast<const __m256i_u*>(from));
  }
  TP_KERNEL Halves loadHalves(const void* from, Part part) {
    return _mm256_maskz_loadu_epi16(first(part), from);
  }
  TP_KERNEL void storeHalves(void* to, Halves x, Whole) {
    _mm256_storeu_si256(static_cast<__m256i_u*>(to), x);
  }
  TP_KERNEL void storeHalves(void* to, Halves x, Part part) {
    _mm256_mask_storeu_epi16(to, first(part), x);
  }
  TP_KERNEL Octets loadOctets(const void* from, Whole) {
    return _mm_loadu_si128(static_cast<const __m128i_u*>(from));
  }
  TP_KERNEL Octets loadOctets(const void* from, Part part) {
    return _mm_maskz_loadu_epi8(first(part), from);
  }
  TP_KERNEL void storeOctets(void* to, Octets x, Whole) {
    _mm_storeu_si128(static_cast<__m128i_u*>(to), x);
  }
  TP_KERNEL void storeOctets(void* to, Octets x, Part part) {
    _mm_mask_storeu_epi8(to, first(part), x);
  }

  TP_KERNEL Floats zero() { return _mm512_setzero_ps(); }
  TP_KERNEL Floats set(float value) { return _mm512_set1_ps(value); }
  TP_KERNEL Floats add(Floats a, Floats b) { return _mm512_add_ps(a, b); }
  TP_KERNEL Floats sub(Floats a, Floats b) { return _mm512_sub_ps(a, b); }
  TP_KERNEL Floats mul(Floats a, Floats b) { return _mm512_mul_ps(a, b); }
  TP_KERNEL Floats div(Floats a, Floats b) { return _mm512_div_ps(a, b); }
  TP_KERNEL Floats sqrt(Floats a) { return _mm512_sqrt_ps(a); }
  TP_KERNEL Floats fma(Floats a, Floats b, Floats c) { return _mm512_fmadd_ps(a, b, c); }
  TP_KERNEL Floats clean(Floats a) {
    const __mmask16 none = _mm512_cmp_ps_mask(a, a, _CMP_UNORD_Q);
    return _mm512_mask_mov_ps(a, none, _mm512_castsi512_ps(_mm512_set1_epi32(kNotANumber)));
  }
  TP_KERNEL Floats maxMagnitude(Floats a, Floats b) {
    const __m512i size =
        _mm512_and_si512(_mm512_castps_si512(b), _mm512_set1_epi32(static_cast<int>(kMagnitude)));
    return _mm512_castsi512_ps(_mm512_max_epu32(_mm512_castps_si512(a), size));
  }

  TP_KERNEL Floats widenFloat16(Halves h) { return _mm512_cvtph_ps(h); }
  TP_KERNEL Halves narrowFloat16(Floats x) { return _mm512_cvtps_ph(x, kNearest); }
  TP_KERNEL Floats widenBfloat16(Halves h) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(h), 16));
  }
  TP_KERNEL Halves narrowBfloat16(Floats x) {
    const __m512i bits = _mm512_castps_si512(x);
    const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    const __m512i rounded =
        _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
    const __mmask16 none = _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q);
    const __m512i quiet = _mm512_or_si512(bits, _mm512_set1_epi32(0x400000));
    return _mm512_cvtepi32_epi16(
        _mm512_srli_epi32(_mm512_mask_mov_epi32(rounded, none, quiet), 16));
  }
  TP_KERNEL Floats widenInt8(Octets q) { return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(q)); }
  TP_KERNEL Octets narrowInt8(Floats x) {
    const Floats most = _mm512_min_ps(x, _mm512_set1_ps(127.0f));
    const Floats within = _mm512_max_ps(most, _mm512_set1_ps(-127.0f));
    return _mm512_cvtepi32_epi8(_mm512_cvt_roundps_epi32(within, kNearest));
  }

 private:
  TP_KERNEL __mmask16 first(Part part) { return static_cast<__mmask16>((1u << part.count) - 1); }
};

}  // namespace
}  // namespace tidepool
