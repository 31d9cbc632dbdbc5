// SPDX-License-Identifier: Apache-2.0
// /proc/self/mem reads and writes far memory, in large pieces and across pages. (Not in a fetch
// tier: the kernel does not wait for userfaultfd there, and says EIO; see docs/limits.md.)
#include "tests/hazards/hazard.h"

int main(void) {
  const size_t size = 8 * MIB;
  char* data = farData(size, 1);
  char* copy = mapPlain(size);
  const int memory = open("/proc/self/mem", O_RDWR);
  EXPECT(memory >= 0);
  EXPECT(pread(memory, copy, size, (off_t)(uintptr_t)data) == (ssize_t)size);
  EXPECT(wrongWords(copy, size, 1) == 0);
  fill(copy, size, 2);
  crowd();
  EXPECT(pwrite(memory, copy, size, (off_t)(uintptr_t)data) == (ssize_t)size);
  crowd();
  EXPECT(wrongWords(data, size, 2) == 0);
  for (size_t at = 0; at < size; at += 33 * kPage) {
    EXPECT(pread(memory, copy, 16, (off_t)(uintptr_t)(data + at)) == 16);
    EXPECT(wrongFrom(copy, 16, 2, at / 8) == 0);
  }
  tell("data", data, size);
  return done("proc_self_mem");
}
