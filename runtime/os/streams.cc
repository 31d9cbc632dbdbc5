// SPDX-License-Identifier: Apache-2.0
// glibc exports the list and its lock, though no header declares them. Where they are missing there
// is nothing to walk.
#include "runtime/os/streams.h"

#include <cstdio>

extern "C" {
extern FILE* _IO_list_all __attribute__((weak));
void _IO_list_lock() __attribute__((weak));
void _IO_list_unlock() __attribute__((weak));
extern char __libc_single_threaded __attribute__((weak));
}

namespace tidepool::os {
namespace {

constexpr size_t kLockSize = 16;  // of _IO_lock_t, which is private to glibc

bool haveList() {
  return &_IO_list_all != nullptr && _IO_list_lock != nullptr && _IO_list_unlock != nullptr;
}

// Guarded by the list's lock.
constinit bool fork_makes_it_new = false;

bool visitList(bool (*visit)(void*, uintptr_t, size_t), void* argument) {
  for (const FILE* stream = _IO_list_all; stream != nullptr; stream = stream->_chain) {
    if (!visit(argument, reinterpret_cast<uintptr_t>(stream), sizeof *stream)) return false;
    const auto lock = reinterpret_cast<uintptr_t>(stream->_lock);
    if (lock != 0 && !visit(argument, lock, kLockSize)) return false;
  }
  return true;
}

}  // namespace

void lockStreams() {
  if (!haveList()) return;
  _IO_list_lock();
  // A fork() that sees one thread alone leaves the child's lock as it was. Before glibc 2.32 nobody
  // says which; but then there are service threads of libc's.
  fork_makes_it_new = &__libc_single_threaded == nullptr || __libc_single_threaded == 0;
}

void unlockStreams() {
  if (haveList()) _IO_list_unlock();
}

void unlockStreamsInChild() {
  if (haveList() && !fork_makes_it_new) _IO_list_unlock();
}

bool visitStreams(bool (*visit)(void*, uintptr_t, size_t), void* argument) {
  return !haveList() || visitList(visit, argument);
}

}  // namespace tidepool::os
