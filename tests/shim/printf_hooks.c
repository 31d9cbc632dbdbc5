// SPDX-License-Identifier: Apache-2.0
// A program that hooks printf, as libquadmath does: libc then reads tables that it allocated with
// the program's malloc, in any thread that formats text. While they are far, no service thread may.
#include <printf.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "check.h"

static int print(FILE* stream, const struct printf_info* info, const void* const* args) {
  (void)info;
  return fprintf(stream, "<%d>", **(const int* const*)args[0]);
}

static int arguments(const struct printf_info* info, size_t n, int* types, int* sizes) {
  (void)info;
  if (n > 0) {
    types[0] = PA_POINTER;
    sizes[0] = sizeof(void*);
  }
  return 1;
}

int main(void) {
  enum { kBytes = 48 << 20, kPage = 4096 };
  EXPECT(register_printf_specifier('Y', print, arguments) == 0);
  unsigned char* block = malloc(kBytes);
  EXPECT(block != NULL);
  for (int round = 0; round < 2; ++round) {
    for (int at = 0; at < kBytes; at += kPage) block[at] = (unsigned char)(at / kPage + round);
  }
  // Scattered, so that each is a fault of its own.
  unsigned at = 1;
  for (int i = 0; i < 30000; ++i) {
    at = (at * 1664525u + 1013904223u) % (kBytes / kPage);
    EXPECT(block[(size_t)at * kPage] == (unsigned char)(at + 1));
  }
  const int value = 7;
  const int* pointer = &value;
#pragma GCC diagnostic ignored "-Wformat"
#pragma GCC diagnostic ignored "-Wformat-extra-args"
  printf("hooked %Y\n", pointer);
  free(block);
  leaveSome();
  return failures();
}
