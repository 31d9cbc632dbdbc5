// SPDX-License-Identifier: Apache-2.0
// The kernels of each instruction set, each from a file of its own that is compiled for that set.
// To be called only where the processor has it.
#pragma once

#include "allocator/kernels/kernels.h"

namespace tidepool {

extern const Kernels kScalarKernels;
extern const Kernels kAvx2Kernels;
extern const Kernels kAvx512Kernels;

}  // namespace tidepool
