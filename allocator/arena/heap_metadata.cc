// SPDX-License-Identifier: Apache-2.0
// The operating system as our jemalloc sees it. The build renames its calls to mmap, getenv and the
// like to the tpje_os_* functions below: its tables come from one range of ours, and settings that
// the user made for another jemalloc in the program (MALLOC_CONF, /etc/malloc.conf) stay away.
#include "allocator/arena/heap_metadata.h"

#include <sys/types.h>

#include <atomic>
#include <cerrno>
#include <cmath>
#include <cstdlib>

#include "allocator/arena/raw_syscalls.h"
#include "runtime/base/units.h"

namespace tidepool {

constinit HeapMetadataRange heap_metadata;
constinit HeapForkHooks heap_fork_hooks;

namespace {

// Address space only. jemalloc's page map takes 4 MiB of it a GiB of heap, touched as needed.
constexpr size_t kWantedReservation = 256 * kGiB;
constexpr size_t kLeastReservation = 1 * kGiB;

constinit std::atomic<uintptr_t> next_free{0};

}  // namespace

bool reserveHeapMetadata() {
  for (size_t size = kWantedReservation; size >= kLeastReservation; size /= 2) {
    void* range = raw::reserve(size);
    if (range == MAP_FAILED) continue;
    heap_metadata = {reinterpret_cast<uintptr_t>(range), size};
    next_free.store(roundUp(heap_metadata.base, kGranuleSize), std::memory_order_relaxed);
    return true;
  }
  return false;
}

}  // namespace tidepool

using tidepool::heap_metadata;
using tidepool::kGranuleSize;
using tidepool::kPageSize;
using tidepool::next_free;
using tidepool::roundUp;

extern "C" {

// A bump allocator: jemalloc keeps its tables for good, so nothing is worth reusing. `hint` may be
// ignored, and is. Relaxed: each caller owns what it took; nothing is published through next_free.
void* tpje_os_mmap(void*, size_t size, int protection, int flags, int, off_t) {
  size = roundUp(size, kPageSize);
  const uintptr_t alignment = size >= kGranuleSize ? kGranuleSize : kPageSize;
  uintptr_t taken = next_free.load(std::memory_order_relaxed);
  uintptr_t start;
  do {
    start = roundUp(taken, alignment);
    if (start + size > heap_metadata.base + heap_metadata.size || start + size < start) {
      errno = ENOMEM;
      return MAP_FAILED;
    }
  } while (!next_free.compare_exchange_weak(taken, start + size, std::memory_order_relaxed));
  void* const at = tidepool::raw::mmap(reinterpret_cast<void*>(start), size, protection,
                                       flags | MAP_FIXED | MAP_NORESERVE, -1, 0);
  if (at != MAP_FAILED) tidepool::raw::madvise(at, size, MADV_DONTDUMP);
  return at;
}

int tpje_os_munmap(void* address, size_t size) {
  void* mapped = tidepool::raw::mmap(
      address, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
  if (mapped != address) return -1;
  tidepool::raw::madvise(address, size, MADV_DONTDUMP);
  return 0;
}

int tpje_os_madvise(void* address, size_t size, int advice) {
  return tidepool::raw::madvise(address, size, advice);
}

int tpje_os_mprotect(void* address, size_t size, int protection) {
  return tidepool::raw::mprotect(address, size, protection);
}

int tpje_os_pthread_atfork(void (*prepare)(), void (*parent)(), void (*child)()) {
  tidepool::heap_fork_hooks = {prepare, parent, child};
  return 0;
}

char* tpje_os_secure_getenv(const char*) { return secure_getenv("TIDEPOOL_MALLOC_CONF"); }

ssize_t tpje_os_readlink(const char*, char*, size_t) {
  errno = ENOENT;
  return -1;
}

// jemalloc's heap profiler, which is off, is the only user of these; taking them from libm would
// make the shim depend on it.
double tpje_os_log(double) { return 0; }
double tpje_os_exp(double) { return 1; }
double tpje_os_round(double value) { return value; }

}  // extern "C"
