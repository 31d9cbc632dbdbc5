// SPDX-License-Identifier: Apache-2.0
// Forks again and again, with a locale set and far data, while other threads start and end; each
// child reads its data, uses the locale, starts a thread, and ends.
#include <langinfo.h>
#include <locale.h>
#include <pthread.h>

#include "tests/hazards/hazard.h"

enum { kPages = 512 };

static char* data;

static int wrongPage(unsigned cycle) {
  const size_t words = kPage / 8, page = cycle * 97u % kPages;
  return wrongFrom(data + page * kPage, kPage, 1, page * words) != 0;
}

static void* useLocale(void* argument) {
  return strcmp(nl_langinfo(CODESET), "UTF-8") == 0 ? argument : NULL;
}

static volatile int stop;
static void* startThreads(void* unused) {
  while (!stop) {
    pthread_t thread;
    if (pthread_create(&thread, NULL, useLocale, &data) == 0) pthread_join(thread, NULL);
    usleep(200);
  }
  return unused;
}

int main(void) {
  EXPECT(setlocale(LC_ALL, "C.UTF-8") != NULL);
  const unsigned cycles = (unsigned)rounds(100, 10000);
  data = farData(kPages * kPage, 1);
  pthread_t starter;
  EXPECT(pthread_create(&starter, NULL, startThreads, NULL) == 0);
  unsigned bad = 0;
  for (unsigned cycle = 0; cycle < cycles; ++cycle) {
    if (cycle % 500 == 0) crowd();
    const pid_t child = fork();
    if (child == 0) {
      pthread_t thread;
      void* found = NULL;
      if (pthread_create(&thread, NULL, useLocale, &data) != 0) _exit(2);
      if (pthread_join(thread, &found) != 0 || found == NULL) _exit(3);
      _exit(wrongPage(cycle) || useLocale(&data) == NULL ? 4 : 0);
    }
    int status = -1;
    if (child < 0 || waitpid(child, &status, 0) != child || status != 0) ++bad;
  }
  stop = 1;
  EXPECT(pthread_join(starter, NULL) == 0);
  EXPECT(waitpid(-1, NULL, WNOHANG) == -1 && errno == ECHILD);
  printf("bad children: %u\n", bad);
  return done("fork_cycles");
}
