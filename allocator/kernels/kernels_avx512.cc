// SPDX-License-Identifier: Apache-2.0
// The kernels compiled for AVX-512 (F, BW, DQ, VL). It emits nothing that other files could link to
// but its table.
#include "allocator/kernels/block_avx512.h"
#include "allocator/kernels/make_kernels.h"

namespace tidepool {

constexpr Kernels kAvx512Kernels = kernelsOf<Avx512>(Isa::kAvx512);

}  // namespace tidepool
