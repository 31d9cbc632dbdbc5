// SPDX-License-Identifier: Apache-2.0
// Memory that is registered with a GPU, as libcuda asks NVIDIA's driver for it. The driver takes
// pages as they are in the page tables and waits for none, as /proc/self/mem does. No GPU is
// needed: the request is made of another device, which refuses it.
#include <sys/ioctl.h>

#include "tests/hazards/hazard.h"

struct AllocMemory {
  uint32_t root, parent, memory, kind, flags;
  uint64_t address, limit;
  uint32_t status;
  int fd;
};

static void registerWithDevice(const void* memory, size_t size) {
  const uintptr_t start = (uintptr_t)memory & ~(uintptr_t)(kPage - 1);
  struct AllocMemory call = {.kind = 0x71, .fd = -1};
  call.address = start;
  call.limit = (uintptr_t)memory + size - 1 - start;
  const int device = open("/dev/null", O_RDWR | O_CLOEXEC);
  EXPECT(ioctl(device, _IOWR('F', 0x27, struct AllocMemory), &call) == -1 && errno == ENOTTY);
  close(device);
}

/// Words that differ, seen without any page being waited for.
static size_t wrongAtOnce(const char* memory, size_t size, uint64_t seed, size_t from) {
  const int file = open("/proc/self/mem", O_RDONLY | O_CLOEXEC);
  uint64_t words[kPage / 8];
  size_t wrong = 0;
  for (size_t at = 0; at < size; at += kPage) {
    if (pread(file, words, kPage, (off_t)((uintptr_t)memory + at)) != kPage) return size;
    wrong += wrongFrom(words, kPage, seed, from + at / 8);
  }
  close(file);
  return wrong;
}

/// What the heap gives out next in place of registered memory is like any other.
static void useAgain(size_t size) {
  char* again = farBlock(size, 7);
  const pid_t child = fork();
  if (child == 0) _exit(wrongWords(again, size, 7) == 0 ? 0 : 1);
  ended("child", child);
  EXPECT(wrongWords(again, size, 7) == 0);
  free(again);
}

int main(void) {
  const size_t size = 16 * MIB;
  char* mapped = farData(size, 1);
  registerWithDevice(mapped + MIB, 4 * MIB);
  crowd();
  EXPECT(wrongAtOnce(mapped + MIB, 4 * MIB, 1, MIB / 8) == 0);
  tell("mapped", mapped, size);

  char* block = farBlock(size, 2);
  registerWithDevice(block, size);
  crowd();
  EXPECT(wrongAtOnce(block, size, 2, 0) == 0);
  tell("block", block, size);
  fill(block, size, 3);
  block = (char*)realloc(block, 2 * size);
  EXPECT(wrongWords(block, size, 3) == 0);
  fill(block, 2 * size, 4);
  crowd();
  tell("grown", block, 2 * size);
  registerWithDevice(block, 2 * size);
  EXPECT(wrongAtOnce(block, 2 * size, 4, 0) == 0);
  free(block);
  for (int round = 0; round < 3; ++round) useAgain(2 * size);

  char* untouched = mapPlain(size);
  registerWithDevice(untouched, size);
  EXPECT(allBytesAre(untouched, 0, size));
  EXPECT(munmap(untouched, size) == 0 && munmap(mapped, size) == 0);
  return done("device_registers");
}
