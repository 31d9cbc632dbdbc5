// SPDX-License-Identifier: Apache-2.0
// Allocation at the edges of a process: early constructors, dlopen and dlclose of libraries that
// allocate, atexit handlers, late destructors. argv[1] is the library to load.
#include <dlfcn.h>
#include <pthread.h>

#include "check.h"

char* loadedBlock(void);

static char* early;
static char* first;

__attribute__((constructor(101))) static void earlyConstructor(void) {
  early = malloc(1000);
  memset(early, 11, 1000);
}
__attribute__((constructor)) static void plainConstructor(void) { first = strdup("constructor"); }

__attribute__((destructor(101))) static void lateDestructor(void) {
  char* late = malloc(1 << 20);
  memset(late, 1, 1 << 20);
  late = realloc(late, 40 << 20);
  free(late);
  free(early);
}

static void atExit(void) {
  char* text = strdup("at exit");
  printf("%s %s\n", text, first);
  free(text);
  free(first);
}

static void* loadAndUnload(void* path) {
  for (int i = 0; i < 200; ++i) {
    void* library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    EXPECT(library != NULL);
    if (library == NULL) break;
    char* (*get)(void) = (char* (*)(void))dlsym(library, "loadedBlock");
    EXPECT(get != NULL && get()[99999] == 42);
    EXPECT(dlclose(library) == 0);
    EXPECT(dlsym(RTLD_DEFAULT, "no_such_symbol_anywhere") == NULL && dlerror() != NULL);
  }
  return NULL;
}

int main(int argc, char** argv) {
  EXPECT(argc == 2);
  atexit(atExit);
  EXPECT(allBytesAre(early, 11, 1000));
  early = realloc(early, 200000);
  EXPECT(allBytesAre(early, 11, 1000));
  EXPECT(allBytesAre(loadedBlock(), 42, 100000));
  pthread_t thread;
  EXPECT(pthread_create(&thread, NULL, loadAndUnload, argv[1]) == 0);
  loadAndUnload(argv[1]);
  EXPECT(pthread_join(thread, NULL) == 0);
  printf("constructors checked\n");
  return failures();
}
