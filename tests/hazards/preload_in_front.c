// SPDX-License-Identifier: Apache-2.0
// Another library is preloaded in front of whatever else is, as socket_wrapper, torsocks and the
// like are (see jealous_preload.c): it holds a lock while the program forks, which all that it
// defines wants, and it knows whose calls they are. The program does not notice.
#include <sys/prctl.h>

#include "tests/hazards/hazard.h"

static int worker(char* data, size_t size, int depth) {
  EXPECT(wrongWords(data, size, 1) == 0);
  crowd();
  EXPECT(wrongWords(data, size, 1) == 0);
  if (depth == 0) return failures();
  const pid_t child = fork();
  if (child == 0) _exit(worker(data, size, depth - 1));
  int status = -1;
  EXPECT(waitpid(child, &status, 0) == child && status == 0);
  return failures();
}

/// Begins the program again, with that library in front.
static void preloadInFront(char** arguments) {
  char self[400] = "", list[1200];
  EXPECT(readlink("/proc/self/exe", self, sizeof self - 1) > 0);
  char* name = strrchr(self, '/');
  const char* others = getenv("LD_PRELOAD");
  snprintf(list, sizeof list, "%.*s/libjealous.so%s%s", (int)(name - self), self,
           others != NULL ? ":" : "", others != NULL ? others : "");
  setenv("LD_PRELOAD", list, 1);
  setenv("JEALOUS", "1", 1);
  execv(self, arguments);
  exit(97);
}

int main(int count, char** arguments) {
  (void)count;
  if (getenv("JEALOUS") == NULL) preloadInFront(arguments);
  const size_t size = 24 * MIB;
  char* data = farData(size, 1);
  fflush(stdout);
  for (int i = 0; i < 3; ++i) {
    const pid_t child = fork();
    if (child == 0) _exit(worker(data, size, 2));
    ended("worker", child);
  }
  char* more = farData(size, 2);
  EXPECT(wrongWords(more, size, 2) == 0 && wrongWords(data, size, 1) == 0);
  return done("preload_in_front");
}
