// SPDX-License-Identifier: Apache-2.0
// Gather loops over far memory, which are foretold from the registers of the thread that faults,
// where registers and stack are not what one would think: code made at run time, a stack that has
// gone far itself, a signal handler, under seccomp filters in children of fork(), step by
// step under a tracer.
#include <pthread.h>
#include <spawn.h>
#include <sys/ptrace.h>

#include "tests/hazards/filter.h"
#include "tests/hazards/hazard.h"

enum { kRows = 4096, kIndexes = 2000 };
typedef uint64_t Gather(const uint64_t* table, const uint32_t* index, size_t count);

extern char** environ;
static uint64_t* table;
static uint32_t* index_array;

/// The sixth words of pages.
static uint64_t gather(const uint64_t* rows, const uint32_t* index, size_t count) {
  uint64_t sum = 0;
  for (size_t i = 0; i < count; ++i) sum += rows[(size_t)index[i] * 512 + 5];
  return sum;
}

static void prepare(void) {
  table = (uint64_t*)farData(kRows * kPage, 1);
  index_array = (uint32_t*)malloc(kIndexes * sizeof *index_array);
}

/// In batches, each after the table has been pushed out and with indexes of its own.
static uint64_t gatherAll(Gather* how, uint64_t seed) {
  uint64_t sum = 0;
  for (int batch = 0; batch < 2; ++batch) {
    crowd();
    for (size_t i = 0; i < kIndexes; ++i) {
      index_array[i] = (uint32_t)(wordAt(seed + (uint64_t)batch, i) % kRows);
    }
    sum = sum * 31 + how(table, index_array, kIndexes);
  }
  return sum;
}

static void say(const char* where, uint64_t sum) {
  printf("%s: %016llx\n", where, (unsigned long long)sum);
  fflush(stdout);
}

static Gather* codeMadeNow(void) {
#ifdef __x86_64__
  // xor eax,eax; 1: test rdx,rdx; jz 2f; mov ecx,[rsi]; shl rcx,12; add rax,[rdi+rcx+40];
  // add rsi,4; dec rdx; jmp 1b; 2: ret
  static const unsigned char code[] = {0x31, 0xC0, 0x48, 0x85, 0xD2, 0x74, 0x14, 0x8B, 0x0E, 0x48,
                                       0xC1, 0xE1, 0x0C, 0x48, 0x03, 0x44, 0x0F, 0x28, 0x48, 0x83,
                                       0xC6, 0x04, 0x48, 0xFF, 0xCA, 0xEB, 0xE7, 0xC3};
  char* page = mapPlain(kPage);
  memcpy(page, code, sizeof code);
  EXPECT(mprotect(page, kPage, PROT_READ | PROT_EXEC) == 0);
  return (Gather*)(void*)page;
#else
  return gather;
#endif
}

static void* onFarStack(void* sum) {
  *(uint64_t*)sum = gatherAll(gather, 20);
  return NULL;
}

static void tellOfFarStack(void) {
  char* stack = farData(MIB, 2);
  uint64_t sum = 0;
  pthread_attr_t attributes;
  pthread_attr_init(&attributes);
  EXPECT(pthread_attr_setstack(&attributes, stack, MIB) == 0);
  pthread_t thread;
  EXPECT(pthread_create(&thread, &attributes, onFarStack, &sum) == 0);
  EXPECT(pthread_join(thread, NULL) == 0);
  say("far stack", sum);
}

static volatile uint64_t handler_sum;
static void onUser(int number, siginfo_t* info, void* context) {
  (void)number, (void)info, (void)context;
  handler_sum = gatherAll(gather, 30);
}

/// Nothing but what docs/limits.md asks for, and to write and to end.
static void filtered(void) {
  struct sock_filter filter[] = {
      LOAD_CALL,
      ALLOW(ioctl),
      ALLOW(mmap),
      ALLOW(munmap),
      ALLOW(mremap),
      ALLOW(mprotect),
      ALLOW(madvise),
      ALLOW(fallocate),
      ALLOW(futex),
      ALLOW(write),
      ALLOW(openat),
      ALLOW(getpid),
      ALLOW(rt_sigprocmask),
      ALLOW(rt_sigpending),
      ALLOW(rt_sigtimedwait),
      ALLOW(exit_group),
      KILL,
  };
  struct sock_fprog program = {sizeof filter / sizeof filter[0], filter};
  EXPECT(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0);
  EXPECT(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0);
  say("filter", gatherAll(gather, 40));
  syscall(SYS_exit_group, failures());
}

static void* inThread(void* sum) {
  *(uint64_t*)sum = gatherAll(gather, 70);
  return NULL;
}

/// A filter for all threads, those that sample registers too, that knows nothing of sampling; then
/// there is a thread that is not sampled yet.
static void filteredForAll(void) {
  struct sock_filter filter[] = {
      LOAD_CALL,
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_perf_event_open, 0, 1),
      KILL,
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  struct sock_fprog program = {sizeof filter / sizeof filter[0], filter};
  say("before the filter", gatherAll(gather, 60));
  EXPECT(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0);
  EXPECT(syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_TSYNC, &program) == 0);
  uint64_t sum = 0;
  pthread_t thread;
  EXPECT(pthread_create(&thread, NULL, inThread, &sum) == 0);
  EXPECT(pthread_join(thread, NULL) == 0);
  say("filter for all", sum);
  _exit(failures());
}

static int traced(void) {
  prepare();
  EXPECT(ptrace(PTRACE_TRACEME, 0, NULL, NULL) == 0);
  raise(SIGSTOP);
  say("traced", gatherAll(gather, 50));
  return failures();
}

/// Steps through some instructions, lets it run, stops it, and again.
static void trace(char* program) {
  char* arguments[] = {program, (char*)"traced", NULL};
  pid_t made;
  EXPECT(posix_spawn(&made, "/proc/self/exe", NULL, NULL, arguments, environ) == 0);
  int status;
  EXPECT(waitpid(made, &status, 0) == made && WIFSTOPPED(status));
  for (int step = 0; step < 4000; ++step) {
    EXPECT(ptrace(PTRACE_SINGLESTEP, made, NULL, NULL) == 0);
    EXPECT(waitpid(made, &status, 0) == made && WIFSTOPPED(status));
  }
  for (int stop = 0; stop < 20; ++stop) {
    EXPECT(ptrace(PTRACE_CONT, made, NULL, NULL) == 0);
    usleep(2000);
    EXPECT(kill(made, SIGSTOP) == 0);
    if (waitpid(made, &status, 0) != made || !WIFSTOPPED(status)) break;
  }
  if (WIFSTOPPED(status)) {
    EXPECT(ptrace(PTRACE_CONT, made, NULL, NULL) == 0);
    EXPECT(waitpid(made, &status, 0) == made);
  }
  EXPECT(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

int main(int argc, char** argv) {
  if (argc == 2) return traced();
  prepare();
  say("plain", gatherAll(gather, 1));
  say("code made now", gatherAll(codeMadeNow(), 10));
  tellOfFarStack();
  onSignal(SIGUSR1, onUser, 0);
  raise(SIGUSR1);
  say("handler", handler_sum);
  const pid_t child = fork();
  if (child == 0) filtered();
  ended("filtered", child);
  const pid_t other = fork();
  if (other == 0) filteredForAll();
  ended("filtered for all", other);
  trace(argv[0]);
  return done("gather_far");
}
