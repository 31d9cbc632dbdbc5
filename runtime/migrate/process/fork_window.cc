// SPDX-License-Identifier: Apache-2.0
// See docs/design-notes.md for the list of what glibc touches, and what of it can be managed.
#include "runtime/migrate/process/fork_window.h"

#include <algorithm>
#include <cerrno>

#include "runtime/os/streams.h"

namespace tidepool {
namespace {

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

bool ForkWindow::touchPage(PageIndex page) {
  static_cast<void>(*reinterpret_cast<const volatile char*>(core_.space->addressOf(page)));
  return core_.space->word(page).state() != PageState::kDirect;
}

// A store of the child's would be seen by the parent.
void ForkWindow::bringIn(PageIndex page) {
  const GranuleLock granule(*core_.space, granuleOf(page));
  promoter_.bringIn(granule, page);
}

bool ForkWindow::touchPiece(void* self, uintptr_t address, size_t size) {
  auto* window = static_cast<ForkWindow*>(self);
  return forEachPage(*window->core_.space, address, size, [&](PageIndex page) {
    if (!window->touchPage(page)) window->bringIn(page);
    return true;
  });
}

bool ForkWindow::pieceIsLocal(void* self, uintptr_t address, size_t size) {
  const ManagedSpace& space = *static_cast<ForkWindow*>(self)->core_.space;
  return forEachPage(space, address, size,
                     [&](PageIndex page) { return space.word(page).state() == PageState::kLocal; });
}

/// Calls `act(page)` for the managed pages of what the thread itself uses: its stack, if that is
/// one of the program's making, and with it its thread-local variables. Stops when it returns
/// false.
template <typename Act>
bool ForkWindow::forOwnPages(Act act) {
  ManagedSpace& space = *core_.space;
  const auto unless_odd = [&](PageIndex page) {
    const uintptr_t at = space.addressOf(page);
    return !space.ranges().isAllocated(at - space.base(), Bytes(kPageSize)) ||
           !space.addresses().plain(at, Bytes(kPageSize)) || act(page);
  };
  const auto stack = reinterpret_cast<uintptr_t>(__builtin_frame_address(0));
  const auto thread = reinterpret_cast<uintptr_t>(__builtin_thread_pointer());
  const auto variables = reinterpret_cast<uintptr_t>(&errno);
  return forEachPage(space, stack - kStackBelow, kStackBelow + kStackAbove, unless_odd) &&
         forEachPage(space, thread - kThreadAround, 2 * kThreadAround, unless_odd) &&
         forEachPage(space, variables - kThreadAround, 2 * kThreadAround, unless_odd);
}

void ForkWindow::touch(ForkKind kind) {
  if (kind == ForkKind::kFork) os::visitStreams(touchPiece, this);
  own_direct_.clear();
  forOwnPages([this](PageIndex page) {
    if (!touchPage(page)) own_direct_.push(page);
    return true;
  });
  if (own_direct_.empty()) return;
  // The writes of this very thread are held up meanwhile, so another has to do it. Without one, the
  // pages are found not to be local.
  const Status started = other_.start(
      "tidepool-fork",
      [](void* self) {
        auto* window = static_cast<ForkWindow*>(self);
        for (PageIndex page : window->own_direct_) window->bringIn(page);
      },
      this);
  if (started) other_.join();
}

bool ForkWindow::isLocal(ForkKind kind) {
  return (kind != ForkKind::kFork || os::visitStreams(pieceIsLocal, this)) &&
         forOwnPages([this](PageIndex page) {
           return core_.space->word(page).state() == PageState::kLocal;
         });
}

}  // namespace tidepool
