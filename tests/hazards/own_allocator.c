// SPDX-License-Identifier: Apache-2.0
// A program with an allocator of its own, which maps memory with its lock held, and which a
// library's constructor calls before ours has run. Whatever is done in its mapping calls may not
// allocate.
#include <pthread.h>
#include <stdatomic.h>

#include "tests/hazards/hazard.h"

static atomic_flag lock;
static char *at, *end;

static void* take(size_t size) {
  size = (size + 31) & ~(size_t)15;
  while (atomic_flag_test_and_set(&lock)) {
  }
  if ((size_t)(end - at) < size) {
    const size_t more = size > MIB ? size : MIB;
    at = mmap(NULL, more, kRw, kPlain, -1, 0);
    end = at + more;
  }
  char* block = at;
  at += size;
  *(size_t*)block = size - 16;
  atomic_flag_clear(&lock);
  return block + 16;
}
void* malloc(size_t size) { return take(size); }
void free(void* block) { (void)block; }
void* calloc(size_t count, size_t size) { return memset(take(count * size), 0, count * size); }
void* realloc(void* block, size_t size) {
  void* moved = take(size);
  const size_t old_size = block != NULL ? ((size_t*)block)[-2] : 0;
  if (block != NULL) memcpy(moved, block, old_size < size ? old_size : size);
  return moved;
}

static void* allocateMuch(void* seed) {
  size_t wrong = 0;
  for (size_t i = 0; i < 64; ++i) {
    char* block = malloc(64 * 1024);
    fill(block, 64 * 1024, (uint64_t)(uintptr_t)seed);
    wrong += wrongWords(block, 64 * 1024, (uint64_t)(uintptr_t)seed);
  }
  return (void*)wrong;
}

int main(void) {
  char* data = farBlock(8 * MIB, 1);
  pthread_t threads[2];
  for (size_t i = 0; i < 2; ++i) {
    EXPECT(pthread_create(&threads[i], NULL, allocateMuch, (void*)(i + 1)) == 0);
  }
  for (size_t i = 0; i < 2; ++i) {
    void* wrong = NULL;
    EXPECT(pthread_join(threads[i], &wrong) == 0 && wrong == NULL);
  }
  fflush(stdout);
  const pid_t child = fork();
  if (child == 0) {
    EXPECT(wrongWords(data, 8 * MIB, 1) == 0);
    EXPECT(allocateMuch((void*)7) == NULL);
    return done("child");
  }
  ended("child", child);
  EXPECT(wrongWords(data, 8 * MIB, 1) == 0);
  return done("own_allocator");
}
