// SPDX-License-Identifier: Apache-2.0
// The last failure of the calling thread, and the one way in which the C API's functions end.
#pragma once

#include <bit>
#include <type_traits>

#include "allocator/include/tidepool/tidepool.h"
#include "runtime/base/result.h"

namespace tidepool {

/// Keeps it for the thread, and says what to return.
tidepool_status report(const Error& error);
/// TIDEPOOL_OK, or the failure reported.
tidepool_status report(const Status& status);
/// Of a handle whose object is gone; `what` is "context", "heap".
tidepool_status reportClosed(const char* what);
/// `parameter` is the name of one that may not be NULL.
tidepool_status reportNull(const char* parameter);

/// The number in an enumerator that a C program gave. There it may be any; C++ must not even look
/// at one that is none of its own, so it is taken as bytes, by reference.
template <typename Enum>
std::underlying_type_t<Enum> numberOf(const Enum& given) {
  return std::bit_cast<std::underlying_type_t<Enum>>(given);
}

}  // namespace tidepool
