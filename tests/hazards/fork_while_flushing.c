// SPDX-License-Identifier: Apache-2.0
// One thread flushes all its streams, whose buffers are far and one of which allocates as it
// writes, while another forks: the first has libc's lock of the list of streams, for which fork()
// waits, and itself waits for its pages. Two threads.
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <sys/stat.h>

#include "tests/hazards/hazard.h"

enum { kStreams = 6 };
static const size_t kBuffer = MIB;

static int all_rounds;
static FILE* streams[kStreams];
static FILE* digested;
static uint64_t digest_of_all = 0xcbf29ce484222325u;
static atomic_int wanted, begun, ended_rounds;

static ssize_t digestAndDrop(void* cookie, const char* data, size_t size) {
  (void)cookie;
  // Copied to a block of its own: a stream may do what it likes with what it is given.
  char* copy = malloc(size);
  memcpy(copy, data, size);
  for (size_t i = 0; i < size; ++i) {
    digest_of_all = (digest_of_all ^ (unsigned char)copy[i]) * 0x100000001b3u;
  }
  free(copy);
  return (ssize_t)size;
}

static void* flusher(void* unused) {
  for (int round = 1; round <= all_rounds; ++round) {
    while (atomic_load(&wanted) < round) sched_yield();
    atomic_store(&begun, round);
    EXPECT(fflush(NULL) == 0);
    atomic_store(&ended_rounds, round);
  }
  return unused;
}

static void writeTo(FILE* stream, uint64_t seed) {
  for (size_t i = 0; i < (kBuffer - kPage) / 8; ++i) {
    const uint64_t word = wordAt(seed, i);
    EXPECT(fwrite(&word, sizeof word, 1, stream) == 1);
  }
}

static int childOf(int round) {
  const pid_t child = fork();
  EXPECT(child >= 0);
  if (child == 0) {
    // It has the lock of nobody: its own streams work.
    FILE* own = tmpfile();
    const int good = own != NULL && fprintf(own, "%d", round) > 0 && fclose(own) == 0;
    _exit(good ? round : 99);
  }
  int status = -1;
  EXPECT(waitpid(child, &status, 0) == child && WIFEXITED(status));
  return WEXITSTATUS(status);
}

int main(void) {
  all_rounds = rounds(8, 24);
  for (int i = 0; i < kStreams; ++i) {
    streams[i] = tmpfile();
    EXPECT(streams[i] != NULL);
    EXPECT(setvbuf(streams[i], mapPlain(kBuffer), _IOFBF, kBuffer) == 0);
  }
  const cookie_io_functions_t functions = {.write = digestAndDrop};
  digested = fopencookie(NULL, "w", functions);
  EXPECT(digested != NULL && setvbuf(digested, mapPlain(kBuffer), _IOFBF, kBuffer) == 0);
  pthread_t thread;
  EXPECT(pthread_create(&thread, NULL, flusher, NULL) == 0);
  for (int round = 1; round <= all_rounds; ++round) {
    for (int i = 0; i < kStreams; ++i) writeTo(streams[i], (uint64_t)(round * kStreams + i));
    writeTo(digested, (uint64_t)round);
    crowd();
    atomic_store(&wanted, round);
    while (atomic_load(&begun) < round) sched_yield();
    EXPECT(childOf(round) == round);
    while (atomic_load(&ended_rounds) < round) sched_yield();
  }
  EXPECT(pthread_join(thread, NULL) == 0);
  for (int i = 0; i < kStreams; ++i) {
    struct stat about;
    EXPECT(fstat(fileno(streams[i]), &about) == 0);
    printf("stream %d: %lld bytes\n", i, (long long)about.st_size);
  }
  printf("digest %016llx\n", (unsigned long long)digest_of_all);
  return done("fork_while_flushing");
}
