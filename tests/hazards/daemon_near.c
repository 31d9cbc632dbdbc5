// SPDX-License-Identifier: Apache-2.0
// daemon(3) before anything is far: the child works on, with memory of its own.
#include "tests/hazards/hazard.h"

int main(void) {
  char* data = mapPlain(MIB);
  fill(data, MIB, 1);
  printf("before\n");
  fflush(stdout);
  if (daemon(1, 1) != 0) return 1;
  EXPECT(wrongWords(data, MIB, 1) == 0);
  char* more = mapPlain(4 * MIB);
  fill(more, 4 * MIB, 2);
  closefrom(3);
  char* block = (char*)malloc(300000);
  fill(block, 300000, 3);
  EXPECT(wrongWords(more, 4 * MIB, 2) == 0 && wrongWords(block, 300000, 3) == 0);
  free(block);
  tell("more", more, 4 * MIB);
  return done("daemon_near");
}
