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

bool touchPage(const ManagedSpace& space, PageIndex page) {
  static_cast<void>(*reinterpret_cast<const volatile char*>(space.addressOf(page)));
  return true;
}

bool touchPiece(void* core, uintptr_t address, size_t size) {
  const ManagedSpace& space = *static_cast<Core*>(core)->space;
  return forEachPage(space, address, size,
                     [&](PageIndex page) { return touchPage(space, page); });
}

bool pieceIsLocal(void* core, uintptr_t address, size_t size) {
  const ManagedSpace& space = *static_cast<Core*>(core)->space;
  return forEachPage(space, address, size, [&](PageIndex page) {
    return space.word(page).state() == PageState::kLocal;
  });
}

}  // namespace

void ForkWindow::touch() {
  os::visitStreams(touchPiece, &core_);
  touchOwnStack();
}

bool ForkWindow::isLocal() { return os::visitStreams(pieceIsLocal, &core_); }

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
    touchPage(space, space.pageAt(at));
  }
}

void ForkWindow::holdSignals() {
  sigset_t all;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &saved_);
}

void ForkWindow::releaseSignals() { pthread_sigmask(SIG_SETMASK, &saved_, nullptr); }

}  // namespace tidepool
