// SPDX-License-Identifier: Apache-2.0
// fork() of a process that has looked up a name: glibc keeps the state of its name service in a
// block of the heap, reads it in the parent after all handlers that prepare a fork, and writes it
// in the child before any other. The page is far by then, and the blocks around it are the
// program's.
#include <pwd.h>

#include "fork_blocks.h"

enum { kBlockBytes = 208 };

static void lookUp(void) {
  printf("root's name %s\n", getpwuid(0) != NULL ? "is known" : "is not known");
}

static int look(void) {
  const struct passwd* root = getpwuid(0);
  return wrongBlocks(kBlockBytes) != 0 || root == NULL || strcmp(root->pw_name, "root") != 0;
}

int main(void) {
  surround(lookUp, kBlockBytes);
  forkAndLook(look);
  return 0;
}
