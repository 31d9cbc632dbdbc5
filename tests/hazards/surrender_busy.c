// SPDX-License-Identifier: Apache-2.0
// Memory gets MADV_WIPEONFORK while other threads read and write it, two threads ask for it on the
// same pages, and a userfaultfd of the program's own is registered there: no store is lost, and
// nobody faults.
#include <linux/userfaultfd.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>

#include "tests/hazards/hazard.h"

enum { kPages = 512, kWriters = 3, kRounds = 6, kWord = kPage / 8 };
static uint64_t* data;
static atomic_int stop, wrong;

/// Every page has a word for each writer, which it alone increments.
static void* increment(void* argument) {
  const size_t writer = (size_t)argument;
  uint64_t seen[kPages] = {0};
  size_t page = writer * 7;
  do {
    page = (page + 1) % kPages;
    uint64_t* word = &data[page * kWord + writer * 8];
    if (*(volatile uint64_t*)word != seen[page]) atomic_fetch_add(&wrong, 1);
    *(volatile uint64_t*)word = ++seen[page];
  } while (!atomic_load(&stop));
  for (page = 0; page < kPages; ++page)
    if (data[page * kWord + writer * 8] != seen[page]) atomic_fetch_add(&wrong, 1);
  return NULL;
}

static void* keepFromChild(void* unused) {
  for (size_t page = 0; page < kPages; page += 4)
    EXPECT(madvise(data + page * kWord, 4 * kPage, MADV_WIPEONFORK) == 0);
  return unused;
}

static void* registerOwn(void* unused) {
  int port = (int)syscall(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK);
  struct uffdio_api api = {.api = UFFD_API};
  EXPECT(port >= 0 && ioctl(port, UFFDIO_API, &api) == 0);
  for (size_t page = 0; page < kPages; page += 8) {
    struct uffdio_register range = {
        .range = {(uint64_t)(uintptr_t)(data + page * kWord), 8 * kPage},
        .mode = UFFDIO_REGISTER_MODE_WP};
    EXPECT(ioctl(port, UFFDIO_REGISTER, &range) == 0);
  }
  close(port);
  return unused;
}

static void round_(void* (*first)(void*), void* (*second)(void*)) {
  pthread_t writers[kWriters], takers[2];
  crowd();
  data = (uint64_t*)mapPlain((size_t)kPages * kPage);
  for (size_t page = 0; page < kPages; ++page) data[page * kWord + 100] = page + 1;
  crowd();
  atomic_store(&stop, 0);
  for (size_t i = 0; i < kWriters; ++i)
    EXPECT(pthread_create(&writers[i], NULL, increment, (void*)i) == 0);
  EXPECT(pthread_create(&takers[0], NULL, first, NULL) == 0);
  EXPECT(pthread_create(&takers[1], NULL, second, NULL) == 0);
  for (int i = 0; i < 2; ++i) EXPECT(pthread_join(takers[i], NULL) == 0);
  atomic_store(&stop, 1);
  for (int i = 0; i < kWriters; ++i) EXPECT(pthread_join(writers[i], NULL) == 0);
  for (size_t page = 0; page < kPages; ++page) EXPECT(data[page * kWord + 100] == page + 1);
  EXPECT(munmap(data, (size_t)kPages * kPage) == 0);
}

int main(void) {
  for (int i = 0; i < kRounds; ++i) {
    round_(keepFromChild, keepFromChild);
    round_(registerOwn, keepFromChild);
  }
  printf("%d words wrong\n", atomic_load(&wrong));
  return done("surrender_busy");
}
