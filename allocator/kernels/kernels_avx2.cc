// SPDX-License-Identifier: Apache-2.0
// The kernels compiled for AVX2, FMA and F16C. It emits nothing that other files could link to but
// its table.
#include "allocator/kernels/block_avx2.h"
#include "allocator/kernels/make_kernels.h"

namespace tidepool {

constexpr Kernels kAvx2Kernels = kernelsOf<Avx2>(Isa::kAvx2);

}  // namespace tidepool
