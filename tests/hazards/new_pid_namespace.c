// SPDX-License-Identifier: Apache-2.0
// A process whose children are to have another namespace of processes, or of time, can start no
// more threads. Its memory is there all the same, also after calls that want new service threads.
#include <sched.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

#include "tests/hazards/hazard.h"

#define NEWTIME 0x80
enum { kSize = 8 << 20 };

static int tryCall(const char* name, int result) {
  printf("%s: %s\n", name, result == 0 ? "done" : strerrorname_np(errno));
  return result;
}

/// The memory is there, can leave and comes back, and a child has it.
static void use(char* data) {
  EXPECT(wrongWords(data, kSize, 1) == 0);
  crowd();
  EXPECT(wrongWords(data, kSize, 1) == 0);
  fflush(stdout);
  const pid_t child = fork();
  if (child == 0) {
    EXPECT(wrongWords(data, kSize, 1) == 0);
    fill(data, kSize, 2);
    crowd();
    _exit(wrongWords(data, kSize, 2) == 0 ? failures() : 9);
  }
  if (child > 0) ended("first child", child);
  EXPECT(wrongWords(data, kSize, 1) == 0);
}

static void newProcesses(void) {
  tryCall("unshare of users and processes", unshare(CLONE_NEWUSER | CLONE_NEWPID | CLONE_NEWNS));
}
static void newTime(void) {
  tryCall("unshare of users and time", unshare(CLONE_NEWUSER | NEWTIME));
}
static void thenAnotherUser(void) {
  tryCall("unshare of processes", unshare(CLONE_NEWPID));
  tryCall("setgid", setgid(getgid()));
  tryCall("setresuid", setresuid(getuid(), getuid(), getuid()));
}
/// The first process of namespaces of its own, and who has made it.
static pid_t first, maker;
static void makeFirst(void) {
  int pipes[2];
  EXPECT(pipe(pipes) == 0);
  maker = fork();
  if (maker == 0) {
    EXPECT(unshare(CLONE_NEWUSER | CLONE_NEWPID) == 0);
    const pid_t its = fork();
    if (its == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      for (;;) pause();
    }
    // As its parent knows it.
    EXPECT(write(pipes[1], &its, sizeof its) == sizeof its);
    for (;;) pause();
  }
  EXPECT(read(pipes[0], &first, sizeof first) == sizeof first);
}
static void joined(void) {
  makeFirst();
  const int process = (int)syscall(SYS_pidfd_open, first, 0);
  tryCall("setns of users and processes", setns(process, CLONE_NEWUSER | CLONE_NEWPID));
}

static void inChild(const char* what, char* data, void (*act)(void)) {
  fflush(stdout);
  const pid_t child = fork();
  if (child == 0) {
    act();
    use(data);
    if (maker > 0) {
      kill(maker, SIGKILL);
      waitpid(maker, NULL, 0);
    }
    exit(done(what));
  }
  ended(what, child);
}

int main(void) {
  char* data = farData(kSize, 1);
  inChild("new processes", data, newProcesses);
  inChild("new time", data, newTime);
  inChild("another user", data, thenAnotherUser);
  inChild("joined", data, joined);
  newProcesses();
  use(data);
  return done("new_pid_namespace");
}
