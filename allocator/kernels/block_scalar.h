// SPDX-License-Identifier: Apache-2.0
// A block's operations in plain C++, for any processor. Rounding is that of IEEE 754 throughout;
// fma() is one rounding, by the processor or by the C library.
#pragma once

#include "allocator/kernels/block.h"

namespace tidepool {
namespace {

struct Scalar {
  static constexpr uint32_t kAccumulators = 2;  // blocks that sums are held in at once
  struct Floats {
    float v[kBlock];
  };
  struct Halves {
    uint16_t v[kBlock];
  };
  struct Octets {
    int8_t v[kBlock];
  };

  template <class Extent>
  TP_KERNEL Floats load(const void* from, Extent extent) {
    Floats x{};
    __builtin_memcpy(x.v, from, countOf(extent) * 4);
    return x;
  }
  template <class Extent>
  TP_KERNEL void store(void* to, Floats x, Extent extent) {
    __builtin_memcpy(to, x.v, countOf(extent) * 4);
  }
  template <class Extent>
  TP_KERNEL Halves loadHalves(const void* from, Extent extent) {
    Halves x{};
    __builtin_memcpy(x.v, from, countOf(extent) * 2);
    return x;
  }
  template <class Extent>
  TP_KERNEL void storeHalves(void* to, Halves x, Extent extent) {
    __builtin_memcpy(to, x.v, countOf(extent) * 2);
  }
  template <class Extent>
  TP_KERNEL Octets loadOctets(const void* from, Extent extent) {
    Octets x{};
    __builtin_memcpy(x.v, from, countOf(extent));
    return x;
  }
  template <class Extent>
  TP_KERNEL void storeOctets(void* to, Octets x, Extent extent) {
    __builtin_memcpy(to, x.v, countOf(extent));
  }

  TP_KERNEL Floats zero() { return Floats{}; }
  TP_KERNEL Floats set(float value) {
    Floats x;
    for (float& each : x.v) each = value;
    return x;
  }
  TP_KERNEL Floats add(Floats a, Floats b) {
    for (uint32_t i = 0; i < kBlock; ++i) a.v[i] += b.v[i];
    return a;
  }
  TP_KERNEL Floats sub(Floats a, Floats b) {
    for (uint32_t i = 0; i < kBlock; ++i) a.v[i] -= b.v[i];
    return a;
  }
  TP_KERNEL Floats mul(Floats a, Floats b) {
    for (uint32_t i = 0; i < kBlock; ++i) a.v[i] *= b.v[i];
    return a;
  }
  TP_KERNEL Floats div(Floats a, Floats b) {
    for (uint32_t i = 0; i < kBlock; ++i) a.v[i] /= b.v[i];
    return a;
  }
  TP_KERNEL Floats sqrt(Floats a) {
    for (uint32_t i = 0; i < kBlock; ++i) a.v[i] = __builtin_sqrtf(a.v[i]);
    return a;
  }
  /// a * b + c, rounded once.
  TP_KERNEL Floats fma(Floats a, Floats b, Floats c) {
    for (uint32_t i = 0; i < kBlock; ++i) c.v[i] = __builtin_fmaf(a.v[i], b.v[i], c.v[i]);
    return c;
  }
  /// The same numbers; what is none, as kNotANumber.
  TP_KERNEL Floats clean(Floats a) {
    for (float& x : a.v) x = x == x ? x : __builtin_bit_cast(float, kNotANumber);
    return a;
  }
  /// The greater of a and |b| by their bits: a NaN is greater than any number.
  TP_KERNEL Floats maxMagnitude(Floats a, Floats b) {
    for (uint32_t i = 0; i < kBlock; ++i) {
      const uint32_t left = __builtin_bit_cast(uint32_t, a.v[i]);
      const uint32_t right = __builtin_bit_cast(uint32_t, b.v[i]) & kMagnitude;
      a.v[i] = __builtin_bit_cast(float, left > right ? left : right);
    }
    return a;
  }

  TP_KERNEL Floats widenFloat16(Halves h) {
    Floats x;
    for (uint32_t i = 0; i < kBlock; ++i) x.v[i] = fromFloat16(h.v[i]);
    return x;
  }
  TP_KERNEL Halves narrowFloat16(Floats x) {
    Halves h;
    for (uint32_t i = 0; i < kBlock; ++i) h.v[i] = toFloat16(x.v[i]);
    return h;
  }
  TP_KERNEL Floats widenBfloat16(Halves h) {
    Floats x;
    for (uint32_t i = 0; i < kBlock; ++i) {
      x.v[i] = __builtin_bit_cast(float, static_cast<uint32_t>(h.v[i]) << 16);
    }
    return x;
  }
  TP_KERNEL Halves narrowBfloat16(Floats x) {
    Halves h;
    for (uint32_t i = 0; i < kBlock; ++i) h.v[i] = toBfloat16(x.v[i]);
    return h;
  }
  TP_KERNEL Floats widenInt8(Octets q) {
    Floats x;
    for (uint32_t i = 0; i < kBlock; ++i) x.v[i] = q.v[i];
    return x;
  }
  /// To the nearest integer, ties to even, of numbers that are not infinite; at most 127 either
  /// way.
  TP_KERNEL Octets narrowInt8(Floats x) {
    Octets q;
    for (uint32_t i = 0; i < kBlock; ++i) {
      const float most = x.v[i] < 127.0f ? x.v[i] : 127.0f;
      const float within = most > -127.0f ? most : -127.0f;
      // Floats of this size have a last bit of 1: the addition rounds.
      const uint32_t rounded = __builtin_bit_cast(uint32_t, within + 12582912.0f);
      q.v[i] = static_cast<int8_t>(static_cast<int32_t>(rounded - 0x4b400000u));
    }
    return q;
  }

 private:
  TP_KERNEL float fromFloat16(uint32_t h) {
    const uint32_t sign = (h & 0x8000) << 16;
    const uint32_t exponent = h >> 10 & 31;
    const uint32_t fraction = h & 0x3ff;
    uint32_t bits = ((exponent + 112) << 23) | (fraction << 13);
    if (exponent == 31) bits = fraction != 0 ? kNotANumber | (fraction << 13) : kInfinity;
    if (exponent == 0) {
      bits = __builtin_bit_cast(uint32_t, static_cast<float>(fraction) * 0x1p-24f);
    }
    return __builtin_bit_cast(float, sign | bits);
  }
  TP_KERNEL uint16_t toFloat16(float x) {
    const uint32_t bits = __builtin_bit_cast(uint32_t, x);
    const uint32_t sign = bits >> 16 & 0x8000;
    const uint32_t size = bits & kMagnitude;
    uint32_t h = 0;
    if (size > kInfinity) {
      h = 0x7e00 | (size >> 13 & 0x3ff);
    } else if (size >= 0x477ff000) {  // 65520, halfway from the greatest float16 to the next
      h = 0x7c00;
    } else if (size < 0x38800000) {  // 2^-14: subnormal, multiples of 2^-24, as floats near 0.5 are
      h = __builtin_bit_cast(uint32_t, __builtin_bit_cast(float, size) + 0.5f) - 0x3f000000;
    } else {
      h = (size - 0x38000000 + 0xfff + (size >> 13 & 1)) >> 13;
    }
    return static_cast<uint16_t>(sign | h);
  }
  TP_KERNEL uint16_t toBfloat16(float x) {
    const uint32_t bits = __builtin_bit_cast(uint32_t, x);
    if ((bits & kMagnitude) > kInfinity) return static_cast<uint16_t>(bits >> 16 | 0x40);
    return static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
  }
};

}  // namespace
}  // namespace tidepool
