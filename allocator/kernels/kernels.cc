// SPDX-License-Identifier: Apache-2.0
// Chooses kernels by what the processor has, and what is worked out once a batch.
#include "allocator/kernels/kernels.h"

#include <cmath>

namespace tidepool {
namespace {

const Kernels* best() {
  for (unsigned isa = kIsas - 1; isa > 0; --isa) {
    if (const Kernels* const found = kernelsFor(static_cast<Isa>(isa))) return found;
  }
  return &kScalarKernels;
}

/// By squaring, not by pow(): a library may round pow() as it likes.
double power(double base, uint64_t exponent) {
  double result = 1;
  for (; exponent != 0; exponent >>= 1) {
    if (exponent & 1) result *= base;
    base *= base;
  }
  return result;
}

}  // namespace

const char* isaName(Isa isa) {
  switch (isa) {
    case Isa::kScalar:
      return "scalar";
    case Isa::kAvx2:
      return "avx2";
    case Isa::kAvx512:
      return "avx512";
  }
  return "unknown";
}

OptimizerStep prepared(OptimizerStep settings) {
  const double first = 1 - power(double{settings.beta1}, settings.step);
  const double second = 1 - power(double{settings.beta2}, settings.step);
  settings.adam_rate =
      static_cast<float>(double{settings.learning_rate} * std::sqrt(second) / first);
  return settings;
}

const Kernels& kernels() {
  static const Kernels* const chosen = best();
  return *chosen;
}

const Kernels* kernelsFor(Isa isa) {
  switch (isa) {
    case Isa::kScalar:
      return &kScalarKernels;
#ifdef __x86_64__
    case Isa::kAvx2:
      return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
                     __builtin_cpu_supports("f16c")
                 ? &kAvx2Kernels
                 : nullptr;
    case Isa::kAvx512:
      return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                     __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl")
                 ? &kAvx512Kernels
                 : nullptr;
#else
    case Isa::kAvx2:
    case Isa::kAvx512:
      return nullptr;
#endif
  }
  return nullptr;
}

}  // namespace tidepool
