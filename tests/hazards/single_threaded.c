// SPDX-License-Identifier: Apache-2.0
// Calls that the kernel grants to a process of one thread alone: new namespaces, other ones. Its
// memory is there afterwards, and its children's.
#include <pthread.h>
#include <sched.h>

#include "tests/hazards/hazard.h"

static int tryCall(const char* name, int result) {
  printf("%s: %s\n", name, result == 0 ? "done" : strerrorname_np(errno));
  return result;
}

static void* waitForEnd(void* read_end) {
  char byte;
  EXPECT(read(*(int*)read_end, &byte, 1) == 0);
  return NULL;
}

int main(void) {
  const size_t size = 8 * MIB;
  char* data = farData(size, 1);
  const int own_mounts = open("/proc/self/ns/mnt", O_RDONLY);
  const int own_net = open("/proc/self/ns/net", O_RDONLY);
  EXPECT(own_mounts >= 0 && own_net >= 0);
  tryCall("setns of mounts", setns(own_mounts, CLONE_NEWNS));
  tryCall("setns of the network", setns(own_net, 0));
  EXPECT(wrongWords(data, size, 1) == 0);
  crowd();
  // Refused by the kernel in any program.
  tryCall("unshare of nothing known", unshare(1));
  tryCall("setns of a wrong kind", setns(own_net, CLONE_NEWNS));
  pthread_t thread;
  int ends[2];
  EXPECT(pipe(ends) == 0);
  EXPECT(pthread_create(&thread, NULL, waitForEnd, &ends[0]) == 0);
  tryCall("unshare with a thread beside", unshare(CLONE_NEWUSER));
  close(ends[1]);
  pthread_join(thread, NULL);
  fflush(stdout);
  const pid_t child = fork();
  if (child == 0) {
    tryCall("unshare of a child", unshare(CLONE_NEWUSER | CLONE_NEWNS));
    EXPECT(wrongWords(data, size, 1) == 0);
    fill(data, size, 2);
    crowd();
    fflush(stdout);
    const pid_t grandchild = fork();
    if (grandchild == 0) {
      EXPECT(wrongWords(data, size, 2) == 0);
      return done("grandchild");
    }
    ended("grandchild", grandchild);
    EXPECT(wrongWords(data, size, 2) == 0);
    return done("child");
  }
  ended("child", child);
  tryCall("unshare", unshare(CLONE_NEWUSER));
  EXPECT(wrongWords(data, size, 1) == 0);
  return done("single_threaded");
}
