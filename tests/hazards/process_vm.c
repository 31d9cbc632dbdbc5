// SPDX-License-Identifier: Apache-2.0
// process_vm_readv and process_vm_writev of far memory by another process, a child that is spawned.
#include <spawn.h>
#include <sys/prctl.h>
#include <sys/uio.h>

#include "tests/hazards/hazard.h"

extern char** environ;

static int child(pid_t pid, char* address, size_t size) {
  char* copy = mapPlain(size);
  struct iovec mine = {copy, size}, theirs = {address, size};
  EXPECT(process_vm_readv(pid, &mine, 1, &theirs, 1, 0) == (ssize_t)size);
  EXPECT(wrongWords(copy, size, 1) == 0);
  fill(copy, size, 2);
  EXPECT(process_vm_writev(pid, &mine, 1, &theirs, 1, 0) == (ssize_t)size);
  return done("child");
}

int main(int argc, char** argv) {
  const size_t size = 8 * MIB;
  if (argc == 3) return child(atoi(argv[1]), (char*)(uintptr_t)strtoull(argv[2], NULL, 0), size);
  prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY, 0, 0, 0);
  char* data = farData(size, 1);
  char pid[16], address[32];
  snprintf(pid, sizeof pid, "%d", getpid());
  snprintf(address, sizeof address, "%p", (void*)data);
  char* arguments[] = {argv[0], pid, address, NULL};
  pid_t made;
  EXPECT(posix_spawn(&made, "/proc/self/exe", NULL, NULL, arguments, environ) == 0);
  ended("reader", made);
  crowd();
  EXPECT(wrongWords(data, size, 2) == 0);
  tell("data", data, size);
  return done("process_vm");
}
