// SPDX-License-Identifier: Apache-2.0
// The newest mapping of each thread that was placed elsewhere is enough: who is not content says so
// before asking for another.
#include "shim/hints.h"

#include <atomic>

namespace tidepool {
namespace {

constinit std::atomic<bool> must_hold{false};
[[gnu::tls_model("initial-exec")]] constinit thread_local uintptr_t t_moved_to = 0;
[[gnu::tls_model("initial-exec")]] constinit thread_local size_t t_moved_size = 0;

}  // namespace

void noteMoved(uintptr_t address, size_t size) {
  t_moved_to = address;
  t_moved_size = size;
}

void noteUnmapped(uintptr_t address, size_t size) {
  if (t_moved_to == 0) return;
  if (address == t_moved_to && size == t_moved_size) {
    must_hold.store(true, std::memory_order_relaxed);
  }
  t_moved_to = 0;
}

bool hintsMustHold() { return must_hold.load(std::memory_order_relaxed); }

}  // namespace tidepool
