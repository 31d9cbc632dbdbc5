// SPDX-License-Identifier: Apache-2.0
// fork() of a process that has taught printf a conversion of its own, as libquadmath does under
// numpy: glibc keeps the tables of that in a block of the heap, and from then on reads them for
// every format that anybody prints. The page is far by then, and the child has nobody yet who could
// bring it back.
#include <printf.h>

#include "fork_blocks.h"

// Two tables of a pointer for each of 256 characters, in one block.
enum { kBlockBytes = 256 * 2 * sizeof(void*) };

static int print(FILE* out, const struct printf_info* info, const void* const* arguments) {
  (void)info;
  return fprintf(out, "<%d>", **(const int* const*)arguments);
}

static int sizeOf(const struct printf_info* info, size_t count, int* types, int* sizes) {
  (void)info;
  if (count > 0) types[0] = PA_INT;
  sizes[0] = sizeof(int);
  return 1;
}

static void hook(void) { EXPECT(register_printf_specifier('Y', print, sizeOf) == 0); }

static int look(void) {
  char text[32] = "";
  const char* format = "%Y %d";  // not known to the compiler
  snprintf(text, sizeof text, format, 6, 7);
  return wrongBlocks(kBlockBytes) != 0 || strcmp(text, "<6> 7") != 0;
}

int main(void) {
  surround(hook, kBlockBytes);
  forkAndLook(look);
  return done("fork_printf_hooks");
}
