// SPDX-License-Identifier: Apache-2.0
// See docs/design-notes.md for the list of what glibc touches, and what of it can be managed.
#include "runtime/migrate/fork_window.h"

#include <algorithm>

#include "runtime/os/streams.h"

namespace tidepool {
namespace {

// What our handler and the C library need below the caller's frame, generously.
constexpr uint64_t kStackBytes = 8 * kPageSize;

/// Calls `act(page)` for the managed pages of a piece of memory; stops when it returns false.
template <typename Act>
bool forEachPage(const ManagedSpace& space, uintptr_t address, size_t size, Act act) {
  const uintptr_t end = address + size;
  for (uintptr_t at = roundDown(address, kPageSize); at < end; at += kPageSize) {
    if (space.contains(at) && !act(space.pageAt(at))) return false;
  }
  return true;
}

}  // namespace

void ForkWindow::touchPage(PageIndex page) {
  static_cast<void>(*reinterpret_cast<const volatile char*>(core_.space->addressOf(page)));
  if (core_.space->word(page).state() != PageState::kDirect) return;
  // A store of the child's would be seen by the parent.
  MutexLock lock(core_.space->lockOf(granuleOf(page)));
  mover_.bringIn(page);
}

bool ForkWindow::touchPiece(void* self, uintptr_t address, size_t size) {
  auto* window = static_cast<ForkWindow*>(self);
  return forEachPage(*window->core_.space, address, size, [&](PageIndex page) {
    window->touchPage(page);
    return true;
  });
}

bool ForkWindow::pieceIsLocal(void* self, uintptr_t address, size_t size) {
  const ManagedSpace& space = *static_cast<ForkWindow*>(self)->core_.space;
  return forEachPage(space, address, size, [&](PageIndex page) {
    return space.word(page).state() == PageState::kLocal;
  });
}

void ForkWindow::touch() {
  os::visitStreams(touchPiece, this);
  touchOwnStack();
}

bool ForkWindow::isLocal() { return os::visitStreams(pieceIsLocal, this); }

void ForkWindow::touchOwnStack() {
  // A thread may have been given a stack of the program's own making.
  const auto here = reinterpret_cast<uintptr_t>(__builtin_frame_address(0));
  ManagedSpace& space = *core_.space;
  if (!space.contains(here)) return;
  const uintptr_t top = roundDown(here, kPageSize);
  for (uintptr_t at = top; at > top - kStackBytes && space.contains(at); at -= kPageSize) {
    const bool usable = space.ranges().isAllocated(at - space.base(), Bytes(kPageSize)) &&
                        space.protections().plain(at, Bytes(kPageSize));
    if (!usable) return;
    touchPage(space.pageAt(at));
  }
}

void ForkWindow::holdSignals() {
  sigset_t all;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &saved_);
}

void ForkWindow::releaseSignals() { pthread_sigmask(SIG_SETMASK, &saved_, nullptr); }

}  // namespace tidepool
