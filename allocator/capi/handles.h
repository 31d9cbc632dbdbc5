// SPDX-License-Identifier: Apache-2.0
// Handles of the C API: places in a fixed table that outlive what they stand for, so that the use
// of one that was closed is told rather than suffered. Places are reused as late as possible.
// Looking a handle up is a load and two compares. Lock-free, thread-safe; a fork() finds it whole.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>

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
    for (size_t tried = 0; tried < kMost; ++tried) {
      HandleSlot<Object>& slot = slots_[next_.fetch_add(1, std::memory_order_relaxed) % kMost];
      Object* none = nullptr;
      // Release pairs with the acquire of find(): the object is complete.
      if (slot.object.compare_exchange_strong(none, object, std::memory_order_release,
                                              std::memory_order_relaxed)) {
        return &slot;
      }
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
  static Object* close(HandleSlot<Object>* slot) {
    return slot->object.exchange(nullptr, std::memory_order_acq_rel);
  }

 private:
  std::atomic<size_t> next_{0};
  std::array<HandleSlot<Object>, kMost> slots_;
};

}  // namespace tidepool
