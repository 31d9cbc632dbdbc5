// SPDX-License-Identifier: Apache-2.0
// OpenMP loops over far data: the team's threads fault at the same time.
#include <omp.h>

#include "tests/hazards/hazard.h"

int main(void) {
  const size_t size = 16 * MIB, words = size / 8;
  uint64_t* data = (uint64_t*)farBlock(size, 1);
  omp_set_num_threads(4);
  for (int round = 0; round < 3; ++round) {
    uint64_t sum = 0;
#pragma omp parallel for reduction(+ : sum) schedule(dynamic, 4096)
    for (size_t i = 0; i < words; ++i) {
      data[i] = data[i] * 3 + i;
      sum += data[i];
    }
    printf("sum %016llx\n", (unsigned long long)sum);
    crowd();
  }
  tell("data", data, size);
  free(data);
  return done("openmp");
}
