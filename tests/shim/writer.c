// SPDX-License-Identifier: Apache-2.0
// Writes all of its memory, MiB as the argument says, again and again, until somebody ends it.
// Exits with 1 if it ever reads something else than it has written.
#include <stdint.h>
#include <stdlib.h>

int main(int argc, char** argv) {
  const size_t words = (size_t)atoi(argc > 1 ? argv[1] : "32") << 17;
  volatile uint64_t* memory = malloc(words * sizeof *memory);
  if (memory == NULL) return 2;
  for (uint64_t round = 1;; ++round) {
    for (size_t i = 0; i < words; i += 64) memory[i] = round * words + i;
    for (size_t i = 0; i < words; i += 64) {
      if (memory[i] != round * words + i) return 1;
    }
  }
}
