// SPDX-License-Identifier: Apache-2.0
// The interposed malloc family. The hot functions look at one word of TLS and go to jemalloc; every
// odd case (first call of a thread, huge blocks, foreign pointers, our own threads) is in a
// no-inline function below them. Semantics are glibc's. Operators new and delete are not exported:
// those of libstdc++ call malloc and free, and a program that replaces them must keep its own.
#include <malloc.h>
#include <sys/single_threaded.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstdint>
#include <cstring>

#include "allocator/arena/heap_metadata.h"
#include "allocator/arena/tpje.h"
#include "runtime/base/check.h"
#include "shim/engine.h"
#include "shim/export.h"
#include "shim/internal_heap.h"
#include "shim/libc_state.h"
#include "shim/managed_heap.h"

namespace tidepool {
namespace {

constexpr size_t kMallocAlignment = 16;
enum class Fill : uint8_t { kNone, kZero };

/// jemalloc aligns blocks of up to 8 bytes to 8; programs built for glibc may rely on 16.
size_t atLeastAligned(size_t size) { return std::max<size_t>(size, kMallocAlignment / 2 + 1); }

bool isBoundThread() { return __builtin_expect(t_thread_mode == ThreadMode::kManaged, 1); }

void* allocateManaged(size_t size, size_t alignment, Fill fill) {
  if (size >= kHugeBytes || alignment > kLargestArenaAlignment) {
    return allocateHuge(size, alignment);
  }
  if (alignment > kMallocAlignment) return tpje_memalign(alignment, size);  // never with kZero
  size = atLeastAligned(size);
  return fill == Fill::kZero ? tpje_calloc(1, size) : tpje_malloc(size);
}

/// Without a locked instruction in a process of one thread, as libc's own allocator does it: two of
/// them would cost a small program as much as its malloc and free do.
void countAsleep(int64_t bytes) {
  if (__libc_single_threaded) {
    asleep_bytes.store(asleep_bytes.load(std::memory_order_relaxed) + bytes,
                       std::memory_order_relaxed);
  } else {
    asleep_bytes.fetch_add(bytes, std::memory_order_relaxed);
  }
}

void* allocateFromLibc(size_t size, size_t alignment, Fill fill) {
  if (alignment > kMallocAlignment) return libc_allocator.memalign(alignment, size);
  return fill == Fill::kZero ? libc_allocator.calloc(1, size) : libc_allocator.malloc(size);
}

/// For a process that is asleep; null: it is awake now, or the memory cannot be had.
void* allocateAsleep(size_t size, size_t alignment, Fill fill, const void* caller) {
  if (isWorthWaking(size, caller) && wake()) return nullptr;
  void* const block = allocateFromLibc(size, alignment, fill);
  if (block != nullptr) countAsleep(static_cast<int64_t>(libc_allocator.malloc_usable_size(block)));
  return block;
}

/// Serves any thread in any state. `alignment` is a power of two; `caller` is where the program's
/// call returns to.
[[gnu::noinline]] void* allocateSlow(size_t size, size_t alignment, Fill fill, const void* caller) {
  void* block = nullptr;
  if (t_thread_mode == ThreadMode::kUnbound &&
      (isAsleep() || threadMode() == ThreadMode::kAsleep)) {
    block = allocateAsleep(size, alignment, fill, caller);
    if (block != nullptr) return block;
  }
  switch (threadMode()) {
    case ThreadMode::kAsleep:
      break;  // libc has none
    case ThreadMode::kManaged:
      block = allocateManaged(size, alignment, fill);
      break;
    case ThreadMode::kLibc:
      block = allocateFromLibc(size, alignment, fill);
      break;
    case ThreadMode::kUnbound:
    case ThreadMode::kInternal:
      block = fill == Fill::kZero ? internalHeap().allocateZeroed(size)
                                  : internalHeap().allocate(size, alignment);
      break;
  }
  if (block == nullptr) errno = ENOMEM;
  return block;
}

[[gnu::noinline]] void freeSlow(void* block) {
  if (block == nullptr) return;
  if (isAsleep() && !internalHeap().contains(block)) {
    countAsleep(-static_cast<int64_t>(libc_allocator.malloc_usable_size(block)));
    return libc_allocator.free(block);
  }
  const int saved_errno = errno;  // free() leaves errno alone
  if (isManaged(block)) {
    threadMode();  // a thread's first call may be a free
    if (!releaseHuge(block)) tpje_free(block);
  } else if (internalHeap().contains(block)) {
    internalHeap().release(block);
  } else if (isHeapMetadata(block)) {
    tpje_free(block);
  } else {
    if (libc_allocator.free == nullptr) threadMode();
    // Before libc is up nobody can hold a block of libc's: it would be a stray pointer.
    TP_CHECK(libc_allocator.free != nullptr);
    libc_allocator.free(block);
  }
  errno = saved_errno;
}

size_t usableSize(void* block) {
  if (block == nullptr) return 0;
  if (isManaged(block)) {
    threadMode();
    const size_t huge = hugeSize(block);
    return huge != 0 ? huge : tpje_malloc_usable_size(block);
  }
  if (internalHeap().contains(block)) return internalHeap().usableSize(block);
  if (isHeapMetadata(block)) return tpje_malloc_usable_size(block);
  return libc_allocator.malloc_usable_size != nullptr ? libc_allocator.malloc_usable_size(block)
                                                      : 0;
}

/// A new block where this thread's blocks now belong, with the contents of the old one.
void* moveBlock(void* block, size_t old_size, size_t new_size, const void* caller) {
  void* moved = allocateSlow(new_size, kMallocAlignment, Fill::kNone, caller);
  if (moved == nullptr) return nullptr;
  memcpy(moved, block, std::min(old_size, new_size));
  freeSlow(block);
  return moved;
}

[[gnu::noinline]] void* reallocSlow(void* block, size_t size, const void* caller) {
  if (block == nullptr) return allocateSlow(size, kMallocAlignment, Fill::kNone, caller);
  if (size == 0) {
    freeSlow(block);
    return nullptr;
  }
  const ThreadMode mode = threadMode();
  const bool ours = isManaged(block) || internalHeap().contains(block) || isHeapMetadata(block);
  const size_t old_size = usableSize(block);
  // What libc gave while the process was asleep stays with libc, unless it grows now.
  if (!ours && (mode == ThreadMode::kLibc || size <= old_size)) {
    return libc_allocator.realloc(block, size);
  }
  if (mode == ThreadMode::kManaged && isManaged(block)) {
    const size_t old_huge = hugeSize(block);
    if (old_huge != 0 && size >= kHugeBytes) {
      // The runtime moves pages, in whichever tier they are, instead of copying bytes.
      if (void* moved = resizeHuge(block, size)) return moved;
    } else if (old_huge == 0 && size < kHugeBytes) {
      return tpje_realloc(block, atLeastAligned(size));
    }
  }
  return moveBlock(block, old_size, size, caller);
}

/// For blocks that stay out of managed memory as they grow.
[[gnu::noinline]] void* reallocInternal(void* block, size_t size) {
  void* moved = internalHeap().allocate(size);
  if (moved == nullptr) {
    errno = ENOMEM;
    return nullptr;
  }
  if (block != nullptr) memcpy(moved, block, std::min(usableSize(block), size));
  freeSlow(block);
  return moved;
}

/// As glibc: an alignment that is no power of two is rounded up to one. 0 if there is none.
size_t roundAlignment(size_t alignment) {
  if (alignment > SIZE_MAX / 2 + 1) return 0;
  return std::max(kMallocAlignment, std::bit_ceil(alignment));
}

void* allocateAligned(size_t alignment, size_t size, const void* caller) {
  const size_t rounded = roundAlignment(alignment);
  if (rounded == 0) {
    errno = EINVAL;
    return nullptr;
  }
  return allocateSlow(size, rounded, Fill::kNone, caller);
}

}  // namespace
}  // namespace tidepool

using namespace tidepool;

extern "C" {

TP_EXPORT void* malloc(size_t size) noexcept {
  // A thread's first call may be this one: so whether it is bound does not matter.
  const void* caller = __builtin_return_address(0);
  if (isNameService(size, caller) || isLoaders(caller)) return internalHeap().allocate(size);
  if (isBoundThread() && size < kHugeBytes) return tpje_malloc(atLeastAligned(size));
  return allocateSlow(size, kMallocAlignment, Fill::kNone, caller);
}

TP_EXPORT void* calloc(size_t count, size_t size) noexcept {
  size_t bytes;
  if (__builtin_mul_overflow(count, size, &bytes)) {
    errno = ENOMEM;
    return nullptr;
  }
  const void* caller = __builtin_return_address(0);
  if (isThreadData(count, bytes, caller) || isLoaders(caller)) {
    return internalHeap().allocateZeroed(bytes);
  }
  if (isBoundThread() && bytes < kHugeBytes) return tpje_calloc(1, atLeastAligned(bytes));
  return allocateSlow(bytes, kMallocAlignment, Fill::kZero, caller);
}

TP_EXPORT void free(void* block) noexcept {
  if (isBoundThread() && isManaged(block) && hugeSize(block) == 0) {
    tpje_free(block);
    return;
  }
  freeSlow(block);
}

TP_EXPORT void cfree(void* block) noexcept { free(block); }

TP_EXPORT void* realloc(void* block, size_t size) noexcept {
  const void* caller = __builtin_return_address(0);
  if (isLoaders(caller)) return reallocInternal(block, size);
  if (isBoundThread() && isManaged(block) && hugeSize(block) == 0 && size != 0 &&
      size < kHugeBytes) {
    return tpje_realloc(block, atLeastAligned(size));
  }
  return reallocSlow(block, size, caller);
}

TP_EXPORT void* reallocarray(void* block, size_t count, size_t size) noexcept {
  size_t bytes;
  if (__builtin_mul_overflow(count, size, &bytes)) {
    errno = ENOMEM;
    return nullptr;
  }
  return realloc(block, bytes);
}

TP_EXPORT int posix_memalign(void** out, size_t alignment, size_t size) noexcept {
  if (!std::has_single_bit(alignment) || alignment % sizeof(void*) != 0) return EINVAL;
  const int saved_errno = errno;  // the error is the result; errno stays
  void* block = allocateAligned(alignment, size, __builtin_return_address(0));
  errno = saved_errno;
  if (block == nullptr) return ENOMEM;
  *out = block;
  return 0;
}

TP_EXPORT void* memalign(size_t alignment, size_t size) noexcept {
  return allocateAligned(alignment, size, __builtin_return_address(0));
}
TP_EXPORT void* aligned_alloc(size_t alignment, size_t size) noexcept {
  return allocateAligned(alignment, size, __builtin_return_address(0));
}
TP_EXPORT void* valloc(size_t size) noexcept {
  return allocateAligned(kPageSize, size, __builtin_return_address(0));
}

TP_EXPORT void* pvalloc(size_t size) noexcept {
  if (size > SIZE_MAX - kPageSize) {
    errno = ENOMEM;
    return nullptr;
  }
  return allocateAligned(kPageSize, roundUp(std::max<size_t>(size, 1), kPageSize),
                         __builtin_return_address(0));
}

TP_EXPORT size_t malloc_usable_size(void* block) noexcept { return usableSize(block); }

/// Purges what jemalloc holds back. 1 says that memory may have been returned.
TP_EXPORT int malloc_trim(size_t pad) noexcept {
  const ThreadMode mode = threadMode();
  if (mode == ThreadMode::kLibc || mode == ThreadMode::kAsleep) {
    return libc_allocator.malloc_trim(pad);
  }
  if (!isBoundThread()) return 0;
  tpje_mallctl("thread.tcache.flush", nullptr, nullptr, nullptr, 0);
  tpje_mallctl("arena.4096.purge", nullptr, nullptr, nullptr, 0);  // 4096: every arena
  return 1;
}

}  // extern "C"
