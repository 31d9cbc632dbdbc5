// SPDX-License-Identifier: Apache-2.0
// fork() of a process that has looked up a name: glibc keeps the state of its name service in a block
// of the heap, reads it in the parent after all handlers that prepare a fork, and writes it in the
// child before any other. The page is far by then, and the blocks around it are the program's.
#include <pwd.h>

#include "hazard.h"

enum { kBlocks = 4000, kBlockBytes = 208, kForks = 12 };
static char* blocks[kBlocks];

static void fillBlocks(int first, int end) {
  for (int i = first; i < end; ++i) {
    blocks[i] = (char*)malloc(kBlockBytes);
    fill(blocks[i], kBlockBytes, 100 + (uint64_t)i);
  }
}

static int wrongBlocks(void) {
  int wrong = 0;
  for (int i = 0; i < kBlocks; ++i) {
    wrong += wrongWords(blocks[i], kBlockBytes, 100 + (uint64_t)i) != 0;
  }
  return wrong;
}

static int look(void) {
  const struct passwd* root = getpwuid(0);
  return wrongBlocks() != 0 || root == NULL || strcmp(root->pw_name, "root") != 0;
}

int main(void) {
  fillBlocks(0, kBlocks / 2);
  printf("root's name %s\n", getpwuid(0) != NULL ? "is known" : "is not known");
  fillBlocks(kBlocks / 2, kBlocks);
  char* ballast = mapPlain(BALLAST);
  int good = 0;
  for (int i = 0; i < kForks; ++i) {
    fill(ballast, BALLAST, (uint64_t)i);
    fflush(stdout);
    const pid_t child = fork();
    if (child == 0) _exit(look());
    int status = -1;
    waitpid(child, &status, 0);
    good += status == 0;
  }
  printf("%d of %d children saw what they must, the parent %d\n", good, kForks, look() == 0);
  return 0;
}
