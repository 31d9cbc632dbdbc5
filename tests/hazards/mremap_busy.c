// SPDX-License-Identifier: Apache-2.0
// A range moves by mremap while another thread stores to it: what was stored before the thread's
// first fault at the old place is found at the new one, all of it. With MREMAP_DONTUNMAP nobody
// faults, and what was stored is at one place or the other.
#include <pthread.h>
#include <setjmp.h>
#include <stdatomic.h>

#include "tests/hazards/hazard.h"

enum { kPages = 512, kWord = kPage / 8 };
static uint64_t *data, stored[kPages];
static atomic_int begun, stop;
static sigjmp_buf faulted;

static void onFault(int number, siginfo_t* info, void* context) {
  (void)number, (void)info, (void)context;
  siglongjmp(faulted, 1);
}

static void* store(void* unused) {
  volatile uint64_t* stores = stored;
  if (sigsetjmp(faulted, 1) != 0) return unused;
  for (size_t page = 0; !atomic_load(&stop); page = (page + 1) % kPages) {
    *(volatile uint64_t*)&data[page * kWord] = stores[page] + 1;
    stores[page] = stores[page] + 1;
    atomic_store(&begun, 1);
  }
  return unused;
}

static size_t move(int flags) {
  const size_t size = (size_t)kPages * kPage;
  memset(stored, 0, sizeof stored);
  data = (uint64_t*)farData(size, 3);
  for (size_t page = 0; page < kPages; ++page) data[page * kWord] = 0;
  crowd();
  atomic_store(&stop, 0);
  atomic_store(&begun, 0);
  pthread_t thread;
  EXPECT(pthread_create(&thread, NULL, store, NULL) == 0);
  while (!atomic_load(&begun)) sched_yield();
  uint64_t* to = (uint64_t*)mmap(NULL, size, PROT_NONE, kPlain, -1, 0);
  EXPECT(mremap(data, size, size, MREMAP_MAYMOVE | MREMAP_FIXED | flags, to) == to);
  atomic_store(&stop, flags != 0);
  pthread_join(thread, NULL);
  size_t lost = 0;
  for (size_t page = 0; page < kPages; ++page) {
    uint64_t there = to[page * kWord];
    if (flags != 0 && data[page * kWord] > there) there = data[page * kWord];
    lost += there != stored[page];
    lost += wrongFrom(to + page * kWord + 1, kPage - 8, 3, page * kWord + 1);
  }
  munmap(to, size);
  if (flags != 0) munmap(data, size);
  return lost;
}

int main(void) {
  onSignal(SIGSEGV, onFault, SA_NODEFER);
  size_t lost = 0;
  for (int i = 0; i < 12; ++i) lost += move(i % 3 == 2 ? MREMAP_DONTUNMAP : 0);
  printf("%zu words lost\n", lost);
  return done("mremap_busy");
}
