// SPDX-License-Identifier: Apache-2.0
// MADV_DONTNEED on far memory, page by page and as a whole, from several threads: zeros, and
// nothing of the neighbours.
#include <pthread.h>

#include "tests/hazards/hazard.h"

static const size_t kShare = 4 * MIB;

static void* drop(void* argument) {
  char* share = (char*)argument;
  for (size_t at = 0; at < kShare; at += 3 * kPage)
    EXPECT(madvise(share + at, kPage, MADV_DONTNEED) == 0);
  return NULL;
}

int main(void) {
  enum { kThreads = 4 };
  char* data = farData(kThreads * kShare, 1);
  pthread_t threads[kThreads];
  for (size_t i = 0; i < kThreads; ++i) {
    EXPECT(pthread_create(&threads[i], NULL, drop, data + i * kShare) == 0);
  }
  for (size_t i = 0; i < kThreads; ++i) EXPECT(pthread_join(threads[i], NULL) == 0);
  crowd();
  for (size_t page = 0; page < kThreads * kShare / kPage; ++page) {
    const char* at = data + page * kPage;
    if (page % (kShare / kPage) % 3 == 0)
      EXPECT(allBytesAre(at, 0, kPage));
    else
      EXPECT(wrongFrom(at, kPage, 1, page * kPage / 8) == 0);
  }
  tell("data", data, kThreads * kShare);
  EXPECT(madvise(data, kThreads * kShare, MADV_DONTNEED) == 0);
  EXPECT(allBytesAre(data, 0, kThreads * kShare));
  fill(data, kThreads * kShare, 2);
  crowd();
  EXPECT(wrongWords(data, kThreads * kShare, 2) == 0);
  return done("madvise_dontneed");
}
