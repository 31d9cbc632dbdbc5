// SPDX-License-Identifier: Apache-2.0
// The interposed syscall(): libc's own, but for those calls that copy the process. It is in
// assembler because a child that shares its parent's stack, as with SYS_vfork, must leave nothing
// on it, and one with a stack of its own returns there. And those that sleep until a word changes
// of which others than this process may know: it stays where they find the sleeper.
// And those on memory and on descriptors that concern us: each ends in the interposed function of
// its name. Async-signal-safe; any other call costs one look into a table.
#include <fcntl.h>
#include <linux/futex.h>
#include <linux/seccomp.h>
#include <linux/userfaultfd.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/shm.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <initializer_list>

#include "runtime/base/own_fds.h"
#include "shim/copy_process.h"
#include "shim/engine.h"
#include "shim/exec.h"
#include "shim/futex_wait.h"
#include "shim/keep_arguments.h"
#include "shim/mapping_calls.h"
#include "shim/next.h"
#include "shim/pieces.h"

namespace tidepool {
namespace {

/// Reads what a program gave to clone3(2). False: the kernel would not read it, and says why.
bool readRequest(uint64_t from, size_t size, CopyRequest* request) {
  if (size < CLONE_ARGS_SIZE_VER0) return false;
  if (!readOwn(from, request->bytes, std::min(size, sizeof request->bytes))) return false;
  request->size = size;
  return true;
}

template <typename T>
T* pointer(uint64_t word) {
  return reinterpret_cast<T*>(static_cast<uintptr_t>(word));
}

/// Or asks whether it could.
bool setsFilter(uint64_t number, uint64_t first) {
  return (number == SYS_prctl && first == PR_SET_SECCOMP) ||
         (number == SYS_seccomp && first <= SECCOMP_SET_MODE_FILTER);
}

/// Whether a call on memory, or on descriptors, is one that we answer, or that we make.
bool concernsUs(uint64_t number, uint64_t first, uint64_t second) {
  if (t_thread_mode == ThreadMode::kInternal || t_passing_on > 0) return false;
  // What is executed inherits us, managed or not; and a process that is asleep may wake up.
  if (number == SYS_execve || number == SYS_execveat) return true;
  if (managed_runtime == nullptr) {
    if (!isAsleep()) return false;
    return number == SYS_mmap || number == SYS_mlockall || number == SYS_exit_group ||
           setsFilter(number, first);
  }
  switch (number) {
    case SYS_close:
    case SYS_fcntl:
      return isOwnFd(static_cast<int>(first));
    case SYS_dup2:
    case SYS_dup3:
      return isOwnFd(static_cast<int>(first)) || isOwnFd(static_cast<int>(second));
    case SYS_ioctl:
      return true;
    case SYS_prctl:
    case SYS_seccomp:
      return setsFilter(number, first);
    case SYS_munmap:
    case SYS_mprotect:
    case SYS_madvise:
    case SYS_mincore:
    case SYS_msync:
    case SYS_pkey_mprotect:
    case SYS_remap_file_pages:
      return touchesManaged(first, roundUp(second, kPageSize));
    default:
      return true;
  }
}

long fromPointer(const void* address) { return reinterpret_cast<long>(address); }

int number(uint64_t word) { return static_cast<int>(word); }

/// As the interposed function of that name: those that are not about mappings.
long callOnProcess(const SystemCall& call) {
  const auto& [a, b, c, d, e, f] = call.arguments;
  switch (call.number) {
    case SYS_close_range:
      return close_range(static_cast<unsigned>(a), static_cast<unsigned>(b), number(c));
    case SYS_execve:
      return executeByNumber(AT_FDCWD, pointer<char>(a), pointer<char*>(b), pointer<char*>(c), 0);
    case SYS_execveat:
      return executeByNumber(number(a), pointer<char>(b), pointer<char*>(c), pointer<char*>(d),
                             number(e));
    case SYS_exit_group:
      _exit(number(a));
    case SYS_prctl:
      return prctl(number(a), b, c, d, e);
    case SYS_seccomp: {
      // Without an argument it is a question.
      const auto set = [&] { return raw::call(SYS_seccomp, a, b, c); };
      return a == SECCOMP_SET_MODE_FILTER && c == 0 ? set() : setFilter(set);
    }
    default:  // a descriptor of ours, which is not open
      errno = EBADF;
      return -1;
  }
}

/// As the interposed function of that name.
long callOurs(const SystemCall& call) {
  const auto& [a, b, c, d, e, f] = call.arguments;
  void* const address = pointer<void>(a);
  switch (call.number) {
    case SYS_mmap:
      return fromPointer(mmap(address, b, number(c), number(d), number(e), static_cast<off_t>(f)));
    case SYS_mprotect:
      return mprotect(address, b, number(c));
    case SYS_munmap:
      return munmap(address, b);
    case SYS_ioctl:
      return ioctl(number(a), b, pointer<void>(c));
    case SYS_mremap:
      return fromPointer(mremap(address, b, c, number(d), pointer<void>(e)));
    case SYS_msync:
      return msync(address, b, number(c));
    case SYS_mincore:
      return mincore(address, b, pointer<unsigned char>(c));
    case SYS_madvise:
      return madvise(address, b, number(c));
    case SYS_shmat:
      return fromPointer(shmat(number(a), pointer<void>(b), number(c)));
    case SYS_mlockall:
      return mlockall(number(a));
    case SYS_remap_file_pages:
      return remap_file_pages(address, b, number(c), d, number(e));
    case SYS_pkey_mprotect:
      return pkey_mprotect(address, b, number(c), number(d));
    case SYS_process_madvise:
      return process_madvise(number(a), pointer<iovec>(b), c, number(d), static_cast<unsigned>(e));
    default:
      return callOnProcess(call);
  }
}

bool copies(uint64_t number) {
  return number == SYS_fork || number == SYS_clone || number == SYS_clone3;
}

}  // namespace
}  // namespace tidepool

using namespace tidepool;

extern "C" {

#define TP_HIDDEN __attribute__((visibility("hidden")))
#define TP_FROM_ASSEMBLER __attribute__((visibility("hidden"), used))

/// Whether it is one of the calls that we make, with its first arguments.
TP_FROM_ASSEMBLER bool tidepoolMakesCall(uint64_t number, uint64_t first, uint64_t second, uint64_t,
                                         uint64_t fourth) {
  CopyRequest request;
  if (number == SYS_futex) return waitsForShared(first, static_cast<int>(second));
  if (number == kFutexWaitv || number == kFutexWait) {
    return waitsForNewer(number, first, second, fourth);
  }
  switch (number) {
    case SYS_set_tid_address:
      keepThreadWord(CLONE_CHILD_CLEARTID, first);
      return false;
    case SYS_set_robust_list:
      keepLocal(reinterpret_cast<void*>(first), sizeof(robust_list_head));
      return false;
    case SYS_fork:
      return copiesMemory(0);
    case SYS_clone:
      if (copiesMemory(first)) return true;
      keepThreadWord(first, fourth);
      return false;
    default:
      return concernsUs(number, first, second);
    case SYS_clone3:
      if (!readRequest(first, second, &request)) return false;
      if (copiesMemory(request.args.flags)) return true;
      keepThreadWord(request.args.flags, request.args.child_tid);
      return false;
  }
}

TP_FROM_ASSEMBLER long tidepoolCall(uint64_t number, uint64_t first, uint64_t second,
                                    uint64_t third, uint64_t fourth, uint64_t fifth,
                                    Landing* landing, uint64_t sixth) {
  if (number == SYS_futex || number == kFutexWaitv || number == kFutexWait) {
    const SystemCall call = {number, {first, second, third, fourth, fifth, sixth}};
    return waitInPlace(call);
  }
  if (!copies(number)) return callOurs({number, {first, second, third, fourth, fifth, sixth}});
  CopyRequest request;
  long made = -E2BIG;
  if (number == SYS_fork) {
    request = olderRequest(SIGCHLD, nullptr, nullptr, nullptr, nullptr);
    made = copyProcess(request, landing);
  } else if (number == SYS_clone) {
    request = olderRequest(static_cast<unsigned>(first), pointer<void>(second),
                           pointer<void>(third), pointer<void>(fourth), pointer<void>(fifth));
    made = copyProcess(request, landing);
  } else if (readRequest(first, second, &request) && request.size <= sizeof request.bytes) {
    made = copyProcess(request, landing);
  }
  if (made >= 0) return made;
  errno = static_cast<int>(-made);
  return -1;
}

TP_FROM_ASSEMBLER long tidepoolCallFailed(int error) {
  errno = error;
  return -1;
}

}  // extern "C"

static_assert(SYS_arch_prctl == 158);

// One byte for each call: whether it is looked at.
constexpr size_t kNumbers = 512;
using Looks = std::array<uint8_t, kNumbers>;
constexpr Looks looksAt(std::initializer_list<long> numbers) {
  Looks looks{};
  for (const long number : numbers) looks[static_cast<size_t>(number)] = 1;
  return looks;
}
TP_HIDDEN extern const Looks tidepool_looks;  // else it would be no symbol
const Looks tidepool_looks = looksAt({SYS_fork,
                                      SYS_clone,
                                      SYS_clone3,
                                      SYS_futex,
                                      kFutexWaitv,
                                      kFutexWait,
                                      SYS_set_tid_address,
                                      SYS_set_robust_list,
                                      SYS_mmap,
                                      SYS_mprotect,
                                      SYS_munmap,
                                      SYS_ioctl,
                                      SYS_mremap,
                                      SYS_msync,
                                      SYS_mincore,
                                      SYS_madvise,
                                      SYS_shmat,
                                      SYS_mlockall,
                                      SYS_remap_file_pages,
                                      SYS_pkey_mprotect,
                                      SYS_close,
                                      SYS_dup2,
                                      SYS_dup3,
                                      SYS_fcntl,
                                      SYS_close_range,
                                      SYS_exit_group,
                                      SYS_process_madvise,
                                      SYS_execve,
                                      SYS_execveat,
                                      SYS_prctl,
                                      SYS_seccomp});

// __wrap_syscall is what our own calls of syscall() are linked with: straight to the kernel.
asm(R"(
  .text
  .hidden __wrap_syscall
  .globl __wrap_syscall
  .type __wrap_syscall, @function
  .globl syscall
  .type syscall, @function
  .p2align 4
syscall:
  .cfi_startproc
  cmp $511, %rdi
  ja 6f
  lea tidepool_looks(%rip), %rax
  cmpb $0, (%rax,%rdi)
  jne 2f
6:
  mov tidepool_next_syscall(%rip), %r11
  test %r11, %r11
  jnz 7f
__wrap_syscall:
  mov %rdi, %rax
  mov %rsi, %rdi
  mov %rdx, %rsi
  mov %rcx, %rdx
  mov %r8, %r10
  mov %r9, %r8
  mov 8(%rsp), %r9
  syscall
  cmp $-4095, %rax
  jae 5f
  ret
2:
)" TP_CALL_KEEPING_ARGUMENTS("tidepoolMakesCall") R"(
  test %al, %al
  jz 6b
  # The seventh argument, a pointer to a Landing; the eighth, the call's sixth; the Landing.
  sub $40, %rsp
  .cfi_adjust_cfa_offset 40
  mov 48(%rsp), %rax
  mov %rax, 8(%rsp)
  movq $0, 16(%rsp)
  movq $0, 24(%rsp)
  lea 16(%rsp), %rax
  mov %rax, (%rsp)
  call tidepoolCall
  mov 16(%rsp), %r8
  mov 24(%rsp), %rsi
  add $40, %rsp
  .cfi_adjust_cfa_offset -40
  test %rsi, %rsi
  jz 3f
  mov $158, %eax
  mov $0x1002, %edi
  syscall
  xor %eax, %eax
3:
  test %r8, %r8
  jz 4f
  mov %r8, %rsp
4:
  ret
7:
  xor %eax, %eax
  jmp *%r11
5:
  neg %eax
  mov %eax, %edi
  jmp tidepoolCallFailed
  .cfi_endproc
  .size syscall, . - syscall
  .size __wrap_syscall, . - __wrap_syscall
)");
