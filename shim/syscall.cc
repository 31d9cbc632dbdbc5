// SPDX-License-Identifier: Apache-2.0
// The interposed syscall(): libc's own, but for those calls that copy the process. It is in
// assembler because a child that shares its parent's stack, as with SYS_vfork, must leave nothing
// on it, and one with a stack of its own returns there. And those that sleep until a word changes
// of which others than this process may know: it stays where they find the sleeper.
// Async-signal-safe; no other call costs more than seven comparisons.
#include <linux/futex.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstring>

#include "shim/copy_process.h"
#include "shim/futex_wait.h"

namespace tidepool {
namespace {

/// Reads what a program gave to clone3(2). False: the kernel would not read it, and says why.
bool readRequest(uint64_t from, size_t size, CopyRequest* request) {
  if (size < CLONE_ARGS_SIZE_VER0) return false;
  void* const address = reinterpret_cast<void*>(static_cast<uintptr_t>(from));
  const size_t known = std::min(size, sizeof request->bytes);
  const iovec to = {request->bytes, known};
  const iovec there = {address, known};
  const int saved_errno = errno;
  const ssize_t read = process_vm_readv(getpid(), &to, 1, &there, 1, 0);
  const bool bad = read >= 0 ? static_cast<size_t>(read) != known : errno == EFAULT;
  errno = saved_errno;
  if (bad) return false;
  if (read < 0) memcpy(request->bytes, address, known);  // not allowed to ask
  request->size = size;
  return true;
}

}  // namespace
}  // namespace tidepool

using namespace tidepool;

extern "C" {

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
  CopyRequest request;
  long made = -E2BIG;
  if (number == SYS_fork) {
    request = olderRequest(SIGCHLD, nullptr, nullptr, nullptr, nullptr);
    made = copyProcess(request, landing);
  } else if (number == SYS_clone) {
    const auto pointer = [](uint64_t word) { return reinterpret_cast<void*>(word); };
    request = olderRequest(static_cast<unsigned>(first), pointer(second), pointer(third),
                           pointer(fourth), pointer(fifth));
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

static_assert(SYS_clone == 56 && SYS_fork == 57 && SYS_clone3 == 435 && SYS_arch_prctl == 158);
static_assert(SYS_futex == 202 && kFutexWaitv == 449 && kFutexWait == 455 &&
              SYS_set_tid_address == 218 && SYS_set_robust_list == 273);

asm(R"(
  .text
  .globl syscall
  .type syscall, @function
  .p2align 4
syscall:
  .cfi_startproc
  lea -56(%rdi), %rax
  cmp $1, %rax
  jbe 2f
  cmp $435, %rdi
  je 2f
  cmp $202, %rdi
  je 2f
  cmp $449, %rdi
  je 2f
  cmp $455, %rdi
  je 2f
  cmp $218, %rdi
  je 2f
  cmp $273, %rdi
  je 2f
1:
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
  push %rdi
  .cfi_adjust_cfa_offset 8
  push %rsi
  .cfi_adjust_cfa_offset 8
  push %rdx
  .cfi_adjust_cfa_offset 8
  push %rcx
  .cfi_adjust_cfa_offset 8
  push %r8
  .cfi_adjust_cfa_offset 8
  push %r9
  .cfi_adjust_cfa_offset 8
  sub $8, %rsp
  .cfi_adjust_cfa_offset 8
  call tidepoolMakesCall
  add $8, %rsp
  .cfi_adjust_cfa_offset -8
  pop %r9
  .cfi_adjust_cfa_offset -8
  pop %r8
  .cfi_adjust_cfa_offset -8
  pop %rcx
  .cfi_adjust_cfa_offset -8
  pop %rdx
  .cfi_adjust_cfa_offset -8
  pop %rsi
  .cfi_adjust_cfa_offset -8
  pop %rdi
  .cfi_adjust_cfa_offset -8
  test %al, %al
  jz 1b
  # The seventh argument, a pointer to a Landing, the eighth, which is the call's sixth, and the Landing.
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
5:
  neg %eax
  mov %eax, %edi
  jmp tidepoolCallFailed
  .cfi_endproc
  .size syscall, . - syscall
)");
