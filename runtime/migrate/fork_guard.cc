// SPDX-License-Identifier: Apache-2.0
// Fork handlers. They run in the forking thread; lock order as everywhere: granules, policy, then
// the space's tables.
#include "runtime/migrate/fork_guard.h"

#include "runtime/os/memory.h"

namespace tidepool {

void ForkGuard::prepare() {
  if (core_.detached.load(std::memory_order_relaxed)) return;
  core_.parking.request();
  core_.need_memory.ring();
  core_.freed_memory.ring();
  core_.parking.waitFor(kServiceThreads);
  for (Mutex& lock : core_.space->locks()) lock.lock();
  policy_.mutex().lock();
  core_.space->protections().mutex().lock();
  core_.space->ranges().mutex().lock();
}

void ForkGuard::unlockAll() {
  core_.space->ranges().mutex().unlock();
  core_.space->protections().mutex().unlock();
  policy_.mutex().unlock();
  for (Mutex& lock : core_.space->locks()) lock.unlock();
}

void ForkGuard::parent() {
  if (core_.detached.load(std::memory_order_relaxed)) return;
  core_.forked.store(true, std::memory_order_relaxed);
  unlockAll();
  core_.parking.resume();
}

void ForkGuard::child() {
  if (core_.detached.exchange(true, std::memory_order_relaxed)) return;
  unlockAll();
  hideFarMemory();
}

void ForkGuard::hideFarMemory() {
  const PageIndex end = core_.space->highWater();
  for (PageIndex page; page < end;) {
    const PageState state = core_.space->word(page).state();
    const bool far = state != PageState::kEmpty && state != PageState::kLocal;
    if (!far) {
      ++page;
      continue;
    }
    PageIndex last = page;
    while (last < end && core_.space->word(last).state() == state) ++last;
    // If the kernel has no room for one more mapping the page must still not be readable.
    TP_CHECK(
        os::mapNothing(core_.space->addressOf(page), Bytes((last - page) * kPageSize)).has_value());
    page = last;
  }
}

}  // namespace tidepool
