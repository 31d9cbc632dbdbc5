// SPDX-License-Identifier: Apache-2.0
// A Runtime without tiers, for testing the shim by itself: one reservation, a first-fit allocator
// of ranges, and the kernel's own paging underneath. Thread-safe; also the smallest option parser
// that the shim's tests need. Stricter than the real thing about its callers: a range that is not
// allocated is refused.
#include <pthread.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <thread>
#include <unordered_map>

#include "allocator/arena/raw_syscalls.h"
#include "runtime/base/check.h"
#include "runtime/base/internal_thread.h"
#include "runtime/base/mutex.h"
#include "runtime/runtime.h"

namespace tidepool {

namespace {
constexpr int kReserveFlags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED;
constexpr uint64_t kLeastSpace = 64 * kMiB;
}  // namespace

struct Runtime::Impl {
  Mutex mutex;
  Mutex service_mutex;
  CondVar service_wake;
  std::map<uintptr_t, uintptr_t> free_ranges TP_GUARDED_BY(mutex);  // start -> end

  uintptr_t take(uintptr_t size, uintptr_t alignment) TP_REQUIRES(mutex) {
    for (auto range = free_ranges.begin(); range != free_ranges.end(); ++range) {
      const uintptr_t start = roundUp(range->first, alignment);
      if (start + size > range->second || start + size < start) continue;
      const uintptr_t end = range->second;
      if (start == range->first) {
        free_ranges.erase(range);
      } else {
        range->second = start;
      }
      if (start + size < end) free_ranges[start + size] = end;
      return start;
    }
    return 0;
  }

  bool allocated(uintptr_t start, uintptr_t size) TP_REQUIRES(mutex) {
    auto next = free_ranges.lower_bound(start + size);
    return next == free_ranges.begin() || std::prev(next)->second <= start;
  }

  void give(uintptr_t start, uintptr_t size) TP_REQUIRES(mutex) {
    uintptr_t end = start + size;
    auto next = free_ranges.lower_bound(start);
    if (next != free_ranges.end() && next->first == end) {
      end = next->second;
      next = free_ranges.erase(next);
    }
    if (next != free_ranges.begin() && std::prev(next)->second == start) {
      std::prev(next)->second = end;
    } else {
      free_ranges[start] = end;
    }
  }

  Status check(void* address, Bytes size) {
    const uintptr_t start = reinterpret_cast<uintptr_t>(address);
    if (start % kPageSize != 0 || size.value() % kPageSize != 0) {
      return fail(ErrorCode::kInvalidArgument, "unaligned range; align it to a page");
    }
    MutexLock lock(mutex);
    if (!allocated(start, size.value())) return fail(ErrorCode::kNotFound, "range not allocated");
    return {};
  }
};

namespace {
// fork() while another thread holds the lock: the child must find it free.
Mutex* fork_mutex = nullptr;
void lockForFork() TP_LOCKS_BY_HAND { fork_mutex->lock(); }
void unlockAfterFork() TP_LOCKS_BY_HAND { fork_mutex->unlock(); }
}  // namespace

namespace {

// As the real runtime's service threads do: it lives for as long as the process and allocates with
// everything the C++ library offers, none of which may come from managed memory (invariant I2).
void serve(const Runtime* runtime, Mutex* mutex, CondVar* wake) {
  enterInternalThread();
  std::unordered_map<int, std::string> words;
  std::function<void(int)> add = [&words](int i) { words[i] = std::string(100, 'w'); };
  for (int i = 0; i < 1000; ++i) add(i);
  for (const auto& [key, word] : words) TP_CHECK(!runtime->contains(word.data()));
  TP_CHECK(!runtime->contains(malloc(100'000'000)));
  MutexLock lock(*mutex);
  for (;;) wake->wait(*mutex);
}

}  // namespace

void Runtime::beforeFork(ForkKind) { lockForFork(); }
void Runtime::afterForkInParent() { unlockAfterFork(); }
void Runtime::afterForkInChild() { unlockAfterFork(); }
void Runtime::afterUnpreparedFork() {}

Runtime::Runtime() : impl_(new Impl) {}
Runtime::~Runtime() = default;

Result<std::unique_ptr<Runtime>> Runtime::start(const Options& options) {
  if (options.space.value() < kLeastSpace) {
    return fail(ErrorCode::kInvalidArgument, "space is too small; set space to 64M or more");
  }
  std::unique_ptr<Runtime> runtime(new Runtime());
  void* range = raw::reserve(options.space.value());
  if (range == MAP_FAILED) return failErrno(ErrorCode::kNoMemory, "cannot reserve the space");
  runtime->base_ = reinterpret_cast<uintptr_t>(range);
  runtime->size_ = options.space.value();
  fork_mutex = &runtime->impl_->mutex;
  pthread_atfork(lockForFork, afterForkInParent, afterForkInChild);
  std::thread(serve, runtime.get(), &runtime->impl_->service_mutex, &runtime->impl_->service_wake)
      .detach();
  MutexLock lock(runtime->impl_->mutex);
  runtime->impl_->free_ranges[runtime->base_] = runtime->base_ + runtime->size_;
  return runtime;
}

Result<void*> Runtime::allocate(Bytes size, Bytes alignment, RangeUse) {
  const uintptr_t bytes = roundUp(size.value(), kPageSize);
  uintptr_t start;
  {
    MutexLock lock(impl_->mutex);
    start = impl_->take(bytes, alignment.value());
  }
  void* address = reinterpret_cast<void*>(start);
  if (start == 0 || !raw::commit(address, bytes)) {
    return fail(ErrorCode::kNoMemory, "the space is full");
  }
  return address;
}

// Protections are unknown here, so what is reserved counts as plain from the first.
Result<void*> Runtime::reserve(Bytes size, Bytes alignment) {
  auto range = allocate(size, alignment);
  if (range) TP_TRY(protect(*range, Bytes(roundUp(size.value(), kPageSize)), PROT_NONE));
  return range;
}

Status Runtime::reserveAt(void* address, Bytes size) {
  TP_TRY(claim(address, size));
  return protect(address, size, PROT_NONE);
}

Status Runtime::withdraw(void* address, Bytes size) {
  TP_TRY(discard(address, size));
  return protect(address, size, PROT_NONE);
}

Status Runtime::claim(void* address, Bytes size) {
  const uintptr_t start = reinterpret_cast<uintptr_t>(address);
  MutexLock lock(impl_->mutex);
  for (uintptr_t at = start; at < start + size.value(); at += kPageSize) {
    if (impl_->allocated(at, kPageSize)) return fail(ErrorCode::kConflict, "the range is in use");
  }
  auto range = std::prev(impl_->free_ranges.upper_bound(start));
  const uintptr_t end = range->second;
  if (range->first == start) {
    impl_->free_ranges.erase(range);
  } else {
    range->second = start;
  }
  if (start + size.value() < end) impl_->free_ranges[start + size.value()] = end;
  if (raw::commit(address, size.value())) return {};
  return failErrno(ErrorCode::kNoMemory, "cannot map a range");
}

// Does not know protections: all that is handed out counts as plain.
ProtectionSpan Runtime::spanAt(const void* address, Bytes size) const {
  const uintptr_t start = reinterpret_cast<uintptr_t>(address);
  MutexLock lock(impl_->mutex);
  const bool taken = impl_->allocated(start, kPageSize);
  uintptr_t length = kPageSize;
  while (length < size.value() && impl_->allocated(start + length, kPageSize) == taken) {
    length += kPageSize;
  }
  return {taken ? PROT_READ | PROT_WRITE : kNotHandedOut, Bytes(length)};
}

bool Runtime::isEmpty(const void*) const { return false; }
void Runtime::refreshStats() {}

Status Runtime::release(void* address, Bytes size) {
  TP_TRY(impl_->check(address, size));
  if (raw::mmap(address, size.value(), PROT_NONE, kReserveFlags, -1, 0) != address) {
    return failErrno(ErrorCode::kNoMemory, "cannot release a range");
  }
  MutexLock lock(impl_->mutex);
  impl_->give(reinterpret_cast<uintptr_t>(address), size.value());
  return {};
}

Status Runtime::discard(void* address, Bytes size) {
  TP_TRY(impl_->check(address, size));
  if (raw::madvise(address, size.value(), MADV_DONTNEED) != 0) {
    return failErrno(ErrorCode::kInvalidArgument, "cannot discard a range");
  }
  return {};
}

void Runtime::surrender(void*, Bytes) {}

void Runtime::keepLocal(const void*, Bytes) {}
bool Runtime::holdStill(const void*) { return false; }
void Runtime::letMove(const void*) {}

Status Runtime::protect(void* address, Bytes size, int protection) {
  TP_TRY(impl_->check(address, size));
  if (raw::mprotect(address, size.value(), protection) != 0) {
    return failErrno(ErrorCode::kInvalidArgument, "cannot protect a range");
  }
  return {};
}

Result<void*> Runtime::resize(void* address, Bytes old_size, Bytes new_size) {
  TP_TRY(impl_->check(address, old_size));
  const uintptr_t start = reinterpret_cast<uintptr_t>(address);
  if (new_size <= old_size) {
    if (new_size == old_size) return address;
    TP_TRY(release(reinterpret_cast<void*>(start + new_size.value()), old_size - new_size));
    return address;
  }
  auto moved = allocate(new_size, Bytes(start % kGranuleSize == 0 ? kGranuleSize : kPageSize));
  if (!moved) return moved;
  raw::mremap(address, old_size.value(), old_size.value(), MREMAP_MAYMOVE | MREMAP_FIXED, *moved);
  raw::mmap(address, old_size.value(), PROT_NONE, kReserveFlags, -1, 0);
  MutexLock lock(impl_->mutex);
  impl_->give(start, old_size.value());
  return moved;
}

void Runtime::willNeed(void*, Bytes) {}
void Runtime::cold(void*, Bytes) {}

StatsPage& Runtime::stats() {
  static StatsPage page{};
  return page;
}

// Keys that the shim's tests use; numbers are plain bytes.
Result<Options> parseOptions(std::string_view text, void (*warn)(const char* line)) {
  Options options;
  while (!text.empty()) {
    const std::string_view item = text.substr(0, text.find(','));
    text.remove_prefix(std::min(text.size(), item.size() + 1));
    const std::string_view key = item.substr(0, item.find(':'));
    const std::string_view value =
        key.size() < item.size() ? item.substr(key.size() + 1) : std::string_view();
    if (key == "strict") {
      options.strict = value == "true";
    } else if (key == "space") {
      uint64_t bytes = 0;
      for (const char digit : value) {
        if (digit < '0' || digit > '9') {
          return fail(ErrorCode::kInvalidArgument, "space is no number; write it in bytes");
        }
        bytes = bytes * 10 + static_cast<uint64_t>(digit - '0');
      }
      options.space = Bytes(bytes);
    } else if (key == "stats_file") {
      memcpy(options.stats_file, value.data(),
             std::min(value.size(), sizeof options.stats_file - 1));
    } else if (warn != nullptr) {
      warn("unknown option");
    }
  }
  return options;
}

}  // namespace tidepool
