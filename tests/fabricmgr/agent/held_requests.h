// SPDX-License-Identifier: Apache-2.0
// Between an agent and its manager's Unix socket: everything goes through at once but requests that
// have a certain text in them, which wait until release(). One thread forwards; start and end
// belong to one thread, release() is thread-safe.
#pragma once

#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <atomic>
#include <cstring>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "runtime/base/unique_fd.h"

namespace tidepool::agent {

class HeldRequests {
 public:
  HeldRequests(const std::string& path, const std::string& manager, const std::string& text)
      : manager_(manager), text_(text) {
    const sockaddr_un address = addressOf(path);
    bind(listener_.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address);
    listen(listener_.get(), 16);
    thread_ = std::thread([this] { run(); });
  }
  ~HeldRequests() {
    stopping_ = true;
    thread_.join();
  }
  void release() { held_ = false; }

 private:
  static UniqueFd stream() { return UniqueFd(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0)); }
  static sockaddr_un addressOf(const std::string& path) {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    path.copy(address.sun_path, sizeof address.sun_path - 1);
    return address;
  }
  void accept() {
    UniqueFd near(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC)), far = stream();
    const sockaddr_un address = addressOf(manager_);
    if (!near.valid() ||
        connect(far.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) {
      return;
    }
    pairs_.emplace_back(std::move(near), std::move(far));
  }
  /// False when the sender has closed.
  bool forward(int from, int to) {
    char buffer[65536];
    ssize_t got = recv(from, buffer, sizeof buffer, MSG_DONTWAIT | MSG_PEEK);
    if (got < 0) return true;
    const std::string_view text(buffer, static_cast<size_t>(got));
    if (held_ && text.find(text_) != std::string_view::npos) return true;
    got = recv(from, buffer, static_cast<size_t>(got), MSG_DONTWAIT);
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
      poll(waits.data(), waits.size(), 5);
      std::vector<std::pair<UniqueFd, UniqueFd>> alive;
      for (size_t i = 0; i < pairs_.size(); ++i) {
        auto& [near, far] = pairs_[i];
        if (waits[2 * i + 1].revents != 0 && !forward(near.get(), far.get())) continue;
        if (waits[2 * i + 2].revents != 0 && !forward(far.get(), near.get())) continue;
        alive.push_back(std::move(pairs_[i]));
      }
      pairs_ = std::move(alive);
      if (waits[0].revents != 0) accept();
    }
  }

  const std::string manager_;
  const std::string text_;
  UniqueFd listener_ = stream();
  std::vector<std::pair<UniqueFd, UniqueFd>> pairs_;  // the thread's
  std::atomic<bool> held_{true};
  std::atomic<bool> stopping_{false};
  std::thread thread_;
};

}  // namespace tidepool::agent
