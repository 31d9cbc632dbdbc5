// SPDX-License-Identifier: Apache-2.0
// Stacks of Tidepool's own, for its code in threads whose stack the program has put into managed
// memory: pthread_attr_setstack(3), makecontext(3), coroutines, sigaltstack(2). A page of such a
// stack may leave at any moment, and service threads bring it back, for which they need locks that
// the thread may hold just then (invariant I2).
//
// Made as they are needed, and kept. No lock: a copy of the process made at any moment can go on.
#pragma once

#include <atomic>
#include <cstddef>
#include <new>
#include <optional>
#include <type_traits>
#include <utility>

namespace tidepool {

class OwnStack {
 public:
  /// Calls `work()` on one, and returns what it returns. `work` is copied there: it must capture by
  /// value what it uses under locks. On the caller's stack if there is no memory for another, and
  /// where sanitizers follow stacks. Thread-safe; nests, as signal handlers do.
  template <typename Work>
  static std::invoke_result_t<Work&> run(Work work) {
    if (OwnStack* const stack = take()) return stack->call(std::move(work));
    return work();
  }
  /// The same if `managed`, else as a plain call.
  template <typename Work>
  static std::invoke_result_t<Work&> runIf(bool managed, Work work) {
    return managed ? run(std::move(work)) : work();
  }

 private:
  static constexpr size_t kAlignment = 16, kMostOfCall = 4096;

  template <typename Work, typename Result = std::invoke_result_t<Work&>>
  struct CallOf {
    Work work;
    std::optional<Result> result = std::nullopt;
    void make() { result.emplace(work()); }
    Result finish(OwnStack* stack) {
      Result returned = std::move(*result);
      this->~CallOf();
      stack->putBack();
      return returned;
    }
  };
  template <typename Work>
  struct CallOf<Work, void> {
    Work work;
    void make() { work(); }
    void finish(OwnStack* stack) {
      this->~CallOf();
      stack->putBack();
    }
  };

  /// One that nobody uses, or a new one. Null if there is no memory.
  static OwnStack* take();
  static OwnStack* create();
  template <typename Work>
  std::invoke_result_t<Work&> call(Work work) {
    using Call = CallOf<Work>;
    static_assert(sizeof(Call) <= kMostOfCall && alignof(Call) <= kAlignment);
    std::byte* const place = reinterpret_cast<std::byte*>(this) - kMostOfCall;
    auto* const made = new (place) Call{std::move(work)};
    enter([](void* argument) { static_cast<Call*>(argument)->make(); }, made, place);
    return made->finish(this);
  }
  void enter(void (*body)(void*), void* argument, std::byte* top);
  /// Release pairs with the acquire in take().
  void putBack() { busy_.store(false, std::memory_order_release); }

  // Lies above the stack itself.
  std::atomic<bool> busy_{true};
  OwnStack* next_ = nullptr;
};

}  // namespace tidepool
