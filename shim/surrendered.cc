// SPDX-License-Identifier: Apache-2.0
// A set of ranges, empty in nearly every program: a counter keeps the lock off the usual path.
// Ranges are only ever added (their address space is not used again).
#include "shim/surrendered.h"

#include <atomic>
#include <new>

#include "runtime/base/interval_set.h"
#include "runtime/base/mutex.h"
#include "runtime/base/signals_held.h"
#include "shim/internal_scope.h"

namespace tidepool {
namespace {

constinit Mutex turn_mutex;  // before the other
constinit Mutex surrendered_mutex;
constinit std::atomic<size_t> surrendered_count{0};

// Made on first use, never destroyed.
IntervalSet& ranges() TP_REQUIRES(surrendered_mutex) {
  alignas(IntervalSet) static std::byte storage[sizeof(IntervalSet)];
  static constinit IntervalSet* table = nullptr;
  if (table == nullptr) table = new (storage) IntervalSet();
  return *table;
}

}  // namespace

void surrender(uintptr_t address, size_t size) {
  InternalScope scope;
  MutexLock lock(surrendered_mutex);
  ranges().add(address, address + size);
  // Release pairs with the acquire in anySurrendered().
  surrendered_count.store(ranges().count(), std::memory_order_release);
}

void takeBack(const void* address, size_t size) {
  if (!anySurrendered()) return;
  InternalScope scope;
  MutexLock lock(surrendered_mutex);
  const auto start = reinterpret_cast<uintptr_t>(address);
  ranges().remove(start, start + size);
}

SurrenderedSpan surrenderedSpan(uintptr_t address, size_t size) {
  if (!anySurrendered()) return {false, size};
  InternalScope scope;
  MutexLock lock(surrendered_mutex);
  const IntervalSet::Span span = ranges().spanAt(address, size);
  return {span.inside, span.size};
}

bool anySurrendered() { return surrendered_count.load(std::memory_order_acquire) != 0; }

SurrenderTurn::SurrenderTurn() TP_LOCKS_BY_HAND : signals_(holdSignals()) { turn_mutex.lock(); }

SurrenderTurn::~SurrenderTurn() TP_LOCKS_BY_HAND {
  turn_mutex.unlock();
  releaseSignals(signals_);
}

void lockSurrendered() TP_LOCKS_BY_HAND {
  turn_mutex.lock();
  surrendered_mutex.lock();
}

void unlockSurrendered() TP_LOCKS_BY_HAND {
  surrendered_mutex.unlock();
  turn_mutex.unlock();
}

}  // namespace tidepool
