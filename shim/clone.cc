// SPDX-License-Identifier: Apache-2.0
// The interposed functions that copy the process without fork()'s handlers. What shares memory with
// the caller, and all of it where nothing is managed, is libc's. Async-signal-safe.
#include <sched.h>
#include <sys/types.h>

#include <cerrno>
#include <csignal>
#include <cstdarg>

#include "shim/copy_process.h"
#include "shim/export.h"
#include "shim/futex_wait.h"
#include "shim/next_definition.h"

namespace tidepool {
namespace {

// Found as the library is loaded: dlsym() is nothing for a signal handler.
using Fork = pid_t();
using Clone = int(int (*)(void*), void*, int, void*, pid_t*, void*, pid_t*);
Fork* libc_fork;
Clone* libc_clone;

__attribute__((constructor)) void findLibcs() {
  libc_fork = nextDefinition<Fork>("_Fork");
  libc_clone = nextDefinition<Clone>("clone");
}

/// errno and -1 for a negative errno value.
int outcome(long made) {
  if (made >= 0) return static_cast<int>(made);
  errno = static_cast<int>(-made);
  return -1;
}

/// In the child of clone(): the rest of its life, on the stack that it was given.
[[noreturn]] void live(const Landing& landing, int (*function)(void*), void* argument) {
  register void* fourth asm("r8") = argument;
  asm volatile(
      "test %[thread], %[thread]\n\t"
      "jz 1f\n\t"
      "mov $158, %%eax\n\t"     // arch_prctl
      "mov $0x1002, %%edi\n\t"  // ARCH_SET_FS
      "syscall\n"
      "1:\n\t"
      "mov %[stack], %%rsp\n\t"
      "xor %%ebp, %%ebp\n\t"
      "mov %[argument], %%rdi\n\t"
      "call *%[function]\n\t"
      "mov %%eax, %%edi\n\t"
      "mov $231, %%eax\n\t"  // exit_group: Tidepool's threads end, too
      "syscall\n\t"
      "hlt"
      :
      : [thread] "S"(landing.thread_pointer), [stack] "b"(landing.stack & ~uint64_t{15}),
        [function] "d"(function), [argument] "r"(fourth)
      : "rax", "rdi", "rcx", "r11", "memory");
  __builtin_unreachable();
}

}  // namespace
}  // namespace tidepool

using namespace tidepool;

extern "C" {

TP_EXPORT pid_t _Fork() noexcept {
  if (!copiesMemory(0)) return (libc_fork != nullptr ? libc_fork : nextDefinition<Fork>("_Fork"))();
  const CopyRequest request = olderRequest(SIGCHLD, nullptr, nullptr, nullptr, nullptr);
  Landing landing;
  return outcome(copyProcess(request, &landing));
}

TP_EXPORT int clone(int (*function)(void*), void* stack, int flags, void* argument, ...) noexcept {
  va_list rest;
  va_start(rest, argument);
  auto* parent_tid = va_arg(rest, pid_t*);
  void* thread_pointer = va_arg(rest, void*);
  auto* child_tid = va_arg(rest, pid_t*);
  va_end(rest);
  const auto bits = static_cast<unsigned>(flags);
  if (!copiesMemory(bits) || function == nullptr || stack == nullptr) {
    keepThreadWord(bits, reinterpret_cast<uintptr_t>(child_tid));
    Clone* real = libc_clone != nullptr ? libc_clone : nextDefinition<Clone>("clone");
    return real(function, stack, flags, argument, parent_tid, thread_pointer, child_tid);
  }
  const CopyRequest request = olderRequest(bits, stack, parent_tid, child_tid, thread_pointer);
  Landing landing;
  const long made = copyProcess(request, &landing);
  if (made == 0) live(landing, function, argument);
  return outcome(made);
}

int __clone(int (*function)(void*), void* stack, int flags, void* argument, ...) noexcept
    __attribute__((alias("clone"), visibility("default")));

}  // extern "C"
