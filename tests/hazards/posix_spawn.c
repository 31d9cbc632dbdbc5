// SPDX-License-Identifier: Apache-2.0
// posix_spawn of this very program, which is managed as well, with its input from a pipe and its
// output to another, and data passed through far memory on both sides.
#include <pthread.h>
#include <spawn.h>

#include "tests/hazards/hazard.h"

extern char** environ;

static int child(void) {
  const size_t size = 4 * MIB;
  char* data = farBlock(size, 9);
  for (size_t at = 0; at < size;) {
    const ssize_t got = read(STDIN_FILENO, data + at, size - at);
    if (got <= 0) return 3;
    at += (size_t)got;
  }
  crowd();
  for (size_t at = 0; at < size;) {
    const ssize_t put = write(STDOUT_FILENO, data + at, size - at);
    if (put <= 0) return 4;
    at += (size_t)put;
  }
  return failures() ? 5 : 6;
}

static void* feed(void* argument) {
  char* data = farBlock(4 * MIB, 1);
  const int to = *(int*)argument;
  for (size_t at = 0; at < 4 * MIB;) at += (size_t)write(to, data + at, 4 * MIB - at);
  close(to);
  free(data);
  return NULL;
}

int main(int argc, char** argv) {
  if (argc == 2) return child();
  int in[2], out[2];
  EXPECT(pipe2(in, O_CLOEXEC) == 0 && pipe2(out, O_CLOEXEC) == 0);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, in[0], STDIN_FILENO);
  posix_spawn_file_actions_adddup2(&actions, out[1], STDOUT_FILENO);
  char* arguments[] = {argv[0], (char*)"child", NULL};
  pid_t made;
  EXPECT(posix_spawn(&made, "/proc/self/exe", &actions, NULL, arguments, environ) == 0);
  close(in[0]);
  close(out[1]);
  pthread_t feeder;
  EXPECT(pthread_create(&feeder, NULL, feed, &in[1]) == 0);
  const size_t size = 4 * MIB;
  char* back = mapPlain(size);
  for (size_t at = 0; at < size;) {
    const ssize_t got = read(out[0], back + at, size - at);
    EXPECT(got > 0);
    if (got <= 0) break;
    at += (size_t)got;
  }
  pthread_join(feeder, NULL);
  ended("child", made);
  crowd();
  EXPECT(wrongWords(back, size, 1) == 0);
  tell("back", back, size);
  return done("posix_spawn");
}
