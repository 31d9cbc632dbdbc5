// SPDX-License-Identifier: Apache-2.0
// A library whose constructor and destructor allocate; linked in, and loaded and unloaded again and
// again by constructors.c.
#include <stdlib.h>
#include <string.h>

static char* block;
static __thread char thread_local_bytes[3000];  // dynamic TLS: allocated on first use

__attribute__((constructor)) static void load(void) {
  block = malloc(100000);
  memset(block, 42, 100000);
}
__attribute__((destructor)) static void unload(void) {
  free(block);
  free(malloc(333));
}

char* loadedBlock(void) {
  thread_local_bytes[0] = 1;
  return block;
}
