// SPDX-License-Identifier: Apache-2.0
// A row's elements as blocks of floats, and back. For the files of one instruction set alone; V is
// the block's operations.
#pragma once

#include <cstddef>

#include "allocator/kernels/block.h"

namespace tidepool {
namespace {

template <ElementType T>
TP_KERNEL float scaleOf(const std::byte* row, uint32_t dim) {
  float scale = 1;
  if constexpr (T == ElementType::kInt8) {
    __builtin_memcpy(&scale, row + scaleOffset<T>(dim), sizeof scale);
  }
  return scale;
}

/// The block of elements that begins with number `at`, times `scale` if they are int8.
template <class V, ElementType T, class Extent>
TP_KERNEL typename V::Floats loadElements(const std::byte* row, uint32_t at, float scale,
                                          Extent extent) {
  const std::byte* const from = row + at * elementBytes(T);
  if constexpr (T == ElementType::kFloat32) return V::load(from, extent);
  if constexpr (T == ElementType::kFloat16) return V::widenFloat16(V::loadHalves(from, extent));
  if constexpr (T == ElementType::kBfloat16) return V::widenBfloat16(V::loadHalves(from, extent));
  if constexpr (T == ElementType::kInt8) {
    return V::mul(V::widenInt8(V::loadOctets(from, extent)), V::set(scale));
  }
}

/// Of all types but int8, whose scale depends on the whole row.
template <class V, ElementType T, class Extent>
TP_KERNEL void storeElements(std::byte* row, uint32_t at, typename V::Floats x, Extent extent) {
  static_assert(T != ElementType::kInt8);
  std::byte* const to = row + at * elementBytes(T);
  if constexpr (T == ElementType::kFloat32) V::store(to, x, extent);
  if constexpr (T == ElementType::kFloat16) V::storeHalves(to, V::narrowFloat16(x), extent);
  if constexpr (T == ElementType::kBfloat16) V::storeHalves(to, V::narrowBfloat16(x), extent);
}

/// Calls body(at, extent) for each block of `dim` elements.
template <class Body>
TP_KERNEL void eachBlock(uint32_t dim, const Body& body) {
  uint32_t at = 0;
  for (; dim - at >= kBlock; at += kBlock) body(at, Whole{});
  if (at < dim) body(at, Part{dim - at});
}

template <class V>
TP_KERNEL uint32_t greatestBits(typename V::Floats x) {
  uint32_t lanes[kBlock];
  V::store(lanes, x, Whole{});
  uint32_t greatest = 0;
  for (const uint32_t lane : lanes) greatest = lane > greatest ? lane : greatest;
  return greatest;
}

/// The sum of the lanes: the upper half is added to the lower one, until one lane is left.
template <class V>
TP_KERNEL float sumOfLanes(typename V::Floats x) {
  float lanes[kBlock];
  V::store(lanes, x, Whole{});
  for (uint32_t half = kBlock / 2; half != 0; half /= 2) {
    for (uint32_t i = 0; i < half; ++i) lanes[i] += lanes[i + half];
  }
  return lanes[0];
}

/// One float at `to`, made kNotANumber if it is none.
TP_KERNEL void storeClean(std::byte* to, float value) {
  const float clean = value == value ? value : __builtin_bit_cast(float, kNotANumber);
  __builtin_memcpy(to, &clean, sizeof clean);
}

template <class V>
TP_KERNEL void encodeInt8(const float* in, std::byte* row, uint32_t dim) {
  typename V::Floats most = V::zero();
  eachBlock(
      dim, [&](uint32_t at, auto extent) __attribute__((always_inline)) {
        most = V::maxMagnitude(most, V::load(in + at, extent));
      });
  const uint32_t bits = greatestBits<V>(most);
  const bool finite = bits < kInfinity;
  const float scale = __builtin_bit_cast(float, finite ? bits : kNotANumber) / 127.0f;
  storeClean(row + scaleOffset<ElementType::kInt8>(dim), scale);
  // A scale of 0 is that of zeros, or of numbers so small that 1/127 of them is none.
  const bool zeros = !finite || scale == 0;
  eachBlock(
      dim, [&](uint32_t at, auto extent) __attribute__((always_inline)) {
        const typename V::Floats x =
            zeros ? V::zero() : V::div(V::load(in + at, extent), V::set(scale));
        V::storeOctets(row + at, V::narrowInt8(x), extent);
      });
}

template <class V, ElementType T>
TP_KERNEL void encodeRow(const float* in, std::byte* row, uint32_t dim) {
  if constexpr (T == ElementType::kInt8) {
    encodeInt8<V>(in, row, dim);
  } else {
    eachBlock(
        dim, [&](uint32_t at, auto extent) __attribute__((always_inline)) {
          storeElements<V, T>(row, at, V::load(in + at, extent), extent);
        });
  }
}

template <class V, ElementType T>
TP_KERNEL void decodeRow(const std::byte* row, float* out, uint32_t dim) {
  const float scale = scaleOf<T>(row, dim);
  eachBlock(
      dim, [&](uint32_t at, auto extent) __attribute__((always_inline)) {
        typename V::Floats x = loadElements<V, T>(row, at, scale, extent);
        if constexpr (T == ElementType::kInt8) x = V::clean(x);
        V::store(out + at, x, extent);
      });
}

}  // namespace
}  // namespace tidepool
