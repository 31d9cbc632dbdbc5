// SPDX-License-Identifier: Apache-2.0
// The interposed dlopen() and dlmopen(): the next ones, but for RTLD_DEEPBIND. A module that is
// opened with it finds libc before us: its free() would be given our blocks, and its munmap() would
// go past us. In assembler, since the callers' return addresses must stay: where the loader looks
// for a library, and in which namespace, depends on who asks.
#include <dlfcn.h>

#include "shim/keep_arguments.h"

namespace tidepool {
namespace {

static_assert(RTLD_DEEPBIND == 8 && LM_ID_BASE == 0);

}  // namespace
}  // namespace tidepool

extern "C" {

__attribute__((visibility("hidden"))) void* tidepool_next_dlopen = nullptr;
__attribute__((visibility("hidden"))) void* tidepool_next_dlmopen = nullptr;

/// As the library is loaded, or for a constructor that comes sooner.
__attribute__((constructor, visibility("hidden"), used)) void tidepoolFindDlopen() {
  tidepool_next_dlopen = dlsym(RTLD_NEXT, "dlopen");
  tidepool_next_dlmopen = dlsym(RTLD_NEXT, "dlmopen");
}

}  // extern "C"

asm(R"(
  .text
  .globl dlopen
  .type dlopen, @function
  .p2align 4
dlopen:
  .cfi_startproc
  and $~8, %esi
  mov tidepool_next_dlopen(%rip), %rax
  test %rax, %rax
  jz 1f
  jmp *%rax
1:
)" TP_CALL_KEEPING_ARGUMENTS("tidepoolFindDlopen") R"(
  jmp *tidepool_next_dlopen(%rip)
  .cfi_endproc
  .size dlopen, . - dlopen

  .globl dlmopen
  .type dlmopen, @function
  .p2align 4
dlmopen:
  .cfi_startproc
  # A namespace of its own has a libc of its own, and none of us.
  test %rdi, %rdi
  jnz 2f
  and $~8, %edx
2:
  mov tidepool_next_dlmopen(%rip), %rax
  test %rax, %rax
  jz 3f
  jmp *%rax
3:
)" TP_CALL_KEEPING_ARGUMENTS("tidepoolFindDlopen") R"(
  jmp *tidepool_next_dlmopen(%rip)
  .cfi_endproc
  .size dlmopen, . - dlmopen
)");
