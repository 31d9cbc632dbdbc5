// SPDX-License-Identifier: Apache-2.0
// Waiting for an atomic word to change, by private futexes (futex(2)). Not by std::atomic::wait():
// libstdc++ 12 asks for futexes that processes share, and those of a word whose page moves from
// anonymous memory to a file's, as into a direct tier, lose the waiters that sleep on it.
// Thread-safe; the word is of one process.
#pragma once

#include <atomic>
#include <climits>
#include <cstdint>

#include "runtime/base/futex.h"

namespace tidepool {

/// Whether the word is `old` no more; looks a few times, for about a microsecond. If so, what was
/// written before the release of the other value is seen.
inline bool hasChanged(const std::atomic<uint32_t>& word, uint32_t old) {
  constexpr int kLooks = 64;
  // Acquire: pairs with the release of the change.
  for (int look = 0; look < kLooks; ++look) {
    if (word.load(std::memory_order_acquire) != old) return true;
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
  }
  return false;
}

/// Blocks while the word is `old`; looks a few times before it sleeps. What was written before a
/// release of another value is seen.
inline void waitWhile(const std::atomic<uint32_t>& word, uint32_t old) {
  if (hasChanged(word, old)) return;
  while (word.load(std::memory_order_acquire) == old) {
    futexWait(word, old);
  }
}

/// Wakes all who wait for the word, which has changed.
inline void wakeWaiters(const std::atomic<uint32_t>& word) { futexWake(word, INT_MAX); }

}  // namespace tidepool
