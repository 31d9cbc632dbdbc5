// SPDX-License-Identifier: Apache-2.0
// Ranges of the managed space over which the program mapped something that cannot be managed (a
// file, shared memory, a huge page) with MAP_FIXED. The runtime still counts them as allocated, so
// it never hands them out again, but every call on them goes to the kernel. Thread-safe; the table
// lives in the internal heap. Sizes are bytes.
#pragma once

#include <csignal>
#include <cstddef>
#include <cstdint>

namespace tidepool {

/// Adds [address, address + size), page-aligned.
void surrender(uintptr_t address, size_t size);

/// The heap is about to release a range: what is handed out there next is the runtime's again.
void takeBack(const void* address, size_t size);

/// How far from `address`, at most `size`, the answer to "is it surrendered?" stays the same.
struct SurrenderedSpan {
  bool surrendered;
  size_t size;
};
SurrenderedSpan surrenderedSpan(uintptr_t address, size_t size);

/// Whether any memory was ever surrendered. mremap may have moved it out of the managed space
/// since, where it is not told from other memory.
bool anySurrendered();

/// What one thread at a time does: it takes memory out of the runtime's care. Signals wait
/// meanwhile: a handler that forks would wait for the thread that it interrupted.
class SurrenderTurn {
 public:
  SurrenderTurn();
  ~SurrenderTurn();
  SurrenderTurn(const SurrenderTurn&) = delete;
  SurrenderTurn& operator=(const SurrenderTurn&) = delete;

 private:
  sigset_t signals_;
};

/// Around fork(): nobody has a turn, and the table must not be caught half changed.
void lockSurrendered();
void unlockSurrendered();

}  // namespace tidepool
