// SPDX-License-Identifier: Apache-2.0
// Waits by futexes without FUTEX_PRIVATE_FLAG on managed memory. The kernel knows such a sleeper by
// what is mapped there; were its page to move into a direct tier meanwhile, nobody would find it
// again. Its page stays while it sleeps. And words that stay local for good. Async-signal-safe as
// far as the program's side goes: a handler that interrupted Tidepool waits as the kernel has it.
#pragma once

#include <cstddef>
#include <cstdint>

namespace tidepool {

// Younger than the C library's headers (Linux 5.16 and 6.7).
inline constexpr uint64_t kFutexWaitv = 449;
inline constexpr uint64_t kFutexWait = 455;

/// The kernel writes this word, or walks from it, as a thread ends, when it can wait for no page:
/// the page is local from now on. For words of locks too, whose sleepers the kernel must find.
void keepLocal(const void* word, size_t size);

/// The same for the word that clone(2) with these flags names, where memory is shared.
void keepThreadWord(uint64_t flags, uint64_t word);

struct SystemCall {
  uint64_t number;
  uint64_t arguments[6];
};

/// futex(2) with this word and operation.
bool waitsForShared(uint64_t word, int operation);
/// futex_waitv(2) or futex_wait(2), with their first, second and fourth arguments.
bool waitsForNewer(uint64_t number, uint64_t first, uint64_t second, uint64_t fourth);
/// Makes one of those calls; its value, with errno set, as syscall() has it.
long waitInPlace(const SystemCall& call);

}  // namespace tidepool
