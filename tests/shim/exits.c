// SPDX-License-Identifier: Apache-2.0
// Leaves by the way that argv[1] names, with status 42, after allocating; handlers print.
#define _GNU_SOURCE
#include <unistd.h>

#include "check.h"

static void atExit(void) { printf("atexit\n"); }
static void atQuickExit(void) {
  printf("at_quick_exit\n");
  fflush(stdout);
}

int main(int argc, char** argv) {
  atexit(atExit);
  at_quick_exit(atQuickExit);
  free(malloc(100));
  const char* way = argc > 1 ? argv[1] : "";
  printf("leaving by %s\n", way);
  fflush(stdout);
  if (strcmp(way, "_exit") == 0) _exit(42);
  if (strcmp(way, "_Exit") == 0) _Exit(42);
  if (strcmp(way, "quick_exit") == 0) quick_exit(42);
  if (strcmp(way, "exit") == 0) exit(42);
  return 42;
}
