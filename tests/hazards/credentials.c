// SPDX-License-Identifier: Apache-2.0
// A program that gives up its rights gives up those of all its threads, ours included.
#include <dirent.h>
#include <grp.h>
#include <pthread.h>
#include <stdio.h>

#include "tests/hazards/hazard.h"

/// How many threads of the process have other ids than the caller, by the kernel's own records.
static int strangers(uid_t user, gid_t group) {
  int found = 0;
  DIR* threads = opendir("/proc/self/task");
  for (struct dirent* thread; (thread = readdir(threads)) != NULL;) {
    char path[300], line[128];
    snprintf(path, sizeof path, "/proc/self/task/%s/status", thread->d_name);
    FILE* status = thread->d_name[0] == '.' ? NULL : fopen(path, "r");
    if (status == NULL) continue;
    unsigned ids[4];
    while (fgets(line, sizeof line, status) != NULL) {
      const int uids = sscanf(line, "Uid: %u %u %u %u", &ids[0], &ids[1], &ids[2], &ids[3]) == 4;
      const int gids = sscanf(line, "Gid: %u %u %u %u", &ids[0], &ids[1], &ids[2], &ids[3]) == 4;
      const unsigned want = uids ? user : group;
      for (int i = 0; (uids || gids) && i < 4; ++i) found += ids[i] != want;
    }
    fclose(status);
  }
  closedir(threads);
  return found;
}

static volatile int stop;
static void* readOn(void* data) {
  int wrong = 0;
  while (!stop) wrong += wrongWords(data, 8 * MIB, 1) != 0;
  return (void*)(intptr_t)wrong;
}

int main(void) {
  const size_t size = 8 * MIB;
  char* data = farData(size, 1);
  pthread_t reader;
  EXPECT(pthread_create(&reader, NULL, readOn, data) == 0);
  printf("at first: %d\n", strangers(0, 0));
  const gid_t none = 65534;
  EXPECT(setgroups(1, &none) == 0);
  EXPECT(seteuid(65534) == 0 && seteuid(0) == 0);
  EXPECT(setresgid(65534, 65534, 65534) == 0);
  EXPECT(setresuid(65534, 65534, 65534) == 0);
  printf("afterwards: %d\n", strangers(65534, 65534));
  EXPECT(setuid(0) == -1 && errno == EPERM);
  crowd();
  EXPECT(wrongWords(data, size, 1) == 0);
  stop = 1;
  void* wrong = NULL;
  EXPECT(pthread_join(reader, &wrong) == 0 && wrong == NULL);
  return done("credentials");
}
