// SPDX-License-Identifier: Apache-2.0
// The OpenMP threads of other libraries in the process, PyTorch say.
#pragma once

namespace tidepool::python {

/// Has tables' calls share their work among the threads of the process's OpenMP library, if one is
/// loaded for all to see that has GCC's interface (libgomp, and LLVM's and Intel's too). False if
/// not.
bool shareOpenmpThreads();

}  // namespace tidepool::python
