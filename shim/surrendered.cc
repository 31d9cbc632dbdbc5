// SPDX-License-Identifier: Apache-2.0
// An ordered map of ranges, empty in nearly every program: a counter keeps the lock off the usual
// path. Ranges are only ever added (their address space is not used again).
#include "shim/surrendered.h"

#include <algorithm>
#include <atomic>
#include <map>

#include "runtime/base/mutex.h"
#include "shim/internal_scope.h"

namespace tidepool {
namespace {

constinit Mutex surrendered_mutex;
constinit std::atomic<size_t> surrendered_count{0};

// Made on first use, never destroyed. Key: start; value: end. Ranges neither touch nor overlap.
std::map<uintptr_t, uintptr_t>& ranges() TP_REQUIRES(surrendered_mutex) {
  alignas(std::map<uintptr_t, uintptr_t>) static std::byte
      storage[sizeof(std::map<uintptr_t, uintptr_t>)];
  static constinit std::map<uintptr_t, uintptr_t>* table = nullptr;
  if (table == nullptr) table = new (storage) std::map<uintptr_t, uintptr_t>();
  return *table;
}

}  // namespace

void surrender(uintptr_t address, size_t size) {
  InternalScope scope;
  MutexLock lock(surrendered_mutex);
  uintptr_t start = address, end = address + size;
  auto& table = ranges();
  auto next = table.upper_bound(start);
  if (next != table.begin() && std::prev(next)->second >= start) --next;
  while (next != table.end() && next->first <= end) {
    start = std::min(start, next->first);
    end = std::max(end, next->second);
    next = table.erase(next);
  }
  table[start] = end;
  // Release pairs with the acquire in surrenderedSpan().
  surrendered_count.store(table.size(), std::memory_order_release);
}

SurrenderedSpan surrenderedSpan(uintptr_t address, size_t size) {
  if (surrendered_count.load(std::memory_order_acquire) == 0) return {false, size};
  InternalScope scope;
  MutexLock lock(surrendered_mutex);
  auto& table = ranges();
  const auto next = table.upper_bound(address);
  if (next != table.begin() && std::prev(next)->second > address) {
    return {true, std::min<size_t>(size, std::prev(next)->second - address)};
  }
  if (next == table.end()) return {false, size};
  return {false, std::min<size_t>(size, next->first - address)};
}

void lockSurrendered() TP_NO_THREAD_SAFETY { surrendered_mutex.lock(); }
void unlockSurrendered() TP_NO_THREAD_SAFETY { surrendered_mutex.unlock(); }

}  // namespace tidepool
