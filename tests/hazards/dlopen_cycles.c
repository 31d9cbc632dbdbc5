// SPDX-License-Identifier: Apache-2.0
// Libraries opened and closed again and again, their constructors and destructors allocating, with
// look-ups of symbols and of addresses, among far data.
#include <dlfcn.h>

#include "tests/hazards/hazard.h"

int main(void) {
  const size_t size = 4 * MIB;
  char* data = farBlock(size, 1);
  const char* names[] = {"libm.so.6", "libstdc++.so.6", "libgcc_s.so.1", "libresolv.so.2"};
  int opened = 0;
  for (int round = 0; round < 40; ++round) {
    void* handles[4];
    for (int i = 0; i < 4; ++i) {
      handles[i] = dlopen(names[i], RTLD_NOW);
      opened += handles[i] != NULL;
    }
    double (*cosine)(double) = (double (*)(double))dlsym(handles[0], "cos");
    EXPECT(cosine != NULL && cosine(0) == 1);
    Dl_info info;
    EXPECT(dladdr((void*)cosine, &info) != 0 && strstr(info.dli_fname, "libm") != NULL);
    EXPECT(dlopen("/does/not/exist.so", RTLD_NOW) == NULL && dlerror() != NULL);
    for (int i = 0; i < 4; ++i) {
      if (handles[i] != NULL) EXPECT(dlclose(handles[i]) == 0);
    }
    if (round % 10 == 0) crowd();
  }
  printf("%d opened\n", opened);
  tell("data", data, size);
  free(data);
  return done("dlopen_cycles");
}
