// SPDX-License-Identifier: Apache-2.0
// A tracer stops the program's thread and reads and writes its far memory (PTRACE_PEEKDATA,
// POKEDATA, and its mem file): the program is the child here, since a debugger is usually the
// parent.
#include <spawn.h>
#include <sys/ptrace.h>

#include "tests/hazards/hazard.h"

extern char** environ;
static const size_t kSize = 8 * MIB;

static int traced(void) {
  char* data = farData(kSize, 1);
  EXPECT(ptrace(PTRACE_TRACEME, 0, NULL, NULL) == 0);
  printf("%p\n", (void*)data);
  fflush(stdout);
  raise(SIGSTOP);
  EXPECT(wrongFrom(data + kPage, kSize - kPage, 1, kPage / 8) == 0);
  return *(long*)data == 4711 && !failures() ? 5 : 6;
}

int main(int argc, char** argv) {
  if (argc == 2) return traced();
  int ends[2];
  EXPECT(pipe(ends) == 0);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, ends[1], STDOUT_FILENO);
  char* arguments[] = {argv[0], (char*)"traced", NULL};
  pid_t made;
  EXPECT(posix_spawn(&made, "/proc/self/exe", &actions, NULL, arguments, environ) == 0);
  int status;
  EXPECT(waitpid(made, &status, 0) == made && WIFSTOPPED(status) && WSTOPSIG(status) == SIGSTOP);
  char text[64] = "";
  EXPECT(read(ends[0], text, sizeof text - 1) > 0);
  char* data = (char*)(uintptr_t)strtoull(text, NULL, 0);
  size_t wrong = 0;
  for (size_t at = 0; at < kSize; at += 16 * kPage) {
    wrong += (uint64_t)ptrace(PTRACE_PEEKDATA, made, data + at, NULL) != wordAt(1, at / 8);
  }
  printf("%zu words wrong\n", wrong);
  char* copy = mapPlain(kSize);
  snprintf(text, sizeof text, "/proc/%d/mem", made);
  const int memory = open(text, O_RDONLY);
  EXPECT(pread(memory, copy, kSize, (off_t)(uintptr_t)data) == (ssize_t)kSize);
  EXPECT(wrongWords(copy, kSize, 1) == 0);
  EXPECT(ptrace(PTRACE_POKEDATA, made, data, (void*)4711) == 0);
  EXPECT(ptrace(PTRACE_CONT, made, NULL, NULL) == 0);
  ended("traced", made);
  return done("ptrace_peek");
}
