// SPDX-License-Identifier: Apache-2.0
// Handles of the C API: places in a fixed table that outlive what they stand for, so that the use
// of one that was closed is told rather than suffered. Places are reused as late as possible.
// Making and closing take a lock; looking a handle up is a load and two compares. Thread-safe.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>

#include "runtime/base/mutex.h"
#include "runtime/base/result.h"

namespace tidepool {

/// What a handle points to.
template <typename Object>
struct HandleSlot {
  std::atomic<Object*> object{nullptr};
};

template <typename Object, size_t kMost>
class HandleSlots {
 public:
  /// Null: all are in use.
  HandleSlot<Object>* open(Object* object) {
    MutexLock lock(mutex_);
    for (size_t tried = 0; tried < kMost; ++tried) {
      HandleSlot<Object>& slot = slots_[next_++ % kMost];
      if (slot.object.load(std::memory_order_relaxed) != nullptr) continue;
      // Release pairs with the acquire of find(): the object is complete.
      slot.object.store(object, std::memory_order_release);
      return &slot;
    }
    return nullptr;
  }

  /// Null if it was closed. The handle is one of ours, see isOurs().
  static Object* find(const HandleSlot<Object>* slot) {
    return slot->object.load(std::memory_order_acquire);
  }
  bool isOurs(const void* handle) const {
    const auto offset = reinterpret_cast<uintptr_t>(handle) - reinterpret_cast<uintptr_t>(&slots_);
    return offset < sizeof slots_ && offset % sizeof(HandleSlot<Object>) == 0;
  }
  /// The object, which is the caller's now; null if another thread was faster.
  Object* close(HandleSlot<Object>* slot) {
    MutexLock lock(mutex_);
    return slot->object.exchange(nullptr, std::memory_order_acq_rel);
  }

  /// For fork().
  Mutex& mutex() { return mutex_; }

 private:
  Mutex mutex_;
  size_t next_ TP_GUARDED_BY(mutex_) = 0;
  std::array<HandleSlot<Object>, kMost> slots_;
};

}  // namespace tidepool
