// SPDX-License-Identifier: Apache-2.0
// Memory system calls that go straight to the kernel, past our own interposed functions. They set
// errno as the libc functions do. Thread-safe, allocate nothing. Sizes are bytes.
#pragma once

#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>

namespace tidepool::raw {

inline void* mmap(void* address, size_t size, int protection, int flags, int fd, off_t offset) {
  return reinterpret_cast<void*>(syscall(SYS_mmap, address, size, protection, flags, fd, offset));
}
inline int munmap(void* address, size_t size) {
  return static_cast<int>(syscall(SYS_munmap, address, size));
}
inline void* mremap(void* address, size_t old_size, size_t new_size, int flags, void* target) {
  return reinterpret_cast<void*>(syscall(SYS_mremap, address, old_size, new_size, flags, target));
}
inline int mprotect(void* address, size_t size, int protection) {
  return static_cast<int>(syscall(SYS_mprotect, address, size, protection));
}
inline int madvise(void* address, size_t size, int advice) {
  return static_cast<int>(syscall(SYS_madvise, address, size, advice));
}

inline int mincore(void* address, size_t size, unsigned char* pages) {
  return static_cast<int>(syscall(SYS_mincore, address, size, pages));
}
inline int msync(void* address, size_t size, int flags) {
  return static_cast<int>(syscall(SYS_msync, address, size, flags));
}

/// Locks what is there, and the rest as it comes.
inline int lockOnFault(uintptr_t address, size_t size) {
  return static_cast<int>(syscall(SYS_mlock2, address, size, MLOCK_ONFAULT));
}
/// Brings all of it in and locks it.
inline int lock(uintptr_t address, size_t size) {
  return static_cast<int>(syscall(SYS_mlock, address, size));
}

/// Address space without memory behind it; MAP_FAILED when there is not that much.
inline void* reserve(size_t size) {
  return mmap(nullptr, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
}
/// Makes part of a reservation usable: zero-filled, read and write. False when refused.
inline bool commit(void* address, size_t size) {
  return mmap(address, size, PROT_READ | PROT_WRITE,
              MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0) == address;
}

}  // namespace tidepool::raw
