// SPDX-License-Identifier: Apache-2.0
// Starting and joining of service threads.
#include "runtime/base/service_thread.h"

#include <csignal>

#include "runtime/base/internal_thread.h"

namespace tidepool {

Status ServiceThread::start(const char* name, void (*body)(void*), void* argument) {
  name_ = name;
  body_ = body;
  argument_ = argument;
  // The new thread inherits the mask: the program's signals are for the program's threads.
  sigset_t all, saved;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &saved);
  const int error = pthread_create(&thread_, nullptr, main, this);
  pthread_sigmask(SIG_SETMASK, &saved, nullptr);
  if (error != 0) {
    return tl::unexpected(
        Error::fromErrno(ErrorCode::kNoMemory, error, "cannot start the thread %s", name));
  }
  running_ = true;
  return {};
}

clockid_t ServiceThread::clock() const {
  clockid_t clock = 0;
  return running_ && pthread_getcpuclockid(thread_, &clock) == 0 ? clock : 0;
}

void ServiceThread::join() {
  if (!running_) return;
  pthread_join(thread_, nullptr);
  running_ = false;
}

void* ServiceThread::main(void* self) {
  enterInternalThread();
  const auto* thread = static_cast<ServiceThread*>(self);
  pthread_setname_np(pthread_self(), thread->name_);
  thread->body_(thread->argument_);
  return nullptr;
}

}  // namespace tidepool
