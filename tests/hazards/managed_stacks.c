// SPDX-License-Identifier: Apache-2.0
// Threads, coroutines and signal handlers whose stacks are managed memory, which comes and goes
// while they are in the midst of calls that change mappings: each of those takes locks that are
// wanted for bringing a page of the stack back.
#include <pthread.h>
#include <stdatomic.h>
#include <ucontext.h>

#include "tests/hazards/hazard.h"

enum { kThreads = 6, kStack = 128 * 1024, kPiece = 24 * kPage, kStacks = (kThreads + 2) * kStack };
static int turns;
static atomic_int running;

/// Changes mappings in many ways, with little work in between. Returns how many words were wrong.
static size_t changeMappings(uint64_t seed) {
  volatile char deep[3 * kPage];
  for (size_t i = 0; i < sizeof deep; i += 512) deep[i] = (char)seed;
  char* piece = mapPlain(kPiece);
  fill(piece, kPiece, seed);
  EXPECT(mprotect(piece + kPage, kPage, PROT_READ) == 0);
  EXPECT(madvise(piece + 2 * kPage, kPage, MADV_DONTFORK) == 0);
  EXPECT(madvise(piece + 3 * kPage, kPage, MADV_DONTDUMP) == 0);
  for (int i = 0; i < 8; ++i) {
    EXPECT(madvise(piece, kPiece, MADV_DONTDUMP) == 0);
    EXPECT(madvise(piece, kPiece, MADV_DODUMP) == 0);
  }
  const size_t wrong = wrongWords(piece, kPiece, seed);
  EXPECT(madvise(piece + 4 * kPage, kPage, MADV_DONTNEED) == 0);
  EXPECT(munmap(piece, kPiece / 2) == 0);
  EXPECT(munmap(piece + kPiece / 2, kPiece / 2) == 0);
  size_t spoilt = 0;
  for (size_t i = 0; i < sizeof deep; i += 512) spoilt += deep[i] != (char)seed;
  return wrong + spoilt;
}

static void* onThread(void* argument) {
  size_t wrong = 0;
  for (int i = 0; i < turns; ++i) wrong += changeMappings((uintptr_t)argument + (uint64_t)i);
  --running;
  return (void*)wrong;
}

static ucontext_t here, there;
static size_t wrong_in_coroutine;

static void coroutine(void) {
  for (int i = 0; i < turns; ++i) {
    wrong_in_coroutine += changeMappings(1000 + (uint64_t)i);
    if (i % 16 == 0) swapcontext(&there, &here);
  }
}

static _Atomic size_t wrong_in_handler;
static void handler(int number, siginfo_t* info, void* context) {
  (void)info, (void)context;
  wrong_in_handler += changeMappings((uint64_t)number);
}

int main(void) {
  turns = rounds(1000, 20000);
  char* stacks = farData(kStacks, 1);
  pthread_t threads[kThreads];
  running = kThreads;
  for (size_t i = 0; i < kThreads; ++i) {
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    EXPECT(pthread_attr_setstack(&attributes, stacks + i * kStack, kStack) == 0);
    EXPECT(pthread_create(&threads[i], &attributes, onThread, (void*)(i * 10000)) == 0);
    pthread_attr_destroy(&attributes);
  }
  // Out they go, over and over: a granule of all of them, of which each brings its own pages back.
  for (int i = 0; running > 0; ++i) {
    EXPECT(madvise(stacks, kStacks, MADV_PAGEOUT) == 0);
    if (i % 16 == 0) crowd();
    usleep(1000);
  }
  size_t wrong = 0;
  for (size_t i = 0; i < kThreads; ++i) {
    void* result = NULL;
    EXPECT(pthread_join(threads[i], &result) == 0);
    wrong += (size_t)result;
  }
  printf("threads: %zu wrong\n", wrong);

  EXPECT(getcontext(&there) == 0);
  there.uc_stack.ss_sp = stacks + kThreads * kStack;
  there.uc_stack.ss_size = kStack;
  there.uc_link = &here;
  makecontext(&there, coroutine, 0);
  for (int i = 0; i < (turns + 15) / 16 + 1; ++i) {
    if (i % 8 == 0) crowd();
    EXPECT(swapcontext(&here, &there) == 0);
  }
  printf("coroutine: %zu wrong\n", wrong_in_coroutine);

  stack_t other = {.ss_sp = stacks + (kThreads + 1) * kStack, .ss_size = kStack};
  EXPECT(sigaltstack(&other, NULL) == 0);
  onSignal(SIGUSR1, handler, SA_ONSTACK);
  for (int i = 0; i < turns; ++i) {
    if (i % 128 == 0) crowd();
    raise(SIGUSR1);
  }
  printf("handler: %zu wrong\n", (size_t)wrong_in_handler);
  return done("managed_stacks");
}
