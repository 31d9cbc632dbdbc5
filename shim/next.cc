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

constexpr size_t kPatched = 16;  // whoever patches a function begins at its beginning
char munmap_text[kPatched];

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
  if (next_calls.munmap != nullptr) {
    memcpy(munmap_text, reinterpret_cast<const void*>(next_calls.munmap), kPatched);
  }
}

}  // namespace

bool unmapsAreWatched() {
  return next_calls.munmap != nullptr && t_thread_mode != ThreadMode::kInternal &&
         memcmp(reinterpret_cast<const void*>(next_calls.munmap), munmap_text, kPatched) != 0;
}

void tellWatchers(uintptr_t address, size_t size) {
  if (!unmapsAreWatched()) return;
  const int saved_errno = errno;
  passed::madvise(reinterpret_cast<void*>(address), size, MADV_DONTNEED);
  errno = saved_errno;
}

}  // namespace tidepool
