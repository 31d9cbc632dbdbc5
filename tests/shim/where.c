// SPDX-License-Identifier: Apache-2.0
// Run under the preload only: memory of every size must come from one managed range, large blocks
// aligned to a granule; with the argument "libc", from libc's own heap instead.
#define _GNU_SOURCE
#include <malloc.h>
#include <pthread.h>
#include <sys/mman.h>
#include <unistd.h>

#include "check.h"

static char* brk_start;
static uintptr_t lowest = UINTPTR_MAX, highest;

static int inBrkHeap(const void* block) {
  return (const char*)block >= brk_start && (const char*)block < (const char*)sbrk(0);
}

static void note(const void* block) {
  const uintptr_t at = (uintptr_t)block;
  EXPECT(block != NULL && block != MAP_FAILED && !inBrkHeap(block));
  if (at < lowest) lowest = at;
  if (at > highest) highest = at;
}

static void* noteFromThread(void* unused) {
  note(malloc(24));
  return unused;
}

static size_t residentBytes(void) {
  unsigned long total = 0, resident = 0;
  FILE* file = fopen("/proc/self/statm", "r");
  EXPECT(file != NULL && fscanf(file, "%lu %lu", &total, &resident) == 2);
  fclose(file);
  return resident * 4096;
}

// What is freed goes back: at once from huge blocks and mappings, on demand from the rest.
static void freedMemoryReturns(void) {
  enum { kBlocks = 200, kMany = 1000000 };
  static char* blocks[kMany];
  const size_t before = residentBytes();
  for (int i = 0; i < kBlocks; ++i) memset(blocks[i] = malloc(1 << 20), 1, 1 << 20);
  EXPECT(residentBytes() > before + (190u << 20));
  for (int i = 0; i < kBlocks; ++i) free(blocks[i]);
  for (int i = 0; i < kMany; ++i) memset(blocks[i] = malloc(100), 1, 100);
  for (int i = 0; i < kMany; ++i) free(blocks[i]);
  malloc_trim(0);
  EXPECT(residentBytes() < before + (40u << 20));
  char* huge = malloc(100 << 20);
  memset(huge, 1, 100 << 20);
  free(huge);
  EXPECT(residentBytes() < before + (40u << 20));
}

// Whether the kernel asks a userfaultfd for what is missing there.
static int isServed(const void* at) {
  unsigned long start = 0, end = 0;
  char line[512];
  int inside = 0, served = 0;
  FILE* file = fopen("/proc/self/smaps", "r");
  EXPECT(file != NULL);
  while (fgets(line, sizeof line, file) != NULL) {
    if (sscanf(line, "%lx-%lx ", &start, &end) == 2) {
      inside = (uintptr_t)at >= start && (uintptr_t)at < end;
    } else if (inside && strncmp(line, "VmFlags:", 8) == 0) {
      served = strstr(line, " um") != NULL;
    }
  }
  fclose(file);
  return served;
}

// V8 says it of all its heap.
static void adviceOnForkChangesNothing(void) {
  const size_t size = 1 << 20;
  char* range = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  EXPECT(isServed(range));
  EXPECT(madvise(range, size, MADV_DONTFORK) == 0 && isServed(range));
  EXPECT(madvise(range, size, MADV_DOFORK) == 0 && isServed(range));
  munmap(range, size);
}

int main(int argc, char** argv) {
  // The heap that brk gives lies between the end of the program's data and sbrk(0).
  extern char end;
  brk_start = &end;
  void* small = opaque(malloc(24));
  if (argc > 1 && strcmp(argv[1], "libc") == 0) return inBrkHeap(small) ? 0 : 1;
  note(small);
  for (size_t size = 1; size < 2000u << 20; size *= 3) note(opaque(malloc(size)));
  pthread_t thread;
  pthread_create(&thread, NULL, noteFromThread, NULL);
  pthread_join(thread, NULL);
  EXPECT((uintptr_t)malloc(800u << 20) % (2 << 20) == 0);
  EXPECT(highest - lowest < (uintptr_t)1 << 34);  // first fit: close together in the space
  // What the program maps has another part of it, where the heap takes no hole.
  const uintptr_t first = lowest, last = highest;
  const uintptr_t mapped =
      (uintptr_t)mmap(NULL, 1 << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  note((void*)mapped);
  EXPECT(mapped < first || mapped > last);
  freedMemoryReturns();
  adviceOnForkChangesNothing();
  return failures();
}
