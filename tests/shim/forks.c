// SPDX-License-Identifier: Apache-2.0
// What libc touches in the child of a fork before any handler runs must be there: open FILEs, and
// the thread-specific data of threads that the child does not have. Then the usual uses of fork:
// snapshots, workers that change their part, daemons, children of children.
#define _GNU_SOURCE
#include <pthread.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"

enum { kStreams = 200, kKeys = 300, kThreads = 3 };
#define DATA_WORDS ((size_t)24 << 17)  // 24 MiB, more than the local budget

static FILE* streams[kStreams];
static pthread_key_t keys[kKeys];
static pthread_barrier_t ready, done;
static uint64_t* data;

static uint64_t at(size_t index, uint64_t version) {
  return (index * 0x9e3779b97f4a7c15u) ^ (version << 32);
}
static void writeData(uint64_t version) {
  for (size_t i = 0; i < DATA_WORDS; i += 64) data[i] = at(i, version);
}
static int dataIs(uint64_t version) {
  for (size_t i = 0; i < DATA_WORDS; i += 64) {
    if (data[i] != at(i, version)) return 0;
  }
  return 1;
}

static int statusOf(pid_t child) {
  int status = 0;
  EXPECT(child > 0 && waitpid(child, &status, 0) == child);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

static void* holdKeys(void* value) {
  for (int i = 0; i < kKeys; ++i) pthread_setspecific(keys[i], value);
  pthread_barrier_wait(&ready);
  pthread_barrier_wait(&done);
  for (int i = 0; i < kKeys; ++i) EXPECT(pthread_getspecific(keys[i]) == value);
  return NULL;
}

// In a child its stack may be one that a thread of the parent had.
static void* seeNoKeys(void* unused) {
  for (int i = 0; i < kKeys; ++i) {
    if (pthread_getspecific(keys[i]) != NULL) return "kept";
  }
  return unused;
}

static int useStreams(void) {
  for (int i = 0; i < kStreams; ++i) {
    char line[64] = "";
    if (fprintf(streams[i], "child\n") != 6 || fflush(streams[i]) != 0) return 1;
    rewind(streams[i]);
    int number = -1;
    if (fgets(line, sizeof line, streams[i]) == NULL || sscanf(line, "stream %d", &number) != 1) {
      return 2;
    }
    if (number != i) return 3;
  }
  pthread_t threads[kThreads];
  for (int i = 0; i < kThreads; ++i) pthread_create(&threads[i], NULL, seeNoKeys, NULL);
  for (int i = 0; i < kThreads; ++i) {
    void* result = NULL;
    pthread_join(threads[i], &result);
    if (result != NULL) return 4;
  }
  return 17;
}

static void window(void) {
  for (int i = 0; i < kStreams; ++i) {
    streams[i] = tmpfile();
    EXPECT(streams[i] != NULL);
    fprintf(streams[i], "stream %d\n", i);
    fflush(streams[i]);
  }
  for (int i = 0; i < kKeys; ++i) EXPECT(pthread_key_create(&keys[i], NULL) == 0);
  pthread_barrier_init(&ready, NULL, kThreads + 1);
  pthread_barrier_init(&done, NULL, kThreads + 1);
  pthread_t threads[kThreads];
  static int values[kThreads];
  for (int i = 0; i < kThreads; ++i) pthread_create(&threads[i], NULL, holdKeys, &values[i]);
  pthread_barrier_wait(&ready);
  for (uint64_t round = 0; round < 4; ++round) {
    writeData(round);  // meanwhile the streams go far
    const pid_t child = fork();
    if (child == 0) _exit(useStreams());
    EXPECT(statusOf(child) == 17);
  }
  pthread_barrier_wait(&done);
  for (int i = 0; i < kThreads; ++i) pthread_join(threads[i], NULL);
  for (int i = 0; i < kStreams; ++i) EXPECT(fclose(streams[i]) == 0);
}

static void snapshots(void) {
  writeData(100);
  int ends[2];
  EXPECT(pipe(ends) == 0);
  const pid_t child = fork();
  if (child == 0) {
    char byte;
    if (read(ends[0], &byte, 1) != 1) _exit(1);
    if (!dataIs(100)) _exit(2);
    const pid_t grandchild = fork();
    if (grandchild == 0) {
      writeData(102);
      _exit(dataIs(102) ? 18 : 3);
    }
    int status = 0;
    waitpid(grandchild, &status, 0);
    if (!WIFEXITED(status) || WEXITSTATUS(status) != 18) _exit(4);
    _exit(dataIs(100) ? 17 : 5);
  }
  writeData(101);
  EXPECT(write(ends[1], "", 1) == 1);
  EXPECT(statusOf(child) == 17);
  EXPECT(dataIs(101));
  close(ends[0]);
  close(ends[1]);
}

static void workers(void) {
  writeData(200);
  pid_t children[4];
  for (size_t worker = 0; worker < 4; ++worker) {
    children[worker] = fork();
    if (children[worker] != 0) continue;
    for (size_t i = worker * (DATA_WORDS / 4); i < (worker + 1) * (DATA_WORDS / 4); i += 64) {
      if (data[i] != at(i, 200)) _exit(1);
      data[i] = at(i, 300 + worker);
    }
    free(malloc(1 << 20));
    _exit(data[worker * (DATA_WORDS / 4)] == at(worker * (DATA_WORDS / 4), 300 + worker) ? 17 : 2);
  }
  for (int worker = 0; worker < 4; ++worker) EXPECT(statusOf(children[worker]) == 17);
  EXPECT(dataIs(200));
}

static void daemons(void) {
  int ends[2];
  EXPECT(pipe(ends) == 0);
  const pid_t child = fork();
  if (child == 0) {
    if (fork() != 0) _exit(17);
    setsid();
    if (fork() != 0) _exit(0);
    const char right = dataIs(200) ? 'y' : 'n';
    _exit(write(ends[1], &right, 1) == 1 ? 0 : 1);
  }
  EXPECT(statusOf(child) == 17);
  char right = '?';
  close(ends[1]);
  EXPECT(read(ends[0], &right, 1) == 1 && right == 'y');
  close(ends[0]);
}

int main(void) {
  data = malloc(DATA_WORDS * sizeof *data);
  window();
  snapshots();
  workers();
  daemons();
  printf("forks checked\n");
  return failures();
}
