// SPDX-License-Identifier: Apache-2.0
// Fills memory with words that say where they are, then reads pages here and there for ever and
// checks each. Its end is either a signal, or exit status 3 with a line for a word that is wrong:
// memory that was lost must not come back as zeros, or as anything. When STOP is there, every page
// is checked once more, and it ends with 0. One thread.
//   checked_pages MIB FILE [STOP]      FILE is made when all is filled
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static const size_t kWords = 4096 / sizeof(uint64_t);  // of a page

static uint64_t expected(size_t at) { return (at + 1) * 0x9e3779b97f4a7c15u; }

// 0, or 3 for a page that is not as it was written.
static int check(const volatile uint64_t* memory, size_t page) {
  for (size_t word = 0; word < kWords; word += 37) {
    const size_t at = page * kWords + word;
    const uint64_t found = memory[at];
    if (found == expected(at)) continue;
    printf("wrong: page %zu word %zu is %llx\n", page, word, (unsigned long long)found);
    return 3;
  }
  return 0;
}

int main(int argc, char** argv) {
  if (argc != 3 && argc != 4) return 2;
  const size_t pages = strtoul(argv[1], NULL, 10) << 8;
  volatile uint64_t* const memory = malloc(pages * kWords * sizeof(uint64_t));
  if (memory == NULL || pages == 0) return 2;
  for (size_t at = 0; at < pages * kWords; ++at) memory[at] = expected(at);
  FILE* const filled = fopen(argv[2], "w");
  if (filled == NULL || fclose(filled) != 0) return 2;
  uint64_t random = 1;
  for (unsigned turn = 0;; ++turn) {
    random = random * 6364136223846793005u + 1442695040888963407u;
    if (check(memory, (random >> 20) % pages) != 0) return 3;
    if (argc == 4 && turn % 256 == 0 && access(argv[3], F_OK) == 0) break;
  }
  for (size_t page = 0; page < pages; ++page) {
    if (check(memory, page) != 0) return 3;
  }
  return 0;
}
