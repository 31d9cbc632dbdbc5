// SPDX-License-Identifier: Apache-2.0
// A network that breaks, between clients and one server on the loopback: it forwards bytes, and on
// demand resets connections, holds bytes back, lets them through later, or listens no more. Pieces
// are forwarded as they come, so that frames are cut anywhere. Thread-safe; one thread of its own.
#pragma once

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <list>
#include <thread>
#include <vector>

#include "runtime/base/mutex.h"
#include "runtime/base/unique_fd.h"
#include "tests/transport/fake_peer.h"

namespace tidepool {

class WireCutter {
 public:
  explicit WireCutter(uint16_t server) : server_(server), wake_(eventfd(0, EFD_CLOEXEC)) {
    listener_ = *listenTcp(loopback(0));
    port_ = *boundPort(listener_.get());
    thread_ = std::thread([this] { run(); });
  }
  ~WireCutter() {
    stopping_ = true;
    wake();
    thread_.join();
  }

  Endpoint endpoint() const { return loopback(port_); }
  /// Resets every connection at both ends.
  void cut() {
    MutexLock lock(mutex_);
    for (Pair& pair : pairs_) pair.end(Pair::kBoth);
    wake();
  }
  /// Resets every connection once so many more bytes have gone through. 0: never.
  void cutAfter(uint64_t bytes) {
    MutexLock lock(mutex_);
    left_ = bytes;
    moved_ = 0;
  }
  /// Resets the clients' ends alone: the server goes on with what it gets, and what is held.
  void cutClients() {
    MutexLock lock(mutex_);
    for (Pair& pair : pairs_) pair.end(Pair::kClient);
    wake();
  }
  /// Whether bytes to the server wait here, of the connections that there are; new ones flow. What
  /// a client has sent goes on later even if it has ended meanwhile.
  void hold(bool held) {
    MutexLock lock(mutex_);
    for (Pair& pair : pairs_) pair.held = held;
    wake();
  }
  /// Whether all bytes wait, both ways, and new connections too.
  void pause(bool paused) {
    MutexLock lock(mutex_);
    paused_ = paused;
    wake();
  }
  /// Nobody can connect any more.
  void refuse() {
    MutexLock lock(mutex_);
    listener_ = UniqueFd();
    for (Pair& pair : pairs_) pair.end(Pair::kBoth);
    wake();
  }
  /// Bytes that have been forwarded to the server or are held.
  uint64_t taken() const { return taken_; }
  uint64_t cuts() const { return cuts_; }
  /// To the server; and those of them whose client has ended while their bytes were held.
  size_t connections() {
    MutexLock lock(mutex_);
    return pairs_.size();
  }
  size_t leaving() {
    MutexLock lock(mutex_);
    return static_cast<size_t>(
        std::count_if(pairs_.begin(), pairs_.end(), [](const Pair& pair) { return pair.left; }));
  }

 private:
  struct Pair {
    enum End : uint8_t { kClient = 1, kServer = 2, kBoth = 3 };
    UniqueFd client, server;
    std::vector<std::byte> to_server, to_client;
    bool held = false;
    bool left = false;  // the client has ended: so will this, once all has been forwarded

    void end(End which) {
      const linger reset = {1, 0};
      for (UniqueFd* end : {&client, &server}) {
        if (!end->valid() || (which & (end == &client ? kClient : kServer)) == 0) continue;
        (void)setsockopt(end->get(), SOL_SOCKET, SO_LINGER, &reset, sizeof reset);
        *end = UniqueFd();
      }
    }
  };

  static constexpr size_t kMost = 65536;  // bytes that wait here

  void wake() { (void)eventfd_write(wake_.get(), 1); }

  void run() {
    while (!stopping_) {
      std::vector<pollfd> waits = {{wake_.get(), POLLIN, 0}};
      {
        MutexLock lock(mutex_);
        if (!paused_) list(waits);
      }
      (void)poll(waits.data(), waits.size(), -1);
      eventfd_t ignored;
      if (waits[0].revents != 0) (void)eventfd_read(wake_.get(), &ignored);
      MutexLock lock(mutex_);
      if (!paused_) forward();
    }
  }

  void list(std::vector<pollfd>& waits) TP_REQUIRES(mutex_) {
    if (listener_.valid()) waits.push_back({listener_.get(), POLLIN, 0});
    for (const Pair& pair : pairs_) {
      // What is not read yet fills the sender's window, as on a network.
      const short client = pair.to_server.size() < kMost ? POLLIN : 0;
      if (pair.client.valid()) {
        waits.push_back({pair.client.get(),
                         static_cast<short>(pair.to_client.empty() ? client : client | POLLOUT),
                         0});
      }
      if (!pair.server.valid()) continue;
      const bool sends = !pair.to_server.empty() && !pair.held;
      const short server = pair.to_client.empty() && pair.client.valid() ? POLLIN : 0;
      waits.push_back(
          {pair.server.get(), static_cast<short>(sends ? server | POLLOUT : server), 0});
    }
  }

  void forward() TP_REQUIRES(mutex_) {
    accept();
    for (auto at = pairs_.begin(); at != pairs_.end();) {
      const bool lives = step(*at);
      at = lives ? std::next(at) : pairs_.erase(at);
    }
  }

  void accept() TP_REQUIRES(mutex_) {
    if (!listener_.valid()) return;
    UniqueFd client(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!client.valid()) return;
    UniqueFd server(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_in address = {};
    address.sin_family = AF_INET;
    address.sin_port = htons(server_);
    address.sin_addr.s_addr = inet_addr(testHost().c_str());
    if (connect(server.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) != 0) return;
    // The last piece of a page must not wait until the ones before it are acknowledged.
    for (const UniqueFd* end : {&client, &server}) {
      const int on = 1;
      (void)setsockopt(end->get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    }
    pairs_.push_back({std::move(client), std::move(server), {}, {}});
  }

  /// False: both ends have gone.
  bool step(Pair& pair) TP_REQUIRES(mutex_) {
    const size_t before = pair.to_server.size();
    if (pair.to_server.size() < kMost && !take(pair.client, pair.to_server)) {
      pair.left = pair.held;
      pair.end(pair.left ? Pair::kClient : Pair::kBoth);
    }
    taken_ += pair.to_server.size() - before;
    if (pair.client.valid() && pair.to_client.empty() && !take(pair.server, pair.to_client)) {
      pair.end(Pair::kBoth);
    }
    const bool sent =
        (pair.held || give(pair.server, pair.to_server)) && give(pair.client, pair.to_client);
    if (!sent) pair.end(Pair::kBoth);
    if (pair.left && pair.to_server.empty()) pair.server = UniqueFd();
    if (left_ != 0 && moved_ >= left_) {
      left_ = moved_ = 0;
      ++cuts_;
      for (Pair& each : pairs_) each.end(Pair::kBoth);
    }
    return pair.server.valid();
  }

  bool take(const UniqueFd& from, std::vector<std::byte>& into) {
    if (!from.valid()) return true;
    std::array<std::byte, 16384> bytes;
    const ssize_t got = recv(from.get(), bytes.data(), bytes.size(), MSG_DONTWAIT);
    if (got > 0) into.insert(into.end(), bytes.begin(), bytes.begin() + got);
    return got > 0 || (got < 0 && (errno == EAGAIN || errno == EINTR));
  }
  bool give(const UniqueFd& to, std::vector<std::byte>& from) TP_REQUIRES(mutex_) {
    if (!to.valid() || from.empty()) return true;
    size_t most = from.size();
    if (left_ != 0) most = std::min<uint64_t>(most, left_ - std::min(left_, moved_));
    const ssize_t sent =
        most == 0 ? 0 : send(to.get(), from.data(), most, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (sent < 0) return errno == EAGAIN || errno == EINTR;
    from.erase(from.begin(), from.begin() + sent);
    moved_ += left_ != 0 ? static_cast<uint64_t>(sent) : 0;
    return true;
  }

  const uint16_t server_;
  UniqueFd wake_;
  uint16_t port_ = 0;
  std::atomic<bool> stopping_{false};
  std::atomic<uint64_t> taken_{0}, cuts_{0};
  Mutex mutex_;
  UniqueFd listener_ TP_GUARDED_BY(mutex_);
  std::list<Pair> pairs_ TP_GUARDED_BY(mutex_);
  uint64_t left_ TP_GUARDED_BY(mutex_) = 0;   // bytes before the next cut
  uint64_t moved_ TP_GUARDED_BY(mutex_) = 0;  // of these
  bool paused_ TP_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace tidepool
