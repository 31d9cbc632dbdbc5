// SPDX-License-Identifier: Apache-2.0
// Started with standard input, output and error closed: numbers 0 to 2 are the program's to give
// out, and nobody else writes there.
#include "tests/hazards/hazard.h"

extern char** environ;

int main(int argc, char** argv) {
  if (argc == 1) {
    const int out = fcntl(STDOUT_FILENO, F_DUPFD, 10);
    char number[8];
    snprintf(number, sizeof number, "%d", out);
    for (int fd = 0; fd < 3; ++fd) close(fd);
    char* arguments[] = {argv[0], number, NULL};
    execve("/proc/self/exe", arguments, environ);
    return 99;
  }
  const int out = atoi(argv[1]);
  EXPECT(fcntl(0, F_GETFD) == -1 && fcntl(1, F_GETFD) == -1 && fcntl(2, F_GETFD) == -1);
  char* data = farData(8 * MIB, 1);
  const int file = fileOf(MIB, 3);
  EXPECT(file == 0 && open("/dev/null", O_RDWR) == 1 && open("/dev/null", O_RDWR) == 2);
  crowd();
  EXPECT(wrongWords(data, 8 * MIB, 1) == 0);
  char* back = mapPlain(MIB);
  EXPECT(pread(file, back, MIB, 0) == (ssize_t)MIB && wrongWords(back, MIB, 3) == 0);
  EXPECT(dup2(out, STDOUT_FILENO) == STDOUT_FILENO);
  stdout = fdopen(STDOUT_FILENO, "w");
  tell("data", data, 8 * MIB);
  return done("closed_stdio");
}
