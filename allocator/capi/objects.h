// SPDX-License-Identifier: Apache-2.0
// What the handles of the C API stand for, and how its functions find them.
#pragma once

#include <cstring>

#include "allocator/capi/handles.h"
#include "allocator/capi/last_error.h"
#include "allocator/context.h"
#include "allocator/heap/heap_table.h"

struct tidepool_options {
  tidepool::Options options;
};
struct tidepool_context : tidepool::HandleSlot<tidepool::Context> {};
struct tidepool_heap : tidepool::HandleSlot<tidepool::Heap> {};

namespace tidepool {

using ContextSlots = HandleSlots<Context, 64>;
using HeapSlots = HandleSlots<Heap, 8192>;

inline constinit ContextSlots context_slots;
inline constinit HeapSlots heap_slots;

/// Null: it has been reported why.
inline Context* contextOf(tidepool_context* handle) {
  if (handle == nullptr) {
    reportNull("context");
    return nullptr;
  }
  Context* const context = context_slots.isOurs(handle) ? ContextSlots::find(handle) : nullptr;
  if (context == nullptr) reportClosed("context");
  return context;
}

[[gnu::noinline]] inline void reportNoHeap(const tidepool_heap* handle) {
  handle == nullptr ? reportNull("heap") : reportClosed("heap");
}

inline Heap* heapOf(tidepool_heap* handle) {
  if (__builtin_expect(heap_slots.isOurs(handle), 1)) {
    if (Heap* const heap = HeapSlots::find(handle)) return heap;
  }
  reportNoHeap(handle);
  return nullptr;
}

/// How much of a structure of the caller's there is, and ours to fill in. 0: it is too short.
template <typename Struct>
size_t sizeToFill(const Struct& out) {
  return out.struct_size < sizeof out.struct_size ? 0 : std::min(out.struct_size, sizeof out);
}

/// Copies what fits of `from`, whose struct_size becomes what was there before.
template <typename Struct>
tidepool_status fillIn(Struct* out, Struct from) {
  const size_t size = sizeToFill(*out);
  if (size == 0) {
    return report(Error::make(ErrorCode::kInvalidArgument,
                              "struct_size is %zu: set it to the sizeof of the structure",
                              out->struct_size));
  }
  from.struct_size = out->struct_size;
  memcpy(out, &from, size);
  return TIDEPOOL_OK;
}

}  // namespace tidepool
