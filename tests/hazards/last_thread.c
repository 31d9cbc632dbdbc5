// SPDX-License-Identifier: Apache-2.0
// A process ends with the program's last thread, however that one ends, and with the right status.
#include <pthread.h>
#include <sched.h>
#include <sys/syscall.h>

#include "tests/hazards/hazard.h"

// The program's first thread has ended: it is a zombie until all others have.
static int firstHasEnded(void) {
  char text[512];
  FILE* file = fopen("/proc/self/stat", "r");
  EXPECT(file != NULL && fgets(text, sizeof text, file) != NULL);
  fclose(file);
  return strrchr(text, ')')[2] == 'Z';
}

static void* workOn(void* data) {
  while (!firstHasEnded()) sched_yield();
  EXPECT(wrongWords(data, 4 * MIB, 1) == 0);
  puts("the detached thread ends last");
  fflush(stdout);
  return NULL;
}

static void byPthreadExit(char* data) {
  pthread_t thread;
  EXPECT(pthread_create(&thread, NULL, workOn, data) == 0);
  pthread_detach(thread);
  pthread_exit(NULL);
}
static void alone(char* data) {
  (void)data;
  pthread_exit(NULL);
}
static void bySystemCall(char* data) {
  EXPECT(wrongWords(data, 4 * MIB, 1) == 0);
  syscall(SYS_exit, 7);
}
static void* endFirst(void* unused) {
  (void)unused;
  syscall(SYS_exit, 0);
  return NULL;
}
static void threadFirst(char* data) {
  pthread_t thread;
  EXPECT(pthread_create(&thread, NULL, endFirst, NULL) == 0);
  pthread_join(thread, NULL);
  bySystemCall(data);
}

int main(void) {
  char* data = farData(4 * MIB, 1);
  static const struct {
    const char* name;
    void (*end)(char*);
  } kWays[] = {{"pthread_exit", byPthreadExit},
               {"pthread_exit alone", alone},
               {"the system call", bySystemCall},
               {"the system call, a thread before", threadFirst}};
  for (size_t i = 0; i < sizeof kWays / sizeof kWays[0]; ++i) {
    fflush(stdout);
    const pid_t child = fork();
    if (child == 0) {
      kWays[i].end(data);
      _exit(99);
    }
    ended(kWays[i].name, child);
  }
  return done("last_thread");
}
