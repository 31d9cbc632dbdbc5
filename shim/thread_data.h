// SPDX-License-Identifier: Apache-2.0
// Tells the one kind of block that libc allocates for itself and touches in the child of a fork()
// before any handler has run: the second-level tables of pthread_setspecific(), which it clears for
// the threads that the child does not have. They must not lie in far memory, where there is nobody
// yet to fetch them. Thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>

namespace tidepool {

/// Once, before memory is managed.
void findThreadDataCaller();

extern uintptr_t thread_data_caller;  // the function that allocates them

// glibc's PTHREAD_KEY_2NDLEVEL_SIZE entries of two words.
inline constexpr size_t kThreadDataEntries = 32;
inline constexpr size_t kThreadDataBytes = kThreadDataEntries * 16;

/// `caller` is where calloc() returns to.
inline bool isThreadData(size_t count, size_t bytes, const void* caller) {
  constexpr uintptr_t kLargestFunction = 512;
  return bytes == kThreadDataBytes && count == kThreadDataEntries &&
         reinterpret_cast<uintptr_t>(caller) - thread_data_caller < kLargestFunction;
}

}  // namespace tidepool
