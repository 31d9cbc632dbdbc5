// SPDX-License-Identifier: Apache-2.0
// glibc exports the list and its lock, though no header declares them. Where they are missing there
// is nothing to walk.
#include "runtime/os/streams.h"

#include <cstdio>

extern "C" {
extern FILE* _IO_list_all __attribute__((weak));
void _IO_list_lock() __attribute__((weak));
void _IO_list_unlock() __attribute__((weak));
}

namespace tidepool::os {
namespace {

constexpr size_t kLockSize = 16;  // of _IO_lock_t, which is private to glibc

bool visitList(bool (*visit)(void*, uintptr_t, size_t), void* argument) {
  for (const FILE* stream = _IO_list_all; stream != nullptr; stream = stream->_chain) {
    if (!visit(argument, reinterpret_cast<uintptr_t>(stream), sizeof *stream)) return false;
    const auto lock = reinterpret_cast<uintptr_t>(stream->_lock);
    if (lock != 0 && !visit(argument, lock, kLockSize)) return false;
  }
  return true;
}

}  // namespace

bool visitStreams(bool (*visit)(void*, uintptr_t, size_t), void* argument) {
  if (&_IO_list_all == nullptr || _IO_list_lock == nullptr || _IO_list_unlock == nullptr) {
    return true;
  }
  _IO_list_lock();
  const bool all = visitList(visit, argument);
  _IO_list_unlock();
  return all;
}

}  // namespace tidepool::os
