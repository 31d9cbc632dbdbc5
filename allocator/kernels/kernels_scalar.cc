// SPDX-License-Identifier: Apache-2.0
// The kernels for any processor. It emits nothing that other files could link to but its table.
#include "allocator/kernels/block_scalar.h"
#include "allocator/kernels/make_kernels.h"

namespace tidepool {

constexpr Kernels kScalarKernels = kernelsOf<Scalar>(Isa::kScalar);

}  // namespace tidepool
