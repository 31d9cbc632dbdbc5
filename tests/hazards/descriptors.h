// SPDX-License-Identifier: Apache-2.0
// What the hazards about descriptors share: the check that far memory is still there, and a count
// of what the program sees open.
#pragma once

#include "tests/hazards/hazard.h"

/// Data that are far now must come back, and more must go.
static inline void worksOn(char* data, size_t size, uint64_t seed) {
  crowd();
  EXPECT(wrongWords(data, size, seed) == 0);
  char* more = farBlock(size, seed + 1);
  EXPECT(wrongWords(more, size, seed + 1) == 0);
  free(more);
  tell("data", data, size);
}

/// Descriptors that fcntl finds, up to the program's limit.
static inline int countOpen(void) {
  int count = 0;
  for (int fd = 0; fd < 5000; ++fd) count += fcntl(fd, F_GETFD) != -1;
  return count;
}
