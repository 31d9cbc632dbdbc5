// SPDX-License-Identifier: Apache-2.0
// The parts of jemalloc's documented interface that Tidepool uses, under the names that the build
// gives them (rename_jemalloc.cmake): no jemalloc symbol keeps its own name or leaves our
// libraries, so a program that brings its own jemalloc never meets ours. Thread-safe. Sizes are
// bytes.
#pragma once

#include <cstddef>

extern "C" {
void* tpje_malloc(size_t size);
void* tpje_calloc(size_t count, size_t size);
void* tpje_realloc(void* block, size_t size);
void* tpje_memalign(size_t alignment, size_t size);
void tpje_free(void* block);
size_t tpje_malloc_usable_size(const void* block);
void* tpje_mallocx(size_t size, int flags);
void* tpje_rallocx(void* block, size_t size, int flags);
void tpje_dallocx(void* block, int flags);
size_t tpje_sallocx(const void* block, int flags);
size_t tpje_nallocx(size_t size, int flags);
int tpje_mallctl(const char* name, void* old_value, size_t* old_size, void* new_value,
                 size_t new_size);
}

/// As jemalloc.h has it: how an arena gets, gives back and purges its extents.
struct TpjeExtentHooks {
  void* (*alloc)(TpjeExtentHooks*, void* wanted, size_t size, size_t alignment, bool* zero,
                 bool* commit, unsigned arena);
  bool (*dalloc)(TpjeExtentHooks*, void* address, size_t size, bool committed, unsigned arena);
  void (*destroy)(TpjeExtentHooks*, void* address, size_t size, bool committed, unsigned arena);
  bool (*commit)(TpjeExtentHooks*, void*, size_t, size_t offset, size_t length, unsigned arena);
  bool (*decommit)(TpjeExtentHooks*, void*, size_t, size_t offset, size_t length, unsigned arena);
  bool (*purge_lazy)(TpjeExtentHooks*, void*, size_t, size_t offset, size_t length, unsigned);
  bool (*purge_forced)(TpjeExtentHooks*, void*, size_t, size_t offset, size_t length, unsigned);
  bool (*split)(TpjeExtentHooks*, void*, size_t, size_t, size_t, bool committed, unsigned arena);
  bool (*merge)(TpjeExtentHooks*, void*, size_t, void*, size_t, bool committed, unsigned arena);
};

namespace tidepool {

// Flags of the *x functions, as jemalloc's header composes them.
inline constexpr int kTpjeZero = 0x40;
inline constexpr int kTpjeNoCache = 1 << 8;
constexpr int tpjeArena(unsigned arena) { return static_cast<int>((arena + 1) << 20); }
constexpr int tpjeCache(unsigned cache) { return static_cast<int>((cache + 2) << 8); }
/// `alignment` is a power of two.
constexpr int tpjeAlign(size_t alignment) { return __builtin_ctzl(alignment); }

}  // namespace tidepool
