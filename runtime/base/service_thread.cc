// SPDX-License-Identifier: Apache-2.0
// Starting and joining of service threads.
#include "runtime/base/service_thread.h"

#include <sys/mman.h>
#include <sys/prctl.h>

#include <cerrno>
#include <utility>

#include "runtime/base/check.h"
#include "runtime/base/internal_thread.h"
#include "runtime/base/raw_calls.h"
#include "runtime/base/signals_held.h"

namespace tidepool {

namespace {

// Address space; what is not used costs nothing. The C library takes the program's thread-local
// variables out of it.
constexpr Bytes kStack(8 * kMiB);

// In the child of a process that did not call fork(), libc's lists of stacks still have those of
// the parent's threads. Then those of ours must stay mapped, and new ones be libc's: it puts what
// it is given on the same list as the program's, which may be far and nobody serves yet.
constinit bool libc_keeps_stacks = false;

}  // namespace

void ServiceThread::inChild(ForkKind kind) { libc_keeps_stacks = kind != ForkKind::kFork; }

void ServiceThread::forget() {
  running_ = false;
  if (is_raw_) return raw_.forget();
  if (libc_keeps_stacks) stack_.abandon();
  stack_ = Mapping();
}

int ServiceThread::create() {
  pthread_attr_t attributes;
  pthread_attr_init(&attributes);
  auto stack = libc_keeps_stacks ? Result<Mapping>(Mapping()) : Mapping::anonymous(kStack);
  if (!stack || !stack->valid()) {
    pthread_attr_setstacksize(&attributes, kStack.value());
  } else {
    stack_ = std::move(*stack);
    mprotect(stack_.data(), kPageSize, PROT_NONE);
    TP_CHECK(pthread_attr_setstack(&attributes, stack_.data() + kPageSize,
                                   kStack.value() - kPageSize) == 0);
  }
  const int error = pthread_create(&thread_, &attributes, main, this);
  pthread_attr_destroy(&attributes);
  return error;
}

Status ServiceThread::start(const char* name, void (*body)(void*), void* argument) {
  name_ = name;
  body_ = body;
  argument_ = argument;
  begun_.store(0, std::memory_order_relaxed);
  process_ = raw::getpid();
  is_raw_ = RawThread::enabled();
  const auto raw_main = [](void* self) { main(self); };
  TP_TRY(is_raw_ ? raw_.start(name, raw_main, this) : startWithLibc());
  running_ = true;
  return {};
}

Status ServiceThread::startWithLibc() {
  // The new thread inherits the mask: the program's signals are for the program's threads.
  const sigset_t signals = holdSignals();
  int error = create();
  // Too small for such a program.
  if (error == EINVAL) error = pthread_create(&thread_, nullptr, main, this);
  releaseSignals(signals);
  if (error != 0) {
    return tl::unexpected(
        Error::fromErrno(ErrorCode::kNoMemory, error, "cannot start the thread %s", name_));
  }
  return {};
}

clockid_t ServiceThread::clock() const {
  if (!running_) return 0;
  // The kernel's name for the clock of a thread (CPUCLOCK_PERTHREAD_MASK | CPUCLOCK_SCHED).
  if (is_raw_) return static_cast<clockid_t>(~static_cast<unsigned>(raw_.id()) << 3 | 6);
  clockid_t clock = 0;
  return pthread_getcpuclockid(thread_, &clock) == 0 ? clock : 0;
}

void ServiceThread::join() {
  if (!running_) return;
  // libc would wait: it does not note in a child that threads on stacks of our own are gone.
  if (process_ != raw::getpid()) return forget();
  if (is_raw_) {
    raw_.join();
  } else {
    pthread_join(thread_, nullptr);
  }
  forget();
}

void* ServiceThread::main(void* self) {
  enterInternalThread();
  auto* thread = static_cast<ServiceThread*>(self);
  raw::call(SYS_prctl, PR_SET_NAME, thread->name_);
  thread->begun_.store(1, std::memory_order_release);
  wakeWaiters(thread->begun_);
  thread->body_(thread->argument_);
  return nullptr;
}

}  // namespace tidepool
