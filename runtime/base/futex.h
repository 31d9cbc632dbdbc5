// SPDX-License-Identifier: Apache-2.0
// futex(2) on words of this process alone, past libc: no interposed function sees the call, and
// errno stays as it is, for locks are taken in malloc too. Async-signal-safe.
#pragma once

#include <linux/futex.h>

#include <atomic>
#include <cstdint>

#include "runtime/base/raw_calls.h"

namespace tidepool {

inline void futexCall(const std::atomic<uint32_t>& word, int operation, uint32_t value) {
  raw::kernelWords(SYS_futex, raw::callWord(&word), operation, static_cast<long>(value), 0, 0, 0);
}

/// Sleeps if the word is still `value`, until woken; returns for no reason too.
inline void futexWait(const std::atomic<uint32_t>& word, uint32_t value) {
  futexCall(word, FUTEX_WAIT_PRIVATE, value);
}

inline void futexWake(const std::atomic<uint32_t>& word, int most) {
  futexCall(word, FUTEX_WAKE_PRIVATE, static_cast<uint32_t>(most));
}

}  // namespace tidepool
