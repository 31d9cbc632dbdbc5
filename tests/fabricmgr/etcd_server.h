// SPDX-License-Identifier: Apache-2.0
// An etcd of one member on the loopback, in a folder of its own, for one test. It is killed, by its
// process id, at the end, and when the test's process ends in any other way. Not thread-safe.
#pragma once

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <string>

#include "fabricmgr/store/etcd_election.h"
#include "runtime/base/unique_fd.h"
#include "tests/fabricmgr/fabric_fixture.h"

namespace tidepool::fabric {

class EtcdServer {
 public:
  EtcdServer() {
    // Ports that were free a moment ago may be taken: then others are tried.
    for (int tries = 0; tries < 5 && !running(); ++tries) {
      client_ = "127.0.0.1:" + std::to_string(freePort());
      peer_ = "127.0.0.1:" + std::to_string(freePort());
      start();
    }
    EXPECT_TRUE(running()) << "no etcd: is the package etcd-server installed?";
  }
  ~EtcdServer() { kill(); }
  EtcdServer(const EtcdServer&) = delete;
  EtcdServer& operator=(const EtcdServer&) = delete;

  const std::string& address() const { return client_; }
  EtcdTarget target(const std::string& name = "test") const {
    return must(parseEtcdUrl("etcd://" + client_ + "/" + name));
  }
  void kill() { signal(SIGKILL, 0); }
  /// Returns when none of its threads runs any more.
  void stop() { signal(SIGSTOP, WUNTRACED); }
  void resume() { ::kill(pid_, SIGCONT); }
  /// With what it had.
  void start() {
    const std::string folder = folder_ / "data";
    const std::string at = "http://" + client_, between = "http://" + peer_;
    pid_ = fork();
    if (pid_ == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      const int log = open((folder_ / "log").c_str(), O_WRONLY | O_CREAT | O_APPEND, 0600);
      dup2(log, STDOUT_FILENO);
      dup2(log, STDERR_FILENO);
      const std::string cluster = "default=" + between;
      execlp("etcd", "etcd", "--data-dir", folder.c_str(), "--listen-client-urls", at.c_str(),
             "--advertise-client-urls", at.c_str(), "--listen-peer-urls", between.c_str(),
             "--initial-advertise-peer-urls", between.c_str(), "--initial-cluster", cluster.c_str(),
             nullptr);
      _exit(127);
    }
    EtcdClient client(target());
    while (running() && !client.range({"x", "", 0, 0})) poll(nullptr, 0, 20);
  }

 private:
  bool running() {
    if (pid_ > 0 && waitpid(pid_, nullptr, WNOHANG) == 0) return true;
    pid_ = 0;
    return false;
  }
  void signal(int number, int options) {
    if (pid_ <= 0) return;
    ::kill(pid_, number);
    EXPECT_EQ(waitpid(pid_, nullptr, options), pid_);
    if (number == SIGKILL) pid_ = 0;
  }
  static uint16_t freePort() {
    const UniqueFd fd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_in address = {};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof address;
    EXPECT_EQ(bind(fd.get(), reinterpret_cast<sockaddr*>(&address), size), 0);
    EXPECT_EQ(getsockname(fd.get(), reinterpret_cast<sockaddr*>(&address), &size), 0);
    return ntohs(address.sin_port);
  }

  Folder folder_;
  std::string client_, peer_;
  pid_t pid_ = 0;
};

/// The one that all tests of a program share, each with names of its own.
inline EtcdServer& sharedEtcd() {
  static EtcdServer server;
  return server;
}

/// A store that nobody else leads.
inline std::unique_ptr<EtcdElection> elected(const EtcdTarget& target,
                                             const std::string& name = "test") {
  auto election = std::make_unique<EtcdElection>(target, name);
  EXPECT_EQ(must(election->campaign()), std::nullopt);
  return election;
}

}  // namespace tidepool::fabric
