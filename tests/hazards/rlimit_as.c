// SPDX-License-Identifier: Apache-2.0
// Limits that the program sets for itself once it runs: RLIMIT_AS and RLIMIT_DATA at what it has
// plus a little. Memory that it has works on; what is refused is refused with ENOMEM.
#include <sys/resource.h>

#include "tests/hazards/hazard.h"

int main(void) {
  const size_t size = 8 * MIB;
  char* data = farData(size, 1);
  unsigned long pages = 0;
  FILE* statm = fopen("/proc/self/statm", "r");
  EXPECT(fscanf(statm, "%lu", &pages) == 1);
  fclose(statm);
  struct rlimit limit = {pages * kPage + 64 * MIB, RLIM_INFINITY};
  EXPECT(setrlimit(RLIMIT_AS, &limit) == 0);
  crowd();
  EXPECT(wrongWords(data, size, 1) == 0);
  errno = 0;
  const int fd = memfd_create("wide", 0);
  EXPECT(ftruncate(fd, 1 << 30) == 0);
  EXPECT(mmap(NULL, 1 << 30, PROT_READ, MAP_SHARED, fd, 0) == MAP_FAILED && errno == ENOMEM);
  char* more = farData(MIB, 2);
  EXPECT(wrongWords(more, MIB, 2) == 0);
  limit.rlim_cur = RLIM_INFINITY;
  EXPECT(setrlimit(RLIMIT_AS, &limit) == 0);
  EXPECT(getrlimit(RLIMIT_DATA, &limit) == 0);
  tell("data", data, size);
  return done("rlimit_as");
}
