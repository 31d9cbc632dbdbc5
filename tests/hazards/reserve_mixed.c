// SPDX-License-Identifier: Apache-2.0
// One reservation that holds a file, memory for code and a heap, as a JVM's archive of classes and
// code cache do: each keeps its contents, code runs, and all of it can be given back at once.
#include "tests/hazards/hazard.h"

int main(void) {
  const size_t size = 8 * MIB;
  crowd();
  char* all = (char*)mmap(NULL, 128 * MIB, PROT_NONE, kPlain | MAP_NORESERVE, -1, 0);
  EXPECT(all != MAP_FAILED);
  const int file = fileOf(MIB, 3);
  EXPECT(mmap(all + MIB, MIB, kRw, MAP_PRIVATE | MAP_FIXED, file, 0) == all + MIB);
  char* code = all + 5 * MIB / 2;
  EXPECT(mmap(code, MIB, kRw | PROT_EXEC, kPlain | MAP_FIXED, -1, 0) == code);
  memcpy(code + 100, "\xb8\x2a\x00\x00\x00\xc3", 6);  // mov $42, %eax; ret
  char* heap = all + 4 * MIB;
  EXPECT(mmap(heap, size, kRw, kPlain | MAP_FIXED, -1, 0) == heap);
  fill(heap, size, 1);
  // Code that is opened by mprotect instead.
  char* late = all + 20 * MIB;
  EXPECT(mprotect(late, MIB, kRw) == 0);
  memcpy(late + 100, code + 100, 6);
  crowd();
  EXPECT(mprotect(late, MIB, PROT_READ | PROT_EXEC) == 0);
  crowd();
  int (*answer)(void) = (int (*)(void))(uintptr_t)(code + 100);
  int (*late_answer)(void) = (int (*)(void))(uintptr_t)(late + 100);
  printf("%d %d\n", answer(), late_answer());
  tell("heap", heap, size);
  tell("file", all + MIB, MIB);
  EXPECT(munmap(all, 128 * MIB) == 0);
  return done("reserve_mixed");
}
