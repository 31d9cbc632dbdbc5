// SPDX-License-Identifier: Apache-2.0
// A list of stacks that only grows; the thread that marks one as busy has it.
#include "runtime/base/own_stack.h"

#include <sys/mman.h>
#include <sys/syscall.h>

#include "runtime/base/mapping.h"
#include "runtime/base/raw_calls.h"

namespace tidepool {

#if defined(__x86_64__) && !defined(TIDEPOOL_SANITIZED)

extern "C" __attribute__((visibility("hidden"))) void tidepoolEnterStack(void (*body)(void*),
                                                                         void* argument, void* top);

asm(R"(
  .text
  .hidden tidepoolEnterStack
  .globl tidepoolEnterStack
  .type tidepoolEnterStack, @function
  .p2align 4
tidepoolEnterStack:
  .cfi_startproc
  push %rbp
  .cfi_def_cfa_offset 16
  .cfi_offset %rbp, -16
  mov %rsp, %rbp
  .cfi_def_cfa_register %rbp
  mov %rdx, %rsp
  mov %rdi, %rax
  mov %rsi, %rdi
  call *%rax
  leave
  .cfi_def_cfa %rsp, 8
  ret
  .cfi_endproc
  .size tidepoolEnterStack, . - tidepoolEnterStack
)");

namespace {

// Address space: what is not used costs nothing. Signal handlers of the program may run there, too.
constexpr Bytes kSize(1 * kMiB);

constinit std::atomic<OwnStack*> all{nullptr};

}  // namespace

OwnStack* OwnStack::create() {
  auto memory = Mapping::anonymous(kSize);
  if (!memory) return nullptr;
  raw::call(SYS_mprotect, memory->data(), kPageSize, PROT_NONE);  // the guard
  auto* const stack = new (memory->data() + kSize.value() - kAlignment) OwnStack();
  memory->abandon();
  stack->next_ = all.load(std::memory_order_relaxed);
  // Release pairs with the acquire in take().
  while (!all.compare_exchange_weak(stack->next_, stack, std::memory_order_release)) {
  }
  return stack;
}

OwnStack* OwnStack::take() {
  for (OwnStack* stack = all.load(std::memory_order_acquire); stack != nullptr;
       stack = stack->next_) {
    if (!stack->busy_.load(std::memory_order_relaxed) &&
        !stack->busy_.exchange(true, std::memory_order_acquire)) {
      return stack;
    }
  }
  return create();
}

void OwnStack::enter(void (*body)(void*), void* argument, std::byte* top) {
  static_assert(sizeof(OwnStack) <= kAlignment);
  tidepoolEnterStack(body, argument, top);
}

#else  // elsewhere on the caller's

OwnStack* OwnStack::take() { return nullptr; }
void OwnStack::enter(void (*)(void*), void*, std::byte*) {}

#endif

}  // namespace tidepool
