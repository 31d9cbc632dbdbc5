// SPDX-License-Identifier: Apache-2.0
// The two libraries of deepbind.c.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>

void giveBack(void* block) { free(block); }
void* openInner(void) {
  // Not as this function's last act: the loader must see who asks.
  void* volatile opened = dlopen("libshim_deepbind_inner.so", RTLD_NOW | RTLD_DEEPBIND);
  return opened;
}
