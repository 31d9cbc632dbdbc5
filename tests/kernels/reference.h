// SPDX-License-Identifier: Apache-2.0
// What kernels have to yield, written as their description reads: one element after another,
// numbers converted by way of float64 arithmetic. Nothing here is shared with the kernels but
// RowFormat.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "allocator/kernels/kernels.h"

namespace tidepool::reference {

inline uint32_t bitsOf(float x) { return std::bit_cast<uint32_t>(x); }
inline float floatOf(uint32_t bits) { return std::bit_cast<float>(bits); }
inline float clean(float x) { return std::isnan(x) ? floatOf(0x7fc00000) : x; }

template <class T>
T get(const std::byte* from, size_t index = 0) {
  T value;
  std::memcpy(&value, from + index * sizeof(T), sizeof(T));
  return value;
}
template <class T>
void put(std::byte* to, size_t index, T value) {
  std::memcpy(to + index * sizeof(T), &value, sizeof(T));
}

inline float fromFloat16(uint16_t h) {
  const uint32_t sign = h >> 15, exponent = h >> 10 & 31, fraction = h & 1023;
  if (exponent == 31 && fraction != 0) return floatOf(sign << 31 | 0x7fc00000 | fraction << 13);
  double size = std::numeric_limits<double>::infinity();
  if (exponent == 0) size = std::ldexp(fraction, -24);
  if (exponent > 0 && exponent < 31) size = std::ldexp(1024 + fraction, int(exponent) - 25);
  return static_cast<float>(sign != 0 ? -size : size);
}

inline uint16_t toFloat16(float x) {
  const uint32_t sign = bitsOf(x) >> 31 << 15;
  if (std::isnan(x)) return static_cast<uint16_t>(sign | 0x7e00 | (bitsOf(x) >> 13 & 0x1ff));
  const double size = std::abs(double{x});
  if (size >= 65520) return static_cast<uint16_t>(sign | 0x7c00);
  const int exponent = size == 0 ? -14 : std::max(std::ilogb(size), -14);
  // In units of the last place at this size; 1024 of them and more are a normal number.
  const auto units = static_cast<uint32_t>(std::nearbyint(std::ldexp(size, 10 - exponent)));
  const uint32_t h = units < 1024 ? units : ((uint32_t(exponent) + 14) << 10) + units;
  return static_cast<uint16_t>(sign | h);
}

inline float fromBfloat16(uint16_t h) { return floatOf(uint32_t{h} << 16); }

inline uint16_t toBfloat16(float x) {
  const auto cut = static_cast<uint16_t>(bitsOf(x) >> 16);
  if (std::isnan(x)) return cut | 0x40;
  if (std::isinf(x)) return cut;
  const auto next = static_cast<uint16_t>(cut + 1);  // further from zero
  const double below = std::abs(double{fromBfloat16(cut)});
  const double above = (next & 0x7fff) == 0x7f80 ? 0x1p128 : std::abs(double{fromBfloat16(next)});
  const double size = std::abs(double{x});
  if (size - below == above - size) return (cut & 1) == 0 ? cut : next;
  return size - below < above - size ? cut : next;
}

inline float element(const RowFormat& format, const std::byte* row, uint32_t i) {
  switch (format.type) {
    case ElementType::kFloat32:
      return get<float>(row, i);
    case ElementType::kFloat16:
      return fromFloat16(get<uint16_t>(row, i));
    case ElementType::kBfloat16:
      return fromBfloat16(get<uint16_t>(row, i));
    case ElementType::kInt8:
      return clean(float(get<int8_t>(row, i)) * get<float>(row + format.scaleOffset()));
  }
  return 0;
}

inline std::vector<float> decode(const RowFormat& format, const std::byte* row) {
  std::vector<float> out(format.dim);
  for (uint32_t i = 0; i < format.dim; ++i) out[i] = element(format, row, i);
  return out;
}

inline void encodeInt8(const RowFormat& format, const float* in, std::byte* row) {
  float most = 0;
  bool finite = true;
  for (uint32_t i = 0; i < format.dim; ++i) {
    most = std::max(most, std::abs(in[i]));
    finite = finite && std::isfinite(in[i]);
  }
  const float scale = finite ? most / 127.0f : floatOf(0x7fc00000);
  put(row + format.scaleOffset(), 0, scale);
  for (uint32_t i = 0; i < format.dim; ++i) {
    const float q = !finite || scale == 0 ? 0 : std::nearbyint(in[i] / scale);
    put(row, i, static_cast<int8_t>(std::clamp(q, -127.0f, 127.0f)));
  }
}

inline void encode(const RowFormat& format, const float* in, std::byte* row) {
  if (format.type == ElementType::kInt8) return encodeInt8(format, in, row);
  for (uint32_t i = 0; i < format.dim; ++i) {
    if (format.type == ElementType::kFloat32) put(row, i, in[i]);
    if (format.type == ElementType::kFloat16) put(row, i, toFloat16(in[i]));
    if (format.type == ElementType::kBfloat16) put(row, i, toBfloat16(in[i]));
  }
}

inline void bag(const RowFormat& format, const BagBatch& batch) {
  for (size_t b = 0; b < batch.bags; ++b) {
    const uint32_t rows = batch.offsets[b + 1] - batch.offsets[b];
    for (uint32_t i = 0; i < format.dim; ++i) {
      float sum = 0;
      for (uint32_t r = batch.offsets[b]; r < batch.offsets[b + 1]; ++r) {
        const float x = element(format, batch.rows[r], i);
        sum = batch.weights != nullptr ? std::fma(batch.weights[r], x, sum) : sum + x;
      }
      if (batch.pooling == Pooling::kMean && rows != 0) sum /= float(rows);
      batch.out[b * batch.out_stride + i] = clean(sum);
    }
  }
}

/// The mean of squares, summed in 16 columns that are then folded in halves.
inline float meanOfSquares(const std::vector<float>& g) {
  std::array<float, 16> sums{};
  for (size_t i = 0; i < g.size(); ++i) sums[i % 16] = std::fma(g[i], g[i], sums[i % 16]);
  for (size_t half = 8; half >= 1; half /= 2) {
    for (size_t i = 0; i < half; ++i) sums[i] += sums[i + half];
  }
  return sums[0] / float(g.size());
}

/// One element's step. `state` is where the element's state is, `second` Adam's second moment.
inline float step(Optimizer optimizer, const OptimizerStep& s, float w, float g, std::byte* state,
                  std::byte* second) {
  if (optimizer == Optimizer::kMomentum) {
    const float velocity = std::fma(s.momentum, get<float>(state), g);
    put(state, 0, clean(velocity));
    return std::fma(-s.learning_rate, velocity, w);
  }
  if (optimizer == Optimizer::kAdagrad) {
    const float sum = std::fma(g, g, get<float>(state));
    put(state, 0, clean(sum));
    return std::fma(-s.learning_rate, g / (std::sqrt(sum) + s.epsilon), w);
  }
  if (optimizer == Optimizer::kAdam) {
    const float m = get<float>(state), v = get<float>(second);
    const float new_m = std::fma(1 - s.beta1, g - m, m);
    const float new_v = std::fma(1 - s.beta2, g * g - v, v);
    put(state, 0, clean(new_m));
    put(second, 0, clean(new_v));
    return std::fma(-s.adam_rate, new_m / (std::sqrt(new_v) + s.epsilon), w);
  }
  return std::fma(-s.learning_rate, g, w);
}

inline void apply(const RowFormat& format, const OptimizerStep& settings, const float* gradient,
                  std::byte* row) {
  std::vector<float> w = decode(format, row);
  std::vector<float> g(gradient, gradient + format.dim);
  for (uint32_t i = 0; i < format.dim && settings.weight_decay != 0; ++i) {
    g[i] = std::fma(settings.weight_decay, w[i], g[i]);
  }
  std::byte* const state = row + format.stateOffset();
  OptimizerStep s = settings;
  if (format.optimizer == Optimizer::kRowwiseAdagrad) {
    const float sum = get<float>(state) + meanOfSquares(g);
    put(state, 0, clean(sum));
    s.learning_rate = settings.learning_rate / (std::sqrt(sum) + settings.epsilon);
  }
  for (uint32_t i = 0; i < format.dim; ++i) {
    std::byte* const own = state + 4 * i;
    w[i] = clean(step(format.optimizer, s, w[i], g[i], own, own + 4 * format.dim));
  }
  encode(format, w.data(), row);
}

}  // namespace tidepool::reference
