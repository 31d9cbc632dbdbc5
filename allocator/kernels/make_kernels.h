// SPDX-License-Identifier: Apache-2.0
// The table of kernels of one instruction set, V being its operations on blocks: each kernel is
// chosen by the row's format here, and written once in the headers that this one includes.
#pragma once

#include "allocator/kernels/bags.h"
#include "allocator/kernels/elements.h"
#include "allocator/kernels/kernels.h"
#include "allocator/kernels/optimizers.h"

namespace tidepool {
namespace {

template <class V>
void bag(const RowFormat& format, const BagBatch& batch) {
  if (batch.bags == 0) return;
  switch (format.type) {
    case ElementType::kFloat32:
      return poolAs<V, ElementType::kFloat32>(batch, format.dim);
    case ElementType::kFloat16:
      return poolAs<V, ElementType::kFloat16>(batch, format.dim);
    case ElementType::kBfloat16:
      return poolAs<V, ElementType::kBfloat16>(batch, format.dim);
    case ElementType::kInt8:
      return poolAs<V, ElementType::kInt8>(batch, format.dim);
  }
}

template <class V>
void decode(const RowFormat& format, const std::byte* row, float* out) {
  switch (format.type) {
    case ElementType::kFloat32:
      return decodeRow<V, ElementType::kFloat32>(row, out, format.dim);
    case ElementType::kFloat16:
      return decodeRow<V, ElementType::kFloat16>(row, out, format.dim);
    case ElementType::kBfloat16:
      return decodeRow<V, ElementType::kBfloat16>(row, out, format.dim);
    case ElementType::kInt8:
      return decodeRow<V, ElementType::kInt8>(row, out, format.dim);
  }
}

template <class V>
void encode(const RowFormat& format, const float* in, std::byte* row) {
  switch (format.type) {
    case ElementType::kFloat32:
      return encodeRow<V, ElementType::kFloat32>(in, row, format.dim);
    case ElementType::kFloat16:
      return encodeRow<V, ElementType::kFloat16>(in, row, format.dim);
    case ElementType::kBfloat16:
      return encodeRow<V, ElementType::kBfloat16>(in, row, format.dim);
    case ElementType::kInt8:
      return encodeRow<V, ElementType::kInt8>(in, row, format.dim);
  }
}

template <class V>
void accumulate(float* sum, const float* gradient, float weight, uint32_t dim) {
  const typename V::Floats factor = V::set(weight);
  const bool plain = weight == 1;
  eachBlock(
      dim, [&](uint32_t at, auto extent) __attribute__((always_inline)) {
        const typename V::Floats old = V::load(sum + at, extent);
        const typename V::Floats g = V::load(gradient + at, extent);
        V::store(sum + at, V::clean(plain ? V::add(old, g) : V::fma(factor, g, old)), extent);
      });
}

template <class V>
void apply(const RowFormat& format, const OptimizerStep& step, const float* gradient,
           std::byte* row) {
  switch (format.type) {
    case ElementType::kFloat32:
      return applyAs<V, ElementType::kFloat32>(format, step, gradient, row);
    case ElementType::kFloat16:
      return applyAs<V, ElementType::kFloat16>(format, step, gradient, row);
    case ElementType::kBfloat16:
      return applyAs<V, ElementType::kBfloat16>(format, step, gradient, row);
    case ElementType::kInt8:
      return applyAs<V, ElementType::kInt8>(format, step, gradient, row);
  }
}

template <class V>
constexpr Kernels kernelsOf(Isa isa) {
  return {isa, &bag<V>, &decode<V>, &encode<V>, &accumulate<V>, &apply<V>};
}

}  // namespace
}  // namespace tidepool
