// SPDX-License-Identifier: Apache-2.0
// Signals and limits of a daemon: to be called before there are threads. What systemd is told is
// one datagram to the socket that it names; a library for that would be one more dependency.
#include "fabricmgr/process.h"

#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <cstddef>
#include <cstdlib>
#include <cstring>

#include "runtime/base/unique_fd.h"

namespace tidepool {

sigset_t blockSignals(std::initializer_list<int> numbers) {
  sigset_t signals;
  sigemptyset(&signals);
  for (const int number : numbers) sigaddset(&signals, number);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  signal(SIGPIPE, SIG_IGN);
  return signals;
}

void raiseDescriptorLimit() {
  rlimit limit;
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = limit.rlim_max;
  (void)setrlimit(RLIMIT_NOFILE, &limit);
}

void notifyServiceManager(const std::string& message) {
  const char* path = std::getenv("NOTIFY_SOCKET");
  sockaddr_un address = {};
  if (path == nullptr || path[0] == '\0' || strlen(path) >= sizeof address.sun_path) return;
  address.sun_family = AF_UNIX;
  memcpy(address.sun_path, path, strlen(path));
  if (path[0] == '@') address.sun_path[0] = '\0';  // an abstract name
  const auto length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + strlen(path));
  const UniqueFd fd(socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  (void)sendto(fd.get(), message.data(), message.size(), MSG_NOSIGNAL | MSG_DONTWAIT,
               reinterpret_cast<const sockaddr*>(&address), length);
}

}  // namespace tidepool
