// SPDX-License-Identifier: Apache-2.0
/// The C++ API of Tidepool: contexts, heaps and completions that close themselves, a memory
/// resource and an allocator for containers, and (in tables.hpp) embedding tables. Header-only over
/// the C API, whose rules hold (tidepool.h). C++20; works without exceptions: what can fail returns
/// an Expected. Objects are as thread-safe as their handles; they may be moved, not copied.
#ifndef TIDEPOOL_TIDEPOOL_HPP
#define TIDEPOOL_TIDEPOOL_HPP

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <initializer_list>
#include <limits>
#include <memory>
#include <memory_resource>
#include <new>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "tidepool.h"

namespace tidepool::api {

/// How a call failed.
class Failure {
 public:
  /// The calling thread's last failure.
  static Failure last() { return Failure(tidepool_error_status(), tidepool_error_text()); }
  Failure(tidepool_status status, std::string text) : status_(status), text_(std::move(text)) {}

  tidepool_status status() const { return status_; }
  const char* name() const { return tidepool_status_name(status_); }
  /// What failed, on which object, and what to do next.
  const std::string& text() const { return text_; }

 private:
  tidepool_status status_;
  std::string text_;
};

namespace detail {
/// For what cannot be returned: as the standard library ends without exceptions.
[[noreturn]] inline void die(const char* what, const char* text) {
  std::fprintf(stderr, "tidepool: %s: %s\n", what, text);
  std::abort();
}

[[noreturn]] inline void outOfMemory() {
#if defined(__cpp_exceptions)
  throw std::bad_alloc();
#else
  die("out of memory", tidepool_error_text());
#endif
}
}  // namespace detail

/// A value, or why there is none. Asking for the one that is not there ends the program.
template <typename T>
class [[nodiscard]] Expected {
 public:
  Expected(T value) : state_(std::in_place_index<0>, std::move(value)) {}
  Expected(Failure failure) : state_(std::in_place_index<1>, std::move(failure)) {}

  explicit operator bool() const { return state_.index() == 0; }
  bool hasValue() const { return state_.index() == 0; }

  T& value() & { return get(); }
  const T& value() const& { return const_cast<Expected*>(this)->get(); }
  T&& value() && { return std::move(get()); }
  T& operator*() & { return get(); }
  const T& operator*() const& { return value(); }
  T&& operator*() && { return std::move(get()); }
  T* operator->() { return &get(); }
  const T* operator->() const { return &value(); }

  const Failure& failure() const {
    if (hasValue()) detail::die("failure() of a result that has none", "");
    return *std::get_if<1>(&state_);
  }

 private:
  T& get() {
    if (!hasValue()) detail::die("value() of a failed result", failure().text().c_str());
    return *std::get_if<0>(&state_);
  }
  std::variant<T, Failure> state_;
};

template <>
class [[nodiscard]] Expected<void> {
 public:
  Expected() = default;
  Expected(Failure failure) : failure_(std::make_unique<Failure>(std::move(failure))) {}
  explicit operator bool() const { return failure_ == nullptr; }
  bool hasValue() const { return failure_ == nullptr; }
  const Failure& failure() const {
    if (hasValue()) detail::die("failure() of a result that has none", "");
    return *failure_;
  }

 private:
  std::unique_ptr<Failure> failure_;
};

namespace detail {
inline Expected<void> result(tidepool_status status) {
  if (status == TIDEPOOL_OK) return {};
  return Failure::last();
}

template <typename Handle, auto kClose>
struct Closer {
  void operator()(Handle* handle) const {
    // Call close() to learn whether it could be closed.
    static_cast<void>(kClose(handle));
  }
};
template <typename Handle, auto kClose>
using Owned = std::unique_ptr<Handle, Closer<Handle, kClose>>;
}  // namespace detail

/// A range that is on its way, as Context::prefetch() and evict() give it.
class Completion {
 public:
  explicit Completion(tidepool_completion* handle) : handle_(handle) {}

  struct Progress {
    uint64_t total = 0, done = 0;  // pages
    bool complete = false;
  };
  /// Fails with LOST if pages of the range are gone.
  Expected<Progress> test() const {
    Progress progress;
    const tidepool_status status =
        tidepool_completion_test(handle_.get(), &progress.total, &progress.done);
    if (status != TIDEPOOL_OK && status != TIDEPOOL_TIMED_OUT) return Failure::last();
    progress.complete = status == TIDEPOOL_OK;
    return progress;
  }
  /// Fails with TIMED_OUT, or as test().
  Expected<void> wait(std::chrono::nanoseconds timeout = std::chrono::nanoseconds::max()) const {
    const auto left = timeout.count() > 0 ? static_cast<uint64_t>(timeout.count()) : 0;
    return detail::result(tidepool_completion_wait(handle_.get(), left));
  }
  tidepool_completion* handle() const { return handle_.get(); }

 private:
  struct Free {
    void operator()(tidepool_completion* handle) const { tidepool_completion_free(handle); }
  };
  std::unique_ptr<tidepool_completion, Free> handle_;
};

/// Where the memory of a heap is to be; see tidepool_policy.
class Placement {
 public:
  struct Share {
    std::string tier;
    uint32_t weight = 1;
  };
  static Placement tiered() { return {}; }
  static Placement pinned(std::string tier) {
    Placement placement;
    placement.policy_ = TIDEPOOL_PINNED;
    placement.shares_ = {{std::move(tier), 1}};
    return placement;
  }
  static Placement interleaved(std::initializer_list<Share> shares) {
    Placement placement;
    placement.policy_ = TIDEPOOL_INTERLEAVED;
    placement.shares_ = shares;
    return placement;
  }

 private:
  friend class Context;
  tidepool_policy policy_ = TIDEPOOL_TIERED;
  std::vector<Share> shares_;
};

/// A heap; destroying it frees all that is in it.
class Heap {
 public:
  /// Takes the handle over.
  explicit Heap(tidepool_heap* handle) : handle_(handle) {}

  /// Null: Failure::last() says why.
  [[nodiscard]] void* allocate(size_t size) { return tidepool_alloc(handle(), size); }
  [[nodiscard]] void* allocate(size_t size, std::align_val_t alignment) {
    return tidepool_aligned_alloc(handle(), static_cast<size_t>(alignment), size);
  }
  [[nodiscard]] void* allocateZeroed(size_t count, size_t size) {
    return tidepool_calloc(handle(), count, size);
  }
  [[nodiscard]] void* reallocate(void* block, size_t size) {
    return tidepool_realloc(handle(), block, size);
  }
  Expected<void> free(void* block) { return detail::result(tidepool_free(handle(), block)); }
  size_t usableSize(const void* block) const { return tidepool_usable_size(handle(), block); }

  /// `count` zeros. T is such that all-zero bytes are a value of it, and need not be destroyed.
  template <typename T>
  Expected<std::span<T>> zeroedSpan(size_t count) {
    static_assert(std::is_trivially_copyable_v<T> && std::is_trivially_destructible_v<T>);
    void* block = nullptr;
    if constexpr (alignof(T) <= 16) {
      block = allocateZeroed(count, sizeof(T));
    } else {
      constexpr size_t kMost = std::numeric_limits<size_t>::max();
      const size_t size = count <= kMost / sizeof(T) ? count * sizeof(T) : kMost;  // refused
      block = allocate(size, std::align_val_t(alignof(T)));
      if (block != nullptr) std::memset(block, 0, size);
    }
    if (block == nullptr) return Failure::last();
    return std::span<T>(static_cast<T*>(block), count);
  }
  template <typename T>
  Expected<void> free(std::span<T> block) {
    return free(block.data());
  }

  /// Gives free memory back now.
  Expected<void> trim() { return detail::result(tidepool_heap_trim(handle())); }

  Expected<tidepool_heap_stats> stats() const {
    tidepool_heap_stats stats{};
    stats.struct_size = sizeof stats;
    if (tidepool_heap_get_stats(handle(), &stats) != TIDEPOOL_OK) return Failure::last();
    return stats;
  }

  tidepool_heap* handle() const { return handle_.get(); }

 private:
  detail::Owned<tidepool_heap, tidepool_heap_destroy> handle_;
};

/// The right to use Tidepool's memory; see tidepool_open(). One that still has heaps when its
/// object ends stays open.
class Context {
 public:
  /// As the process's other contexts, or as TIDEPOOL_CONF says.
  static Expected<Context> open() { return openWith(nullptr); }
  /// `conf` such as "dram:2G,far:cxl:4G".
  static Expected<Context> open(const std::string& conf) {
    tidepool_options* options = nullptr;
    if (tidepool_options_create(conf.c_str(), &options) != TIDEPOOL_OK) return Failure::last();
    Expected<Context> context = openWith(options);
    tidepool_options_free(options);
    return context;
  }

  /// Fails with CONFLICT while heaps or completions of it are there; else the object is empty then.
  Expected<void> close() {
    const tidepool_status status = tidepool_close(handle());
    if (status == TIDEPOOL_OK) static_cast<void>(handle_.release());
    return detail::result(status);
  }

  Expected<Heap> makeHeap(const Placement& placement = Placement::tiered()) {
    tidepool_heap_params params = TIDEPOOL_HEAP_PARAMS_INIT;
    params.policy = placement.policy_;
    std::vector<tidepool_share> shares;
    for (const Placement::Share& share : placement.shares_) {
      shares.push_back({share.tier.c_str(), share.weight});
    }
    if (placement.policy_ == TIDEPOOL_PINNED) params.tier = shares[0].tier;
    params.shares = shares.data();
    params.shares_count = static_cast<uint32_t>(shares.size());
    tidepool_heap* heap = nullptr;
    if (tidepool_heap_create(handle(), &params, &heap) != TIDEPOOL_OK) return Failure::last();
    return Heap(heap);
  }

  // Of ranges in heaps of this process.
  template <typename T>
  Expected<void> advise(std::span<T> range, tidepool_hint hint) {
    const auto [address, size] = bytesOf(range);
    return detail::result(tidepool_advise(handle(), address, size, hint));
  }
  template <typename T>
  Expected<Completion> prefetch(std::span<T> range) {
    return moveTo(tidepool_prefetch, range);
  }
  template <typename T>
  Expected<Completion> evict(std::span<T> range) {
    return moveTo(tidepool_evict, range);
  }

  Expected<tidepool_context_info> info() const {
    tidepool_context_info info{};
    info.struct_size = sizeof info;
    if (tidepool_context_get_info(handle(), &info) != TIDEPOOL_OK) return Failure::last();
    return info;
  }
  /// As `tidepool stat --json` does.
  Expected<std::string> statsJson() const {
    std::string text(65536, '\0');
    size_t size = 0;
    if (tidepool_stats_json(handle(), text.data(), text.size(), &size) != TIDEPOOL_OK) {
      return Failure::last();
    }
    text.resize(size - 1);
    return text;
  }

  tidepool_context* handle() const { return handle_.get(); }

 private:
  explicit Context(tidepool_context* handle) : handle_(handle) {}

  static Expected<Context> openWith(const tidepool_options* options) {
    tidepool_context* context = nullptr;
    if (tidepool_open(options, &context) != TIDEPOOL_OK) return Failure::last();
    return Context(context);
  }
  template <typename T>
  static std::pair<void*, size_t> bytesOf(std::span<T> range) {
    return {const_cast<std::remove_cv_t<T>*>(range.data()), range.size_bytes()};
  }
  template <typename Move, typename T>
  Expected<Completion> moveTo(Move move, std::span<T> range) {
    const auto [address, size] = bytesOf(range);
    tidepool_completion* completion = nullptr;
    if (move(handle(), address, size, &completion) != TIDEPOOL_OK) return Failure::last();
    return Completion(completion);
  }

  detail::Owned<tidepool_context, tidepool_close> handle_;
};

/// A heap as std::pmr containers take it. The heap outlives it. Out of memory: throws bad_alloc, or
/// ends the program if there are no exceptions.
class MemoryResource final : public std::pmr::memory_resource {
 public:
  explicit MemoryResource(Heap& heap) : heap_(heap.handle()) {}

 private:
  void* do_allocate(size_t size, size_t alignment) override {
    void* const block = alignment <= 16 ? tidepool_alloc(heap_, size)
                                        : tidepool_aligned_alloc(heap_, alignment, size);
    if (block == nullptr) detail::outOfMemory();
    return block;
  }
  void do_deallocate(void* block, size_t, size_t) override {
    if (tidepool_free(heap_, block) != TIDEPOOL_OK) detail::die("free", tidepool_error_text());
  }
  bool do_is_equal(const std::pmr::memory_resource& other) const noexcept override {
    // Without RTTI others cannot be asked what they are.
    return this == &other;
  }
  tidepool_heap* heap_;
};

/// A heap as standard containers take it: std::vector<T, Allocator<T>>. The heap outlives them.
template <typename T>
class Allocator {
 public:
  using value_type = T;
  using propagate_on_container_move_assignment = std::true_type;
  using propagate_on_container_swap = std::true_type;

  Allocator(Heap& heap) : heap_(heap.handle()) {}
  template <typename U>
  Allocator(const Allocator<U>& other) : heap_(other.heap()) {}

  [[nodiscard]] T* allocate(size_t count) {
    if (count > std::numeric_limits<size_t>::max() / sizeof(T)) detail::outOfMemory();
    void* const block = alignof(T) <= 16
                            ? tidepool_alloc(heap_, count * sizeof(T))
                            : tidepool_aligned_alloc(heap_, alignof(T), count * sizeof(T));
    if (block == nullptr) detail::outOfMemory();
    return static_cast<T*>(block);
  }
  void deallocate(T* block, size_t) {
    if (tidepool_free(heap_, block) != TIDEPOOL_OK) detail::die("free", tidepool_error_text());
  }

  tidepool_heap* heap() const { return heap_; }
  template <typename U>
  bool operator==(const Allocator<U>& other) const {
    return heap_ == other.heap();
  }

 private:
  tidepool_heap* heap_;
};

}  // namespace tidepool::api

#include "tables.hpp"

#endif  // TIDEPOOL_TIDEPOOL_HPP
