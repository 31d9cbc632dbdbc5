// SPDX-License-Identifier: Apache-2.0
// Holds the words still, waits, and lets them move again.
#include "shim/futex_wait.h"

#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include <array>
#include <bitset>
#include <cerrno>

#include "shim/engine.h"

namespace tidepool {
namespace {

// Of futex_waitv(2): one word to wait for. FUTEX2_PRIVATE is the old flag's bit.
struct Waiter {
  uint64_t value;
  uint64_t word;
  uint32_t flags;
  uint32_t reserved;
};
constexpr uint64_t kMostWaiters = 128;  // FUTEX_WAITV_MAX
static_assert(sizeof(Waiter) == 24);

const void* pointer(uint64_t word) { return reinterpret_cast<const void*>(word); }

bool concerns(uint64_t word, uint64_t flags) {
  return (flags & FUTEX_PRIVATE_FLAG) == 0 && isManaged(pointer(word)) &&
         t_thread_mode != ThreadMode::kInternal;
}

/// True if the word is held still now.
bool hold(uint64_t word, uint64_t flags) {
  if (!concerns(word, flags)) return false;
  InternalScope scope;
  return managed_runtime->holdStill(pointer(word));
}

void letGo(uint64_t word) {
  InternalScope scope;
  managed_runtime->letMove(pointer(word));
}

/// Not by syscall(), which is ours, and would come here again.
long make(const SystemCall& call) {
  long result = static_cast<long>(call.number);
  register uint64_t fourth asm("r10") = call.arguments[3];
  register uint64_t fifth asm("r8") = call.arguments[4];
  register uint64_t sixth asm("r9") = call.arguments[5];
  asm volatile("syscall"
               : "+a"(result)
               : "D"(call.arguments[0]), "S"(call.arguments[1]), "d"(call.arguments[2]),
                 "r"(fourth), "r"(fifth), "r"(sixth)
               : "rcx", "r11", "memory");
  if (result >= 0) return result;
  errno = static_cast<int>(-result);
  return -1;
}

/// Whatever cannot be read, the kernel says so.
bool readWaiters(uint64_t from, uint64_t count, Waiter* waiters) {
  const iovec to = {waiters, count * sizeof(Waiter)};
  const iovec there = {reinterpret_cast<void*>(from), to.iov_len};
  const int saved_errno = errno;
  const ssize_t read = process_vm_readv(getpid(), &to, 1, &there, 1, 0);
  errno = saved_errno;
  return read == static_cast<ssize_t>(to.iov_len);
}

long waitForAny(const SystemCall& call) {
  std::array<Waiter, kMostWaiters> waiters;
  std::bitset<kMostWaiters> held;
  const uint64_t count = call.arguments[1];
  if (!readWaiters(call.arguments[0], count, waiters.data())) return make(call);
  for (uint64_t i = 0; i < count; ++i) held[i] = hold(waiters[i].word, waiters[i].flags);
  const long made = make(call);
  for (uint64_t i = 0; i < count; ++i) {
    if (held[i]) letGo(waiters[i].word);
  }
  return made;
}

}  // namespace

void keepLocal(const void* word, size_t size) {
  if (!isManaged(word) || t_thread_mode == ThreadMode::kInternal) return;
  {
    InternalScope scope;
    managed_runtime->keepLocal(word, Bytes(size));
  }
  // What was far comes with a touch, by a fault like any other.
  const auto* const bytes = static_cast<const volatile char*>(word);
  for (size_t at = 0; at < size; at += kPageSize) static_cast<void>(bytes[at]);
  static_cast<void>(bytes[size - 1]);
}

void keepThreadWord(uint64_t flags, uint64_t word) {
  if ((flags & CLONE_CHILD_CLEARTID) != 0) keepLocal(pointer(word), sizeof(pid_t));
}

bool waitsForShared(uint64_t word, int operation) {
  switch (operation & FUTEX_CMD_MASK) {
    case FUTEX_WAIT:
    case FUTEX_WAIT_BITSET:
    case FUTEX_LOCK_PI:
    case FUTEX_LOCK_PI2:
    case FUTEX_WAIT_REQUEUE_PI:
      return concerns(word, static_cast<uint64_t>(operation));
    default:
      return false;
  }
}

bool waitsForNewer(uint64_t number, uint64_t first, uint64_t second, uint64_t fourth) {
  if (managed_runtime == nullptr || t_thread_mode == ThreadMode::kInternal) return false;
  if (number == kFutexWait) return concerns(first, fourth);
  return first != 0 && second <= kMostWaiters;
}

// A handler that leaves the wait by longjmp leaves the word held: its page then stays local.
long waitInPlace(const SystemCall& call) {
  if (call.number == kFutexWaitv) return waitForAny(call);
  const uint64_t word = call.arguments[0];
  const bool held = hold(word, call.arguments[call.number == kFutexWait ? 3 : 1]);
  const long made = make(call);
  if (held) letGo(word);
  return made;
}

}  // namespace tidepool
