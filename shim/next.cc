// SPDX-License-Identifier: Apache-2.0
// See next.h. Looked up by a constructor: dlsym() is nothing for a signal handler.
#include "shim/next.h"

#include <dlfcn.h>

#include <cerrno>
#include <cstring>

#include "shim/engine.h"
#include "shim/libc_state.h"
#include "shim/next_definition.h"

namespace tidepool {

constinit NextCalls next_calls;
__thread uint32_t t_passing_on = 0;

extern "C" {
// For the assembler of syscall(): null if it is libc's own, which does what ours does.
__attribute__((visibility("hidden"))) long (*tidepool_next_syscall)(long, ...) = nullptr;
}

namespace {

/// Whether a function begins as libc's system calls do: mov $number, %eax; syscall. That is where
/// a library patches one, and may have done so before us.
bool isPlainCall(const void* function, long number) {
  constexpr unsigned char kLanding[] = {0xf3, 0x0f, 0x1e, 0xfa};  // endbr64
  constexpr unsigned char kEnter[] = {0x0f, 0x05};
  const auto* text = static_cast<const unsigned char*>(function);
  if (memcmp(text, kLanding, sizeof kLanding) == 0) text += sizeof kLanding;
  const auto wanted = static_cast<uint32_t>(number);
  return text[0] == 0xb8 && memcmp(text + 1, &wanted, sizeof wanted) == 0 &&
         memcmp(text + 1 + sizeof wanted, kEnter, sizeof kEnter) == 0;
}

bool isLibcs(const void* function) {
  const LoadedObject its = loadedObject(function);
  const LoadedObject libcs = loadedObject(dlsym(RTLD_NEXT, "gnu_get_libc_version"));
  return its.size == 0 || libcs.size == 0 || its.start == libcs.start;
}

__attribute__((constructor)) void findNext() {
  findNextDefinition(next_calls.mmap, "mmap");
  findNextDefinition(next_calls.munmap, "munmap");
  findNextDefinition(next_calls.mremap, "mremap");
  findNextDefinition(next_calls.mprotect, "mprotect");
  findNextDefinition(next_calls.madvise, "madvise");
  findNextDefinition(next_calls.mincore, "mincore");
  findNextDefinition(next_calls.msync, "msync");
  findNextDefinition(next_calls.mlockall, "mlockall");
  findNextDefinition(next_calls.pkey_mprotect, "pkey_mprotect");
  findNextDefinition(next_calls.remap_file_pages, "remap_file_pages");
  findNextDefinition(next_calls.process_madvise, "process_madvise");
  findNextDefinition(next_calls.shmat, "shmat");
  findNextDefinition(next_calls.ioctl, "ioctl");
  findNextDefinition(next_calls.close, "close");
  findNextDefinition(next_calls.close_range, "close_range");
  findNextDefinition(next_calls.dup2, "dup2");
  findNextDefinition(next_calls.dup3, "dup3");
  findNextDefinition(next_calls.fcntl, "fcntl");
  findNextDefinition(tidepool_next_syscall, "syscall");
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
