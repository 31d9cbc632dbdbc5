// SPDX-License-Identifier: Apache-2.0
// Where jemalloc keeps its own tables: one reserved range of ordinary memory outside the managed
// space (the kernel counts it like any other anonymous memory). Arena 0 lives there too; it serves
// only jemalloc itself, and threads that allocate after their thread-local destructors have run.
// One range, so that free() can tell such blocks by address. Thread-safe. Sizes are bytes.
#pragma once

#include <cstdint>

namespace tidepool {

struct HeapMetadataRange {
  uintptr_t base = 0;
  uintptr_t size = 0;
};
extern HeapMetadataRange heap_metadata;  // written once, before jemalloc starts

/// Reserves the range. False when the address space is too short.
bool reserveHeapMetadata();

inline bool isHeapMetadata(const void* pointer) {
  return reinterpret_cast<uintptr_t>(pointer) - heap_metadata.base < heap_metadata.size;
}

/// What jemalloc asked pthread_atfork for; to be run in lock order.
struct HeapForkHooks {
  void (*prepare)() = nullptr;
  void (*parent)() = nullptr;
  void (*child)() = nullptr;
};
extern HeapForkHooks heap_fork_hooks;

}  // namespace tidepool
