// SPDX-License-Identifier: Apache-2.0
// A TCP proxy on loopback that can stop forwarding, so that a memory server seems to hang: its
// connections stay open and say nothing. One thread a direction; owns its sockets. start() and the
// destructor belong to one thread, hang() is thread-safe.
#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "runtime/base/unique_fd.h"

namespace tidepool {

class LoopbackProxy {
 public:
  explicit LoopbackProxy(uint16_t target) : target_(target) {
    listener_.reset(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_in address = loopback(0);
    bind(listener_.get(), reinterpret_cast<sockaddr*>(&address), sizeof address);
    listen(listener_.get(), 16);
    socklen_t length = sizeof address;
    getsockname(listener_.get(), reinterpret_cast<sockaddr*>(&address), &length);
    port_ = ntohs(address.sin_port);
    thread_ = std::thread([this] { run(); });
  }
  ~LoopbackProxy() {
    stopping_ = true;
    thread_.join();
  }
  uint16_t port() const { return port_; }
  /// From now on nothing is forwarded, in either direction.
  void hang() { hung_ = true; }

 private:
  static sockaddr_in loopback(uint16_t port) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    address.sin_port = htons(port);
    return address;
  }
  void accept() {
    UniqueFd near(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
    UniqueFd far(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    const sockaddr_in address = loopback(target_);
    if (!near.valid() ||
        connect(far.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) {
      return;
    }
    pairs_.emplace_back(std::move(near), std::move(far));
  }
  /// False when the sender has closed.
  static bool forward(int from, int to) {
    char buffer[65536];
    const ssize_t got = recv(from, buffer, sizeof buffer, MSG_DONTWAIT);
    if (got < 0) return true;
    for (ssize_t sent = 0; sent < got;) {
      const ssize_t more = send(to, buffer + sent, static_cast<size_t>(got - sent), MSG_NOSIGNAL);
      if (more <= 0) return false;
      sent += more;
    }
    return got > 0;
  }
  void run() {
    while (!stopping_) {
      std::vector<pollfd> waits = {{listener_.get(), POLLIN, 0}};
      for (const auto& [near, far] : pairs_) {
        waits.push_back({near.get(), POLLIN, 0});
        waits.push_back({far.get(), POLLIN, 0});
      }
      if (hung_) waits.clear();
      poll(waits.data(), waits.size(), 20);
      if (hung_) continue;
      std::vector<std::pair<UniqueFd, UniqueFd>> alive;
      for (size_t i = 0; i < pairs_.size(); ++i) {
        auto& [near, far] = pairs_[i];
        if (waits[2 * i + 1].revents != 0 && !forward(near.get(), far.get())) continue;
        if (waits[2 * i + 2].revents != 0 && !forward(far.get(), near.get())) continue;
        alive.push_back(std::move(pairs_[i]));
      }
      pairs_ = std::move(alive);
      if (!waits.empty() && waits[0].revents != 0) accept();
    }
  }

  const uint16_t target_;
  uint16_t port_ = 0;
  UniqueFd listener_;
  std::vector<std::pair<UniqueFd, UniqueFd>> pairs_;  // the thread's
  std::atomic<bool> hung_{false};
  std::atomic<bool> stopping_{false};
  std::thread thread_;
};

}  // namespace tidepool
