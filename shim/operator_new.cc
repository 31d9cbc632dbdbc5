// SPDX-License-Identifier: Apache-2.0
// Operators new and delete for the code inside this library (hidden: the program's are untouched).
// libstdc++'s own would pull in exception handling and its dynamic TLS. Out of memory in the
// runtime's set-up is fatal. Thread-safe.
#include <cstdlib>
#include <new>

#include "runtime/base/check.h"

void* operator new(size_t size) {
  void* block = malloc(size != 0 ? size : 1);
  TP_CHECK(block != nullptr);
  return block;
}
void* operator new[](size_t size) { return operator new(size); }
void* operator new(size_t size, std::align_val_t alignment) {
  void* block = aligned_alloc(static_cast<size_t>(alignment), size != 0 ? size : 1);
  TP_CHECK(block != nullptr);
  return block;
}
void* operator new[](size_t size, std::align_val_t alignment) {
  return operator new(size, alignment);
}
void* operator new(size_t size, const std::nothrow_t&) noexcept { return malloc(size); }
void* operator new[](size_t size, const std::nothrow_t&) noexcept { return malloc(size); }
void operator delete(void* block) noexcept { free(block); }
void operator delete[](void* block) noexcept { free(block); }
void operator delete(void* block, size_t) noexcept { free(block); }
void operator delete[](void* block, size_t) noexcept { free(block); }
void operator delete(void* block, std::align_val_t) noexcept { free(block); }
void operator delete[](void* block, std::align_val_t) noexcept { free(block); }
void operator delete(void* block, size_t, std::align_val_t) noexcept { free(block); }
void operator delete[](void* block, size_t, std::align_val_t) noexcept { free(block); }
void operator delete(void* block, const std::nothrow_t&) noexcept { free(block); }
void operator delete[](void* block, const std::nothrow_t&) noexcept { free(block); }
