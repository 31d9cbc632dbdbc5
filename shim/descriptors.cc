// SPDX-License-Identifier: Apache-2.0
// The interposed calls that end descriptors. Tidepool's own (runtime/base/own_fds.h) are not open
// as far as the program is concerned: closing one is EBADF, a range that is closed goes around
// them. All others go to libc. Raw system calls are not seen. Thread-safe; allocates nothing.
#include <fcntl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstdarg>

#include "runtime/base/own_fds.h"
#include "shim/export.h"
#include "shim/internal_scope.h"
#include "shim/next.h"

// libc's own, under the names that nobody interposes; close() and fcntl() are cancellation points.
extern "C" {
int __close(int fd);
int __dup2(int from, int to);
int __fcntl(int fd, int command, ...);
}

namespace tidepool {
namespace {

bool isHidden(int fd) { return isOwnFd(fd) && t_thread_mode != ThreadMode::kInternal; }

int notOpen() {
  errno = EBADF;
  return -1;
}

long closeSome(unsigned first, unsigned last, unsigned flags) {
  return passOn(
      next_calls.close_range,
      [](unsigned from, unsigned to, int how) {
        return static_cast<int>(syscall(SYS_close_range, from, to, how));
      },
      first, last, static_cast<int>(flags));
}

/// [first, last] but for ours.
int closeAround(unsigned first, unsigned last, unsigned flags) {
  for (;;) {
    const int own = nextOwnFd(first);
    if (own < 0 || static_cast<unsigned>(own) > last) {
      return static_cast<int>(closeSome(first, last, flags));
    }
    const unsigned at = static_cast<unsigned>(own);
    if (at > first && closeSome(first, at - 1, flags) != 0) return -1;
    if (at == last) return 0;
    first = at + 1;
  }
}

}  // namespace
}  // namespace tidepool

using namespace tidepool;

extern "C" {

TP_EXPORT int close(int fd) {
  return isHidden(fd) ? notOpen() : passOn(next_calls.close, __close, fd);
}

TP_EXPORT int close_range(unsigned first, unsigned last, int flags) noexcept {
  if (first > last) {
    errno = EINVAL;
    return -1;
  }
  return closeAround(first, last, static_cast<unsigned>(flags));
}

TP_EXPORT void closefrom(int first) noexcept {
  const unsigned from = static_cast<unsigned>(std::max(first, 0));
  if (closeAround(from, UINT_MAX, 0) == 0) return;
  // Before Linux 5.9, or forbidden.
  const long limit = sysconf(_SC_OPEN_MAX);
  for (int fd = static_cast<int>(from); fd < limit; ++fd) close(fd);
}

TP_EXPORT int dup2(int from, int to) noexcept {
  return isHidden(from) || isHidden(to) ? notOpen() : passOn(next_calls.dup2, __dup2, from, to);
}

TP_EXPORT int dup3(int from, int to, int flags) noexcept {
  if (isHidden(from) || isHidden(to)) return notOpen();
  return passOn(
      next_calls.dup3,
      [](int its, int at, int with) { return static_cast<int>(syscall(SYS_dup3, its, at, with)); },
      from, to, flags);
}

TP_EXPORT int fcntl(int fd, int command, ...) {
  va_list args;
  va_start(args, command);
  void* argument = va_arg(args, void*);
  va_end(args);
  return isHidden(fd) ? notOpen() : passOn(next_calls.fcntl, __fcntl, fd, command, argument);
}

TP_EXPORT int fcntl64(int fd, int command, ...) {
  va_list args;
  va_start(args, command);
  void* argument = va_arg(args, void*);
  va_end(args);
  return fcntl(fd, command, argument);
}

}  // extern "C"
