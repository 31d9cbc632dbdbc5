// SPDX-License-Identifier: Apache-2.0
// What the heaps ask of the kernel, past every interposed function (runtime/base/raw_calls.h). They
// set errno as the libc functions do. Thread-safe, allocate nothing. Sizes are bytes.
#pragma once

#include <cstddef>
#include <cstdint>

#include "runtime/base/raw_calls.h"

namespace tidepool::raw {

inline int mincore(void* address, size_t size, unsigned char* pages) {
  return static_cast<int>(syscall(SYS_mincore, address, size, pages));
}
inline int msync(void* address, size_t size, int flags) {
  return static_cast<int>(syscall(SYS_msync, address, size, flags));
}

/// Locks what is there, and the rest as it comes.
inline int lockOnFault(uintptr_t address, size_t size) {
  return static_cast<int>(call(SYS_mlock2, address, size, MLOCK_ONFAULT));
}
/// Brings all of it in and locks it.
inline int lock(uintptr_t address, size_t size) {
  return static_cast<int>(call(SYS_mlock, address, size));
}

/// Address space without memory behind it, left out of core dumps; MAP_FAILED when there is not
/// that much.
inline void* reserve(size_t size) {
  void* const range =
      mmap(nullptr, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (range != MAP_FAILED) madvise(range, size, MADV_DONTDUMP);
  return range;
}
/// Makes part of a reservation usable: zero-filled, read and write, left out of core dumps. False
/// when refused.
inline bool commit(void* address, size_t size) {
  if (mmap(address, size, PROT_READ | PROT_WRITE,
           MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0) != address) {
    return false;
  }
  madvise(address, size, MADV_DONTDUMP);
  return true;
}

}  // namespace tidepool::raw
