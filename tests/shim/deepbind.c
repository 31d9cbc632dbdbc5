// SPDX-License-Identifier: Apache-2.0
// deepbind OUTER: modules that are opened with RTLD_DEEPBIND free what the program allocated, and a
// library finds by its own run path what it opens.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int main(int count, char** arguments) {
  if (count < 2) return 2;
  void* outer = dlopen(arguments[1], RTLD_NOW | RTLD_DEEPBIND);
  if (outer == NULL) return printf("outer: %s\n", dlerror()), 1;
  void* (*openInner)(void) = (void* (*)(void))dlsym(outer, "openInner");
  void (*giveBack)(void*) = (void (*)(void*))dlsym(outer, "giveBack");
  for (size_t size = 10; size < 10 << 20; size *= 10) giveBack(memset(malloc(size), 1, size));
  // Found by the outer library's run path alone.
  void* inner = openInner();
  if (inner == NULL) return printf("inner: %s\n", dlerror()), 1;
  if (dlopen("libshim_deepbind_inner.so.none", RTLD_NOW) != NULL) return 3;
  giveBack = (void (*)(void*))dlsym(inner, "giveBack");
  giveBack(malloc(100));
  void* same = dlmopen(LM_ID_BASE, arguments[1], RTLD_NOW | RTLD_DEEPBIND);
  printf("%d %d\n", same == outer, dlclose(same));
  dlclose(inner);
  dlclose(outer);
  puts("freed");
  return 0;
}
