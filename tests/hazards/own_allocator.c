// SPDX-License-Identifier: Apache-2.0
// A library with an allocator of its own, opened by name at run time (jemalloc, mimalloc, where the
// machine has them): its blocks stay its own, also when they are far.
#include <dlfcn.h>

#include "tests/hazards/hazard.h"

static void use(const char* library, const char* allocate, const char* release) {
  void* handle = dlopen(library, RTLD_NOW | RTLD_LOCAL);
  if (handle == NULL) {
    printf("%s: not here\n", library);
    return;
  }
  void* (*get)(size_t) = (void* (*)(size_t))dlsym(handle, allocate);
  void (*give)(void*) = (void (*)(void*))dlsym(handle, release);
  EXPECT(get != NULL && give != NULL);
  enum { kBlocks = 200 };
  char* blocks[kBlocks];
  for (size_t i = 0; i < kBlocks; ++i) {
    blocks[i] = (char*)get(1000 * (1 + i % 100));
    fill(blocks[i], 1000 * (1 + i % 100), i);
  }
  crowd();
  uint64_t sum = 0;
  for (size_t i = 0; i < kBlocks; ++i) {
    EXPECT(wrongWords(blocks[i], 1000 * (1 + i % 100), i) == 0);
    sum += digest(blocks[i], 1000 * (1 + i % 100));
    give(blocks[i]);
  }
  printf("%s %016llx\n", library, (unsigned long long)sum);
}

int main(void) {
  crowd();
  use("libjemalloc.so.2", "malloc", "free");
  use("libmimalloc.so.2", "mi_malloc", "mi_free");
  use("libc.so.6", "malloc", "free");
  char* data = farBlock(4 * MIB, 1);
  tell("data", data, 4 * MIB);
  free(data);
  return done("own_allocator");
}
