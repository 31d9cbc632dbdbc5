// SPDX-License-Identifier: Apache-2.0
// The definitions behind ours: another preload's, or libc's. What the program asks of the kernel
// passes on through them, so that others who interpose, or patch, those functions see the call, as
// without us. What Tidepool itself asks of the kernel goes straight there (raw_syscalls.h).
// Thread-safe and async-signal-safe; before the library is loaded wholly there are none, and the
// kernel is called.
#pragma once

#include <sys/types.h>
#include <sys/uio.h>

#include <cstddef>
#include <cstdint>

#include "allocator/arena/raw_syscalls.h"
#include "shim/internal_scope.h"

namespace tidepool {

/// Filled once, as the library is loaded; null where nobody behind us has such a function.
struct NextCalls {
  void* (*mmap)(void*, size_t, int, int, int, off_t) = nullptr;
  int (*munmap)(void*, size_t) = nullptr;
  void* (*mremap)(void*, size_t, size_t, int, ...) = nullptr;
  int (*mprotect)(void*, size_t, int) = nullptr;
  int (*madvise)(void*, size_t, int) = nullptr;
  int (*mincore)(void*, size_t, unsigned char*) = nullptr;
  int (*msync)(void*, size_t, int) = nullptr;
  int (*mlockall)(int) = nullptr;
  int (*pkey_mprotect)(void*, size_t, int, int) = nullptr;
  int (*remap_file_pages)(void*, size_t, int, size_t, int) = nullptr;
  ssize_t (*process_madvise)(int, const iovec*, size_t, int, unsigned) = nullptr;
  void* (*shmat)(int, const void*, int) = nullptr;
  int (*ioctl)(int, unsigned long, ...) = nullptr;
  int (*close)(int) = nullptr;
  int (*close_range)(unsigned, unsigned, int) = nullptr;
  int (*dup2)(int, int) = nullptr;
  int (*dup3)(int, int, int) = nullptr;
  int (*fcntl)(int, int, ...) = nullptr;
};
extern NextCalls next_calls;

/// How many calls of the thread are on their way to the next definition: what that one asks of
/// syscall() is for the kernel, not for us once more.
extern __thread uint32_t t_passing_on __attribute__((tls_model("initial-exec")));

/// Calls `next` if it is the program that asks, else `kernel`.
template <typename Next, typename Kernel, typename... Arguments>
auto passOn(Next next, Kernel kernel, Arguments... arguments) {
  if (next == nullptr || t_thread_mode == ThreadMode::kInternal) return kernel(arguments...);
  ++t_passing_on;
  const auto result = next(arguments...);
  --t_passing_on;
  return result;
}

// As in raw_syscalls.h, for the program.
namespace passed {

inline void* mmap(void* address, size_t size, int protection, int flags, int fd, off_t offset) {
  return passOn(next_calls.mmap, raw::mmap, address, size, protection, flags, fd, offset);
}
inline int munmap(void* address, size_t size) {
  return passOn(next_calls.munmap, raw::munmap, address, size);
}
inline void* mremap(void* address, size_t old_size, size_t new_size, int flags, void* target) {
  return passOn(next_calls.mremap, raw::mremap, address, old_size, new_size, flags, target);
}
inline int mprotect(void* address, size_t size, int protection) {
  return passOn(next_calls.mprotect, raw::mprotect, address, size, protection);
}
inline int madvise(void* address, size_t size, int advice) {
  return passOn(next_calls.madvise, raw::madvise, address, size, advice);
}
inline int msync(void* address, size_t size, int flags) {
  return passOn(next_calls.msync, raw::msync, address, size, flags);
}

}  // namespace passed

/// True if somebody has patched libc's munmap to be told of what is unmapped, as UCX does for its
/// cache of registered memory, or interposes it behind us.
bool unmapsAreWatched();

/// Managed memory is about to lose its contents: tells those who watch. They hear of an madvise()
/// with MADV_DONTNEED, which does no harm there.
void tellWatchers(uintptr_t address, size_t size);

}  // namespace tidepool
