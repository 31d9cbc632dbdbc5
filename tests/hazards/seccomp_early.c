// SPDX-License-Identifier: Apache-2.0
// A process that forbids itself most system calls while it is small, as sandboxes' children do, and
// uses memory afterwards: by prctl(), by number, for one thread and for all. What managing memory
// takes to begin is not among the calls that it allows itself.
#include <pthread.h>

#include "tests/hazards/filter.h"
#include "tests/hazards/hazard.h"

static struct sock_filter filter[] = {
    LOAD_CALL,
    ALLOW(read),
    ALLOW(write),
    ALLOW(mmap),
    ALLOW(munmap),
    ALLOW(mprotect),
    ALLOW(madvise),
    ALLOW(mremap),
    ALLOW(brk),
    ALLOW(futex),
    ALLOW(exit),
    ALLOW(exit_group),
    ALLOW(rt_sigreturn),
    ALLOW(rt_sigprocmask),
    ALLOW(sched_getaffinity),
    ALLOW(getrandom),
    ALLOW(rseq),
    ALLOW(sigaltstack),
    KILL,
};
static const struct sock_fprog program = {sizeof filter / sizeof filter[0], filter};

static int byPrctl(void) { return prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program); }
static int byPrctlsNumber(void) {
  return (int)syscall(SYS_prctl, PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program);
}
static int byNumber(void) {
  return (int)syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &program);
}
static int forAll(void) {
  return (int)syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_TSYNC, &program);
}

static void useMemory(void) {
  const size_t size = 24 * MIB;
  for (int round = 0; round < 2; ++round) {
    char* mapped = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    char* block = malloc(size);
    char* small[64];
    EXPECT(mapped != MAP_FAILED && block != NULL);
    fill(mapped, size, 1);
    fill(block, size, 2);
    for (size_t i = 0; i < 64; ++i) {
      small[i] = malloc(40000 + i * 1000);
      fill(small[i], 40000, 3 + i);
    }
    EXPECT(wrongWords(mapped, size, 1) == 0);
    EXPECT(wrongWords(block, size, 2) == 0);
    for (size_t i = 0; i < 64; ++i) {
      EXPECT(wrongWords(small[i], 40000, 3 + i) == 0);
      free(small[i]);
    }
    EXPECT(munmap(mapped, size) == 0);
    free(block);
  }
}

static pthread_barrier_t both;
static void* otherThread(void* unused) {
  (void)unused;
  pthread_barrier_wait(&both);  // it has started
  pthread_barrier_wait(&both);  // there is a filter
  useMemory();
  return NULL;
}

static void child(const char* name, int (*filterIt)(void)) {
  const pid_t made = fork();
  if (made == 0) {
    pthread_t thread;
    EXPECT(pthread_barrier_init(&both, NULL, 2) == 0);
    EXPECT(pthread_create(&thread, NULL, otherThread, NULL) == 0);
    pthread_barrier_wait(&both);
    // It is asked first, as programs do, whether there are such filters.
    EXPECT(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, NULL) == -1 && errno == EFAULT);
    EXPECT(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0);
    EXPECT(filterIt() == 0);
    useMemory();
    pthread_barrier_wait(&both);
    EXPECT(pthread_join(thread, NULL) == 0);
    syscall(SYS_exit_group, failures());
  }
  ended(name, made);
}

int main(void) {
  child("by prctl", byPrctl);
  child("by prctl's number", byPrctlsNumber);
  child("by number", byNumber);
  child("for all threads", forAll);
  // Asking is not setting: this process may be managed.
  EXPECT(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, NULL) == -1 && errno == EFAULT);
  char* data = farData(8 * MIB, 5);
  EXPECT(wrongWords(data, 8 * MIB, 5) == 0);
  return done("seccomp_early");
}
