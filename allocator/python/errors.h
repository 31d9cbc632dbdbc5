// SPDX-License-Identifier: Apache-2.0
// From errors as values to Python's exceptions: which class stands for which code is said in
// tidepool/errors.py. All functions need the GIL.
#pragma once

#include <pybind11/pybind11.h>

#include "runtime/base/result.h"

namespace tidepool::python {

/// Raises the exception of the error's code.
[[noreturn]] void raise(const Error& error);
/// Raises the one of kInvalidArgument that is an IndexError, too: an id that no row has.
[[noreturn]] void raiseIndex(const Error& error);
/// Raises the one for tables and spaces that are closed or another process's.
[[noreturn]] void raiseUnusable(const char* text);

/// The value, or the exception of the error.
template <typename T>
T valueOf(Result<T> result) {
  if (!result) raise(result.error());
  return std::move(*result);
}
inline void check(const Status& status) {
  if (!status) raise(status.error());
}

}  // namespace tidepool::python
