// SPDX-License-Identifier: Apache-2.0
// Arithmetic over rows of embedding tables: bags, conversion, optimizer steps. Pure functions: they
// allocate nothing, call nothing, keep no state, and are safe from any number of threads on
// different outputs and rows. Every result is the same bit for bit on every instruction set:
// README.md in this folder says how.
#pragma once

#include <cstddef>
#include <cstdint>

#include "allocator/rows/row_format.h"

namespace tidepool {

/// The instruction sets that kernels are written for. kScalar runs on every processor.
enum class Isa : uint8_t { kScalar = 0, kAvx2 = 1, kAvx512 = 2 };
inline constexpr unsigned kIsas = 3;

/// "scalar", "avx2" or "avx512".
const char* isaName(Isa isa);

/// kMean divides the sum, weighted or not, by the number of the bag's rows (torch has means of
/// unweighted bags alone). An empty bag is zeros either way.
enum class Pooling : uint8_t { kSum = 0, kMean = 1 };

/// Bags of rows: bag b is rows[offsets[b]] up to, not including, rows[offsets[b + 1]].
struct BagBatch {
  const std::byte* const* rows = nullptr;  // where each row begins; kAlignment-aligned
  const uint32_t* offsets = nullptr;       // bags + 1 of them, none less than the one before
  size_t bags = 0;
  const float* weights = nullptr;  // one a row, indexed as `rows`; null: unweighted
  Pooling pooling = Pooling::kSum;
  float* out = nullptr;   // of bag b: dim floats from out + b * out_stride
  size_t out_stride = 0;  // floats from one bag's result to the next, at least dim
};

/// What one step of an optimizer needs beside the gradient. Weight decay is L2, as in torch.optim:
/// weight_decay * w is added to the gradient before all else; 0 leaves the gradient as it is.
struct OptimizerStep {
  float learning_rate = 0.01f;
  float momentum = 0.0f;
  float beta1 = 0.9f;
  float beta2 = 0.999f;
  float epsilon = 1e-8f;
  float weight_decay = 0.0f;
  uint64_t step = 1;  // of the table, counted from 1: Adam's bias correction
  /// Adam's learning rate with both corrections in it. Set by prepared(); used by kAdam alone.
  float adam_rate = 0.0f;
};

/// `settings` with adam_rate = learning_rate * sqrt(1 - beta2^step) / (1 - beta1^step), worked out
/// in float64 with exactly rounded operations alone. Once a batch, not once a row.
OptimizerStep prepared(OptimizerStep settings);

/// The kernels of one instruction set. Rows are kAlignment-aligned, their dim is 1..kMaxDim;
/// nothing outside of a row's fields or of the dim floats given is read or written. Floats need no
/// more than their natural alignment. Processor settings are expected to be the default: round to
/// nearest, subnormal numbers kept.
struct Kernels {
  Isa isa;
  /// Pools bags. Rows are decoded, then added in their order to a sum that begins at +0, with one
  /// rounding a row: sum + x, or fused weight * x + sum.
  void (*bag)(const RowFormat& format, const BagBatch& batch);
  /// The row's elements as float32: exact, but int8's, which are rounded once (q * scale).
  void (*decode)(const RowFormat& format, const std::byte* row, float* out);
  /// Rounds to the nearest, ties to even; leaves the state alone. What is too large for a float16
  /// becomes infinite. int8: scale = max|x| / 127, q = x / scale; a row with an element that is not
  /// finite gets a scale that is not a number, so that all of it decodes to NaN.
  void (*encode)(const RowFormat& format, const float* in, std::byte* row);
  /// sum += gradient if weight is 1, else sum = fused weight * gradient + sum.
  void (*accumulate)(float* sum, const float* gradient, float weight, uint32_t dim);
  /// One step of the format's optimizer on one row: elements and state, in place. With g the
  /// gradient after weight decay, [ ] around what is one fused operation:
  ///   kSgd             w = [w - rate g]                                         torch.optim.SGD
  ///   kMomentum        v = [momentum v + g];  w = [w - rate v]                  torch.optim.SGD
  ///   kAdagrad         s = [s + g g];  w = [w - rate (g / (sqrt(s) + epsilon))]
  ///   torch.optim.Adagrad kRowwiseAdagrad  s = s + mean(g g);  w = [w - (rate / (sqrt(s) +
  ///   epsilon)) g]
  ///                                                          FBGEMM, EXACT_ROWWISE_ADAGRAD
  ///   kAdam            m = [m + (1 - beta1) (g - m)];  v = [v + (1 - beta2) (g g - v)];
  ///                    w = [w - adam_rate (m / (sqrt(v) + epsilon))]      torch.optim.SparseAdam
  /// kMomentum has no dampening and is not Nesterov's; kAdagrad's rate does not decay. A row's
  /// moments change in those steps alone that touch the row. Elements are rounded to the nearest,
  /// so that of narrow types a step far smaller than the element itself is lost.
  void (*apply)(const RowFormat& format, const OptimizerStep& step, const float* gradient,
                std::byte* row);
};

/// Of each instruction set, from a file that is compiled for it: to be called only where the
/// processor has it, which kernelsFor() looks at.
extern const Kernels kScalarKernels;
extern const Kernels kAvx2Kernels;
extern const Kernels kAvx512Kernels;

/// The best kernels that this processor has, chosen once.
const Kernels& kernels();
/// Those of one instruction set, or null where this processor lacks it: for tests and benchmarks.
const Kernels* kernelsFor(Isa isa);

}  // namespace tidepool
