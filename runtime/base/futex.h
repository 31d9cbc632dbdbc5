// SPDX-License-Identifier: Apache-2.0
// futex(2) on words of this process alone, past libc: no interposed function sees the call, and
// errno stays as it is, for locks are taken in malloc too. Async-signal-safe.
#pragma once

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdint>

namespace tidepool {

inline void futexCall(const std::atomic<uint32_t>& word, int operation, uint32_t value) {
#if defined(__x86_64__)
  long number = SYS_futex;
  register const void* timeout asm("r10") = nullptr;
  asm volatile("syscall"
               : "+a"(number)
               : "D"(&word), "S"(operation), "d"(value), "r"(timeout)
               : "rcx", "r11", "memory");
#else
  const int saved_errno = errno;
  syscall(SYS_futex, &word, operation, value, nullptr, nullptr, 0);
  errno = saved_errno;
#endif
}

/// Sleeps if the word is still `value`, until woken; returns for no reason too.
inline void futexWait(const std::atomic<uint32_t>& word, uint32_t value) {
  futexCall(word, FUTEX_WAIT_PRIVATE, value);
}

inline void futexWake(const std::atomic<uint32_t>& word, int most) {
  futexCall(word, FUTEX_WAKE_PRIVATE, static_cast<uint32_t>(most));
}

}  // namespace tidepool
