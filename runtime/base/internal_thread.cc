// SPDX-License-Identifier: Apache-2.0
// The hook that service threads call as they begin.
#include "runtime/base/internal_thread.h"

#include <atomic>

namespace tidepool {
namespace {

constinit std::atomic<void (*)()> internal_thread_hook{nullptr};

}  // namespace

void setInternalThreadHook(void (*hook)()) {
  // Release pairs with the acquire below: what the hook relies on was set up before it.
  internal_thread_hook.store(hook, std::memory_order_release);
}

void enterInternalThread() {
  if (auto hook = internal_thread_hook.load(std::memory_order_acquire)) hook();
}

}  // namespace tidepool
