// SPDX-License-Identifier: Apache-2.0
// One step of each optimizer on one row: the formulas are in kernels.h. For the files of one
// instruction set alone; V is the block's operations. Elements are decoded, moved and rounded back
// block by block; int8, whose scale depends on all elements, by way of a row on the stack.
#pragma once

#include "allocator/kernels/elements.h"
#include "allocator/kernels/kernels.h"

namespace tidepool {
namespace {

/// What of a step is the same for all blocks of a row.
template <class V>
struct StepConstants {
  typename V::Floats minus_rate, momentum, one_minus_beta1, one_minus_beta2, epsilon, decay;
  bool decays;
};

template <class V>
TP_KERNEL StepConstants<V> constantsOf(const OptimizerStep& step, float rate) {
  return {V::set(-rate),
          V::set(step.momentum),
          V::set(1.0f - step.beta1),
          V::set(1.0f - step.beta2),
          V::set(step.epsilon),
          V::set(step.weight_decay),
          step.weight_decay != 0};
}

template <class V>
TP_KERNEL typename V::Floats decayed(const StepConstants<V>& constants, typename V::Floats g,
                                     typename V::Floats w) {
  return constants.decays ? V::fma(constants.decay, w, g) : g;
}

/// Moves a block of elements `w` against its gradient `g`. `state` is the row's state from this
/// block's first element on, and `moments` floats later there are Adam's second moments.
template <class V, Optimizer O, class Extent>
TP_KERNEL typename V::Floats moved(const StepConstants<V>& constants, typename V::Floats w,
                                   typename V::Floats g, float* state, uint32_t moments,
                                   Extent extent) {
  using Floats = typename V::Floats;
  if constexpr (O == Optimizer::kSgd || O == Optimizer::kRowwiseAdagrad) {
    return V::fma(constants.minus_rate, g, w);
  }
  if constexpr (O == Optimizer::kMomentum) {
    const Floats velocity = V::fma(constants.momentum, V::load(state, extent), g);
    V::store(state, V::clean(velocity), extent);
    return V::fma(constants.minus_rate, velocity, w);
  }
  if constexpr (O == Optimizer::kAdagrad) {
    const Floats sum = V::fma(g, g, V::load(state, extent));
    V::store(state, V::clean(sum), extent);
    const Floats step = V::div(g, V::add(V::sqrt(sum), constants.epsilon));
    return V::fma(constants.minus_rate, step, w);
  }
  if constexpr (O == Optimizer::kAdam) {
    const Floats old_first = V::load(state, extent);
    const Floats first = V::fma(constants.one_minus_beta1, V::sub(g, old_first), old_first);
    V::store(state, V::clean(first), extent);
    const Floats old_second = V::load(state + moments, extent);
    const Floats change = V::sub(V::mul(g, g), old_second);
    const Floats second = V::fma(constants.one_minus_beta2, change, old_second);
    V::store(state + moments, V::clean(second), extent);
    const Floats step = V::div(first, V::add(V::sqrt(second), constants.epsilon));
    return V::fma(constants.minus_rate, step, w);
  }
}

/// `x` with zeros beyond its extent: there decay may have made NaNs of nothing.
template <class V>
TP_KERNEL typename V::Floats within(typename V::Floats x, Whole) {
  return x;
}
template <class V>
TP_KERNEL typename V::Floats within(typename V::Floats x, Part extent) {
  float lanes[kBlock];
  V::store(lanes, x, extent);
  return V::load(lanes, extent);
}

/// Adds the mean of the squares of the gradient to the row's state, and gives the rate of this row.
template <class V, ElementType T>
TP_KERNEL float rowwiseRate(const StepConstants<V>& constants, const OptimizerStep& step,
                            uint32_t dim, const float* gradient, std::byte* row) {
  const float scale = scaleOf<T>(row, dim);
  typename V::Floats squares = V::zero();
  eachBlock(
      dim, [&](uint32_t at, auto extent) __attribute__((always_inline)) {
        const typename V::Floats w = loadElements<V, T>(row, at, scale, extent);
        const typename V::Floats g =
            within<V>(decayed<V>(constants, V::load(gradient + at, extent), w), extent);
        squares = V::fma(g, g, squares);
      });
  std::byte* const state = row + weightBytes<T>(dim);
  float sum;
  __builtin_memcpy(&sum, state, sizeof sum);
  sum += sumOfLanes<V>(squares) / static_cast<float>(dim);
  storeClean(state, sum);
  return step.learning_rate / (__builtin_sqrtf(sum) + step.epsilon);
}

template <class V, ElementType T, Optimizer O>
void applyTo(uint32_t dim, const OptimizerStep& step, const float* gradient, std::byte* row) {
  const float rate = O == Optimizer::kAdam ? step.adam_rate : step.learning_rate;
  StepConstants<V> constants = constantsOf<V>(step, rate);
  if constexpr (O == Optimizer::kRowwiseAdagrad) {
    constants.minus_rate = V::set(-rowwiseRate<V, T>(constants, step, dim, gradient, row));
  }
  const float scale = scaleOf<T>(row, dim);
  float* const state = reinterpret_cast<float*>(row + weightBytes<T>(dim));
  [[maybe_unused]] float whole_row[T == ElementType::kInt8 ? RowFormat::kMaxDim : 1];
  eachBlock(
      dim, [&](uint32_t at, auto extent) __attribute__((always_inline)) {
        const typename V::Floats w = loadElements<V, T>(row, at, scale, extent);
        const typename V::Floats g = decayed<V>(constants, V::load(gradient + at, extent), w);
        const typename V::Floats next =
            V::clean(moved<V, O>(constants, w, g, state + at, dim, extent));
        if constexpr (T == ElementType::kInt8) {
          V::store(whole_row + at, next, extent);
        } else {
          storeElements<V, T>(row, at, next, extent);
        }
      });
  if constexpr (T == ElementType::kInt8) encodeInt8<V>(whole_row, row, dim);
}

template <class V, ElementType T>
TP_KERNEL void applyAs(const RowFormat& format, const OptimizerStep& step, const float* gradient,
                       std::byte* row) {
  const uint32_t dim = format.dim;
  switch (format.optimizer) {
    case Optimizer::kSgd:
      return applyTo<V, T, Optimizer::kSgd>(dim, step, gradient, row);
    case Optimizer::kMomentum:
      return applyTo<V, T, Optimizer::kMomentum>(dim, step, gradient, row);
    case Optimizer::kAdagrad:
      return applyTo<V, T, Optimizer::kAdagrad>(dim, step, gradient, row);
    case Optimizer::kRowwiseAdagrad:
      return applyTo<V, T, Optimizer::kRowwiseAdagrad>(dim, step, gradient, row);
    case Optimizer::kAdam:
      return applyTo<V, T, Optimizer::kAdam>(dim, step, gradient, row);
  }
}

}  // namespace
}  // namespace tidepool
