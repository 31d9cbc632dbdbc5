// SPDX-License-Identifier: Apache-2.0
// See next.h. Looked up by a constructor: dlsym() is nothing for a signal handler.
#include "shim/next.h"

#include <dlfcn.h>

#include <cerrno>
#include <cstring>

#include "shim/engine.h"

namespace tidepool {

constinit NextCalls next_calls;
__thread uint32_t t_passing_on = 0;

extern "C" {
// For the assembler of syscall(): null if it is libc's own, which does what ours does.
__attribute__((visibility("hidden"))) long (*tidepool_next_syscall)(long, ...) = nullptr;
}

namespace {

/// Whether a function begins as libc's system calls do: mov $number, %eax; syscall. Whoever patches
/// one does so there, and may have done so before us.
bool isPlainCall(const void* function, long number) {
  constexpr unsigned char kLanding[] = {0xf3, 0x0f, 0x1e, 0xfa};  // endbr64
  constexpr unsigned char kEnter[] = {0x0f, 0x05};
  const auto* text = static_cast<const unsigned char*>(function);
  if (memcmp(text, kLanding, sizeof kLanding) == 0) text += sizeof kLanding;
  const auto wanted = static_cast<uint32_t>(number);
  return text[0] == 0xb8 && memcmp(text + 1, &wanted, sizeof wanted) == 0 &&
         memcmp(text + 1 + sizeof wanted, kEnter, sizeof kEnter) == 0;
}

template <typename Function>
void find(Function*& to, const char* name) {
  to = reinterpret_cast<Function*>(dlsym(RTLD_NEXT, name));
}

bool isLibcs(const void* function) {
  Dl_info its, libcs;
  const void* const known = dlsym(RTLD_NEXT, "gnu_get_libc_version");
  return dladdr(function, &its) == 0 || dladdr(known, &libcs) == 0 ||
         its.dli_fbase == libcs.dli_fbase;
}

__attribute__((constructor)) void findNext() {
  find(next_calls.mmap, "mmap");
  find(next_calls.munmap, "munmap");
  find(next_calls.mremap, "mremap");
  find(next_calls.mprotect, "mprotect");
  find(next_calls.madvise, "madvise");
  find(next_calls.mincore, "mincore");
  find(next_calls.msync, "msync");
  find(next_calls.mlockall, "mlockall");
  find(next_calls.pkey_mprotect, "pkey_mprotect");
  find(next_calls.remap_file_pages, "remap_file_pages");
  find(next_calls.process_madvise, "process_madvise");
  find(next_calls.shmat, "shmat");
  find(next_calls.ioctl, "ioctl");
  find(next_calls.close, "close");
  find(next_calls.close_range, "close_range");
  find(next_calls.dup2, "dup2");
  find(next_calls.dup3, "dup3");
  find(next_calls.fcntl, "fcntl");
  find(tidepool_next_syscall, "syscall");
  if (isLibcs(reinterpret_cast<void*>(tidepool_next_syscall))) tidepool_next_syscall = nullptr;
}

}  // namespace

bool unmapsAreWatched() {
  return next_calls.munmap != nullptr && t_thread_mode != ThreadMode::kInternal &&
         !isPlainCall(reinterpret_cast<const void*>(next_calls.munmap), SYS_munmap);
}

void tellWatchers(uintptr_t address, size_t size) {
  if (!unmapsAreWatched()) return;
  const int saved_errno = errno;
  passed::madvise(reinterpret_cast<void*>(address), size, MADV_DONTNEED);
  errno = saved_errno;
}

}  // namespace tidepool
