// SPDX-License-Identifier: Apache-2.0
// A memory server in a process of its own, for tests that fork: with a server's threads in the same
// process, a child could inherit a lock of the C++ library or of a sanitizer's allocator from them.
#pragma once

#include <gtest/gtest.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>

#include "fabricmgr/memserver/server.h"

namespace tidepool {

class ServerProcess {
 public:
  /// To be called while this process has one thread.
  explicit ServerProcess(Bytes size) {
    int answer[2];
    if (pipe(answer) != 0) return;
    process_ = fork();
    if (process_ == 0) serve(size, answer[1]);
    close(answer[1]);
    if (read(answer[0], &port_, sizeof port_) != sizeof port_) port_ = 0;
    close(answer[0]);
  }
  ~ServerProcess() {
    if (process_ <= 0) return;
    kill(process_, SIGKILL);
    waitpid(process_, nullptr, 0);
  }
  ServerProcess(const ServerProcess&) = delete;
  ServerProcess& operator=(const ServerProcess&) = delete;

  /// SIGKILL, or SIGSTOP: it then seems to hang. A child of this process that is killed has ended.
  void signal(int number) const {
    ASSERT_EQ(kill(process_, number), 0);
    siginfo_t ended;
    if (number == SIGKILL)
      (void)waitid(P_PID, static_cast<id_t>(process_), &ended, WEXITED | WNOWAIT);
  }
  /// 0: it did not start.
  uint16_t port() const { return port_; }

 private:
  [[noreturn]] static void serve(Bytes size, int answer) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    memserver::ServerOptions options;
    options.size = size;
    const auto server = memserver::Server::start(options);
    if (!server) _exit(1);
    const uint16_t port = (*server)->port();
    if (write(answer, &port, sizeof port) != sizeof port) _exit(1);
    for (;;) pause();
  }

  pid_t process_ = -1;
  uint16_t port_ = 0;
};

}  // namespace tidepool
