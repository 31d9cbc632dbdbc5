// SPDX-License-Identifier: Apache-2.0
// Other calls by which the kernel writes to far memory: epoll_wait, poll, getrandom, fstat, getcwd,
// getdents, clock_gettime, uname, sched_getaffinity, waitid.
#include <dirent.h>
#include <poll.h>
#include <sched.h>
#include <sys/epoll.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/utsname.h>
#include <time.h>

#include "tests/hazards/hazard.h"

int main(void) {
  const size_t size = 8 * MIB;
  char* data = farData(size, 1);
  int ends[2];
  EXPECT(pipe(ends) == 0 && write(ends[1], "x", 1) == 1);
  const int watch = epoll_create1(EPOLL_CLOEXEC);
  struct epoll_event* events = (struct epoll_event*)(data + kPage - 6);  // across two pages
  events->events = EPOLLIN;
  events->data.u64 = 4711;
  crowd();
  EXPECT(epoll_ctl(watch, EPOLL_CTL_ADD, ends[0], events) == 0);
  crowd();
  EXPECT(epoll_wait(watch, events, 10, 1000) == 1 && events->data.u64 == 4711);
  struct pollfd* polled = (struct pollfd*)(data + MIB - 4);
  *polled = (struct pollfd){ends[0], POLLIN, 0};
  crowd();
  EXPECT(poll(polled, 1, 1000) == 1 && polled->revents == POLLIN);
  EXPECT(getrandom(data + 2 * MIB, 2 * MIB, 0) > 0);
  crowd();
  EXPECT(wrongFrom(data + 2 * MIB, 64 * kPage, 1, 2 * MIB / 8) == 64 * kPage / 8);
  struct stat* status = (struct stat*)(data + 5 * MIB - 30);
  EXPECT(fstat(ends[0], status) == 0 && S_ISFIFO(status->st_mode));
  EXPECT(chdir("/usr") == 0 && getcwd(data + 6 * MIB - 2, kPage) != NULL);
  crowd();
  printf("%s\n", data + 6 * MIB - 2);
  const int folder = open("/proc/self", O_RDONLY | O_DIRECTORY);
  EXPECT(syscall(SYS_getdents64, folder, data + 7 * MIB - 100, MIB / 2) > 0);
  struct timespec* now = (struct timespec*)(data + 3 * kPage - 8);
  EXPECT(syscall(SYS_clock_gettime, CLOCK_REALTIME, now) == 0 && now->tv_sec > 1000000000);
  EXPECT(uname((struct utsname*)(data + 5 * kPage - 70)) == 0);
  EXPECT(sched_getaffinity(0, 512, (cpu_set_t*)(data + 9 * kPage - 64)) == 0);
  const pid_t child = vfork();
  if (child == 0) _exit(21);
  siginfo_t* info = (siginfo_t*)(data + 11 * kPage - 24);
  crowd();
  EXPECT(waitid(P_PID, (id_t)child, info, WEXITED) == 0 && info->si_status == 21);
  tell("rest", data + 16 * kPage, 8 * kPage);
  return done("epoll_getrandom");
}
