// SPDX-License-Identifier: Apache-2.0
// System calls on heap memory, and fork: data moved through pipes and files into heap buffers; a
// child of a program whose threads are in the middle of allocating must be able to allocate.
#define _GNU_SOURCE
#include <pthread.h>
#include <spawn.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"

static void throughPipes(void) {
  int ends[2];
  EXPECT(pipe(ends) == 0);
  char* from = malloc(60000);
  char* to = calloc(1, 60000);
  for (int i = 0; i < 60000; ++i) from[i] = (char)(i * 7);
  EXPECT(write(ends[1], from, 60000) == 60000);
  size_t got = 0;
  while (got < 60000) {
    const ssize_t more = read(ends[0], to + got, 60000 - got);
    EXPECT(more > 0);
    if (more <= 0) break;
    got += (size_t)more;
  }
  EXPECT(memcmp(from, to, 60000) == 0);
  free(from);
  free(to);
  close(ends[0]);
  close(ends[1]);
}

static void throughFiles(void) {
  const size_t size = 48u << 20;  // huge and untouched: the kernel is the first to write it
  FILE* file = tmpfile();
  char* from = malloc(size);
  for (size_t i = 0; i < size; ++i) from[i] = (char)(i >> 12);
  EXPECT(write(fileno(file), from, size) == (ssize_t)size);
  char* to = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  EXPECT(pread(fileno(file), to, size, 0) == (ssize_t)size);
  EXPECT(memcmp(from, to, size) == 0);
  free(from);
  EXPECT(munmap(to, size) == 0);
  fclose(file);
}

static atomic_int stop;

static void* allocateBusily(void* unused) {
  while (!atomic_load(&stop)) {
    free(malloc(50));
    free(malloc(40000));
    free(malloc(35u << 20));
    void* range = mmap(NULL, 1 << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    munmap(range, 1 << 20);
  }
  return unused;
}

static void childAllocates(const char* inherited) {
  for (int i = 0; i < 1000; ++i) {
    char* block = malloc((size_t)(1 + i * 13));
    memset(block, 1, (size_t)(1 + i * 13));
    free(block);
  }
  free(calloc(1, 64u << 20));
  _exit(memcmp(inherited, "inherited", 10) == 0 ? 17 : 1);
}

static void forks(void) {
  pthread_t threads[2];
  for (int i = 0; i < 2; ++i) pthread_create(&threads[i], NULL, allocateBusily, NULL);
  char* inherited = strdup("inherited");
  for (int i = 0; i < 40; ++i) {
    const pid_t child = fork();
    EXPECT(child >= 0);
    if (child == 0) childAllocates(inherited);
    int status = 0;
    EXPECT(waitpid(child, &status, 0) == child);
    EXPECT(WIFEXITED(status) && WEXITSTATUS(status) == 17);
  }
  atomic_store(&stop, 1);
  for (int i = 0; i < 2; ++i) pthread_join(threads[i], NULL);
  free(inherited);
}

static void spawns(void) {
  EXPECT(system("exit 5") == 5 << 8);
  const pid_t child = vfork();
  if (child == 0) _exit(9);
  int status = 0;
  EXPECT(waitpid(child, &status, 0) == child && WEXITSTATUS(status) == 9);
}

int main(void) {
  throughPipes();
  throughFiles();
  forks();
  spawns();
  leaveSome();
  printf("processes checked\n");
  return failures();
}
