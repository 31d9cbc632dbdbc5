// SPDX-License-Identifier: Apache-2.0
// Arguments and an environment of a megabyte, in a preloaded process with far data.
#include "tests/hazards/hazard.h"

extern char** environ;
enum { kMany = 3000 };

int main(int argc, char** argv) {
  if (argc == 1) {
    static char* arguments[kMany + 2];
    static char* variables[kMany + 64];
    int used = 0;
    while (environ[used] != NULL && used < 60) {
      variables[used] = environ[used];
      ++used;
    }
    arguments[0] = argv[0];
    for (int i = 0; i < kMany; ++i) {
      arguments[i + 1] = (char*)malloc(200);
      snprintf(arguments[i + 1], 200, "%0180d", i);
      variables[used + i] = (char*)malloc(200);
      snprintf(variables[used + i], 200, "V%d=%0150d", i, i);
    }
    execve("/proc/self/exe", arguments, variables);
    return 99;
  }
  char* data = farData(8 * MIB, 1);
  size_t length = 0;
  for (int i = 1; i < argc; ++i) length += strlen(argv[i]);
  printf("%d arguments of %zu, %s\n", argc, length, getenv("V2999"));
  crowd();
  tell("data", data, 8 * MIB);
  return done("large_arguments");
}
