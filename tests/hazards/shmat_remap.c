// SPDX-License-Identifier: Apache-2.0
// Shared memory of System V: over memory in use (SHM_REMAP), where the program unmapped or reserved
// something, and where it may not be. Then a fork, which finds far memory and the segments.
#include <errno.h>
#include <sys/shm.h>

#include "tests/hazards/hazard.h"

static const char* named(int error) { return error == 0 ? "" : strerrorname_np(error); }

int main(void) {
  const size_t size = 8 * MIB;
  const int id = shmget(IPC_PRIVATE, size, 0600 | IPC_CREAT);
  EXPECT(id >= 0);
  char* first = (char*)shmat(id, NULL, 0);
  fill(first, size, 5);
  shmctl(id, IPC_RMID, NULL);

  // Where something was reserved, and is unmapped.
  char* hole = (char*)mmap(NULL, size, PROT_NONE, kPlain | MAP_NORESERVE, -1, 0);
  munmap(hole, size);
  char* there = (char*)shmat(id, hole, 0);
  EXPECT(there == hole && wrongWords(hole, size, 5) == 0);
  EXPECT(shmat(id, hole, 0) == (void*)-1);
  printf("twice: %s\n", named(errno));

  // Over memory in use.
  char* data = farData(2 * size, 1);
  errno = 0;
  EXPECT(shmat(id, data, 0) == (void*)-1);
  printf("in use: %s\n", named(errno));
  errno = 0;
  EXPECT(shmat(id, data + 8, 0) == (void*)-1);
  printf("unaligned: %s\n", named(errno));
  errno = 0;
  EXPECT(shmat(id + 77777, data, SHM_REMAP) == (void*)-1);
  printf("no such: %s\n", named(errno));
  EXPECT(wrongWords(data, 2 * size, 1) == 0);
  EXPECT(shmat(id, data + 8, SHM_REMAP | SHM_RND) == data);
  EXPECT(wrongWords(data, size, 5) == 0);
  EXPECT(wrongFrom(data + size, size, 1, size / 8) == 0);
  fill(first, kPage, 6);
  EXPECT(wrongWords(data, kPage, 6) == 0 && wrongWords(hole, kPage, 6) == 0);
  crowd();

  const pid_t child = fork();
  if (child == 0) {
    const size_t wrong = wrongFrom(data + size, size, 1, size / 8) + wrongWords(data, kPage, 6);
    _exit(wrong == 0 ? 3 : 4);
  }
  ended("child", child);

  // What is detached is unmapped: it can be attached, and mapped, once more.
  EXPECT(shmdt(data) == 0);
  errno = 0;
  EXPECT(msync(data, size, MS_ASYNC) == -1);
  printf("detached: %s\n", named(errno));
  EXPECT(shmat(id, data, SHM_RDONLY) == data && wrongWords(data, kPage, 6) == 0);
  EXPECT(shmdt(data) == 0);
  EXPECT(mmap(data, size, kRw, kPlain | MAP_FIXED_NOREPLACE, -1, 0) == data);
  EXPECT(allBytesAre(data, 0, size));
  EXPECT(munmap(data, 2 * size) == 0);
  tell("segment", first, size);
  return done("shmat_remap");
}
