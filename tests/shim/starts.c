// SPDX-License-Identifier: Apache-2.0
// starts PROGRAM: executes it in every way there is, one child each, and says how it ended. The
// program's folder is in PATH.
#define _GNU_SOURCE
#include <fcntl.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

extern char** environ;

static void __attribute__((noinline)) start(int way, char* path, char* name) {
  char* arguments[] = {name, "an argument", NULL};
  pid_t child;
  switch (way) {
    case 0:
      execve(path, arguments, environ);
      break;
    case 1:
      execv(path, arguments);
      break;
    case 2:
      execvp(name, arguments);
      break;
    case 3:
      execvpe(name, arguments, environ);
      break;
    case 4:
      execl(path, name, "an argument", NULL);
      break;
    case 5:
      execlp(name, name, "an argument", NULL);
      break;
    case 6:
      execle(path, name, "an argument", NULL, environ);
      break;
    case 7:
      execveat(AT_FDCWD, path, arguments, environ, 0);
      break;
    case 8:
      fexecve(open(path, O_RDONLY), arguments, environ);
      break;
    case 9:
      if (posix_spawn(&child, path, NULL, NULL, arguments, environ) != 0) _exit(97);
      break;
    case 10:
      if (posix_spawnp(&child, name, NULL, NULL, arguments, environ) != 0) _exit(97);
      break;
    default:
      syscall(SYS_execve, path, arguments, environ);
  }
  int status = 98 << 8;
  if (way == 9 || way == 10) waitpid(child, &status, 0);
  _exit(WEXITSTATUS(status));
}

int main(int count, char** arguments) {
  if (count < 2) return 2;
  char* name = strrchr(arguments[1], '/') + 1;
  for (volatile int way = 0; way < 12; ++way) {
    fflush(stdout);
    // The child shares our memory and stack until it executes.
    const pid_t child = way % 2 == 0 ? vfork() : fork();
    if (child == 0) start(way, arguments[1], name);
    int status = 0;
    waitpid(child, &status, 0);
    printf("%d: %x\n", way, (unsigned)status);
  }
  return 0;
}
