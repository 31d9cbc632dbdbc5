// SPDX-License-Identifier: Apache-2.0
// system() and popen() from a program with far data: shells and their children are preloaded too.
#include "tests/hazards/hazard.h"

int main(void) {
  const size_t size = 8 * MIB;
  char* data = farData(size, 1);
  fflush(stdout);
  printf("system: %d\n", WEXITSTATUS(system("echo from the shell; exit 3")));
  fflush(stdout);
  printf("pipeline: %d\n", WEXITSTATUS(system("printf 'b\\na\\n' | sort | tr a-z A-Z")));
  FILE* in = popen("head -c 100000 /dev/zero | tr '\\0' 'z' | cksum", "r");
  char* line = farBlock(kPage, 3);
  EXPECT(fgets(line, kPage, in) != NULL);
  printf("cksum: %s", line);
  printf("pclose: %d\n", pclose(in));
  fflush(stdout);
  FILE* out = popen("cat", "w");
  fprintf(out, "through cat\n");
  printf("pclose: %d\n", pclose(out));
  crowd();
  tell("data", data, size);
  return done("system_popen");
}
