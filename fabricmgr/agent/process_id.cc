// SPDX-License-Identifier: Apache-2.0
// Processes by SO_PEERCRED, /proc and pidfd.
#include "fabricmgr/agent/process_id.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <sys/syscall.h>

#include <cerrno>
#include <charconv>
#include <cstdio>
#include <string_view>

namespace tidepool::agent {
namespace {

/// Field 22 of /proc/PID/stat. The name in field 2 may hold anything, but ends with the last ')'.
Result<uint64_t> startOf(pid_t pid) {
  char path[64];
  snprintf(path, sizeof path, "/proc/%d/stat", pid);
  const UniqueFd file(open(path, O_RDONLY | O_CLOEXEC));
  char text[1024];
  const ssize_t got = file.valid() ? read(file.get(), text, sizeof text) : -1;
  if (got <= 0) return fail(ErrorCode::kNotFound, "process %d has ended", pid);
  std::string_view rest(text, static_cast<size_t>(got));
  rest.remove_prefix(rest.rfind(')') + 1);
  for (int field = 2; field < 21; ++field) {
    const size_t blank = rest.find(' ', 1);
    if (blank == std::string_view::npos) return fail(ErrorCode::kIo, "cannot read %s", path);
    rest.remove_prefix(blank);
  }
  uint64_t start = 0;
  const char* begin = rest.data() + 1;
  if (std::from_chars(begin, rest.data() + rest.size(), start).ptr == begin) {
    return fail(ErrorCode::kIo, "cannot read %s", path);
  }
  return start;
}

}  // namespace

Result<Peer> peerOf(int socket) {
  ucred credentials = {};
  socklen_t size = sizeof credentials;
  if (getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &credentials, &size) != 0) {
    return failErrno(ErrorCode::kIo, "cannot ask who the peer is");
  }
  if (credentials.pid == 0) {
    return fail(ErrorCode::kPermission,
                "the program lives in a namespace of processes that the agent cannot see: run the "
                "agent outside of it");
  }
  const auto start = startOf(credentials.pid);
  if (!start) return tl::unexpected(start.error());
  return Peer{{credentials.pid, *start}, credentials.uid, credentials.gid};
}

Result<UniqueFd> watchProcess(const ProcessId& process) {
  // By number: Debian 12's headers know the call, but its libc has no function for it.
  UniqueFd fd(static_cast<int>(syscall(SYS_pidfd_open, process.pid, 0)));
  if (!fd.valid() && errno != ESRCH) {
    return failErrno(ErrorCode::kIo, "cannot watch process %d", process.pid);
  }
  // The number may be another's by now; with the descriptor in hand it cannot change any more.
  const auto start = startOf(process.pid);
  if (!fd.valid() || !start || *start != process.start) {
    return fail(ErrorCode::kNotFound, "process %d has ended", process.pid);
  }
  return fd;
}

}  // namespace tidepool::agent
