// SPDX-License-Identifier: Apache-2.0
// Holes that a program has made with munmap() are the program's, in a forked child too: what it
// maps there stays as it was written, while much else is read and written; a touch of one that is
// empty ends in SIGSEGV; and whatever wants such an address can have it: MAP_FIXED_NOREPLACE,
// shmat(), a stack that it switches to.
#include <sys/shm.h>
#include <ucontext.h>

#include "tests/hazards/hazard.h"

enum { kHoles = 24 };

/// A range that was mapped, of `pages` pages, and is no more.
static char* hole(size_t pages) {
  const int fd = fileOf(pages * kPage, pages);
  char* range = (char*)mmap(NULL, pages * kPage, kRw, MAP_PRIVATE, fd, 0);
  EXPECT(range != MAP_FAILED && wrongWords(range, pages * kPage, pages) == 0);
  return range;
}

static void makeHoles(char* const* ranges, const size_t* pages, int count) {
  for (int i = 0; i < count; ++i) EXPECT(munmap(ranges[i], pages[i] * kPage) == 0);
}

/// Holes from the sizes of one table of ours to those of our buffers, largest first: the kernel
/// gives out the highest that is large enough.
static void sizesOf(size_t* pages) {
  for (int i = 0; i < kHoles; ++i) pages[i] = 3 + (size_t)(i % 6) * (size_t)(i % 6) * 11;
}

static void fillsHoles(char* const* ranges, const size_t* pages, char* data, size_t size) {
  for (int i = 0; i < kHoles; ++i) {
    const size_t bytes = pages[i] * kPage;
    EXPECT(mmap(ranges[i], bytes, kRw, kPlain | MAP_FIXED, -1, 0) == ranges[i]);
    fill(ranges[i], bytes, (uint64_t)i + 100);
  }
  EXPECT(wrongWords(data, size, 1) == 0);
  fill(data, size, 2);
  crowd();
  EXPECT(wrongWords(data, size, 2) == 0);
  size_t wrong = 0;
  for (int i = 0; i < kHoles; ++i)
    wrong += wrongWords(ranges[i], pages[i] * kPage, (uint64_t)i + 100);
  printf("words that are not the program's: %zu\n", wrong);
}

static void refusesOthers(char* const* ranges, const size_t* pages) {
  int taken = 0;
  for (int i = 0; i < kHoles; ++i) {
    void* found = mmap(ranges[i], pages[i] * kPage, kRw,
                       MAP_SHARED | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
    taken += found != ranges[i];
    if (found == ranges[i]) EXPECT(munmap(found, pages[i] * kPage) == 0);
  }
  const int id = shmget(IPC_PRIVATE, 3 * kPage, 0600 | IPC_CREAT);
  for (int i = 0; i < kHoles; ++i) {
    void* found = shmat(id, ranges[i], 0);
    taken += found != ranges[i];
    if (found == ranges[i]) EXPECT(shmdt(found) == 0);
  }
  shmctl(id, IPC_RMID, NULL);
  printf("holes that were taken: %d\n", taken);
}

static ucontext_t back, there;
static void onStack(void) {
  volatile char local[2 * kPage];
  for (size_t i = 0; i < sizeof local; i += 64) local[i] = (char)i;
  EXPECT(swapcontext(&there, &back) == 0);
}

static void stacksIn(char* range, size_t bytes, char* data, size_t size) {
  EXPECT(mmap(range, bytes, kRw, MAP_PRIVATE | MAP_ANONYMOUS | MAP_STACK | MAP_FIXED, -1, 0) ==
         range);
  EXPECT(getcontext(&there) == 0);
  there.uc_stack.ss_sp = range;
  there.uc_stack.ss_size = bytes;
  there.uc_link = &back;
  makecontext(&there, onStack, 0);
  EXPECT(swapcontext(&back, &there) == 0);
  EXPECT(wrongWords(data, size, 1) == 0);
  printf("ran on a stack in a hole\n");
}

int main(void) {
  const size_t size = 64 * MIB;
  char* ranges[kHoles];
  size_t pages[kHoles];
  sizesOf(pages);
  char* data = farData(size, 1);
  for (int i = 0; i < kHoles; ++i) ranges[i] = hole(pages[i]);
  makeHoles(ranges, pages, kHoles);
  fflush(stdout);
  pid_t child = fork();
  if (child == 0) {
    fillsHoles(ranges, pages, data, size);
    fflush(stdout);
    _exit(failures());
  }
  ended("fills holes", child);
  child = fork();
  if (child == 0) {
    refusesOthers(ranges, pages);
    stacksIn(ranges[4], pages[4] * kPage, data, size);
    fflush(stdout);
    _exit(failures());
  }
  ended("wants holes", child);
  for (int i = 0; i < 6; ++i) {
    fflush(stdout);
    child = fork();
    if (child == 0) {
      EXPECT(wrongWords(data, MIB, 1) == 0);
      *(volatile char*)(ranges[i] + kPage) = 1;
      _exit(0);
    }
    ended("touches a hole", child);
  }
  // The parent has made its tables long ago; what it maps since must not lie there either.
  crowd();
  refusesOthers(ranges, pages);
  EXPECT(wrongWords(data, size, 1) == 0);
  return done("fork_holes");
}
