// SPDX-License-Identifier: Apache-2.0
// EXPECT for the small programs that run with and without the preload: prints the failing line and
// goes on; main returns failures(). Not thread-safe beyond the counter.
#pragma once

#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// Atomic by the compiler's built-ins, for C and C++ alike.
static int check_failures;

#define EXPECT(condition)                                                              \
  do {                                                                                 \
    if (!(condition)) {                                                                \
      printf("%s:%d: failed: %s (errno %d)\n", __FILE__, __LINE__, #condition, errno); \
      __atomic_fetch_add(&check_failures, 1, __ATOMIC_RELAXED);                        \
    }                                                                                  \
  } while (0)

static inline int failures(void) { return __atomic_load_n(&check_failures, __ATOMIC_RELAXED) != 0; }

// 16 MiB that stay: under a smaller budget some of them are far when the program ends.
static inline void leaveSome(void) {
  char* block = (char*)malloc(16u << 20);
  EXPECT(block != NULL);
  if (block != NULL) memset(block, 1, 16u << 20);
}

// Keeps the compiler from seeing through an allocation.
static inline void* opaque(void* pointer) {
  __asm__ volatile("" : "+r"(pointer) : : "memory");
  return pointer;
}

static inline int allBytesAre(const void* memory, unsigned char value, size_t size) {
  const unsigned char* bytes = (const unsigned char*)memory;
  for (size_t i = 0; i < size; ++i) {
    if (bytes[i] != value) return 0;
  }
  return 1;
}
