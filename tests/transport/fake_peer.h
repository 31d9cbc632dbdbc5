// SPDX-License-Identifier: Apache-2.0
// Test doubles of both ends: a raw client that sends any bytes, and a listening peer that answers
// by script. Blocking sockets; one thread each.
#pragma once

#include <arpa/inet.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <cstdlib>
#include <cstring>
#include <functional>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "runtime/base/unique_fd.h"
#include "runtime/options.h"
#include "runtime/transport/connection.h"
#include "runtime/transport/wire.h"

namespace tidepool {

/// In a machine with RDMA TIDEPOOL_TEST_RDMA is the address of its device, and tests whose servers
/// are here go that way. Elsewhere they go over the loopback.
inline std::string testHost() {
  const char* const address = getenv("TIDEPOOL_TEST_RDMA");
  return address == nullptr ? "127.0.0.1" : address;
}
inline Transport testTransport() {
  return getenv("TIDEPOOL_TEST_RDMA") == nullptr ? Transport::kTcp : Transport::kVerbs;
}

inline Endpoint loopback(uint16_t port) {
  return *parseEndpoint((testHost() + ":" + std::to_string(port)).c_str());
}

/// A plain socket to testHost().
class RawClient {
 public:
  explicit RawClient(uint16_t port) : socket_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in address = {};
    address.sin_family = AF_INET;
    address.sin_port = htons(port);
    address.sin_addr.s_addr = inet_addr(testHost().c_str());
    EXPECT_EQ(connect(socket_.get(), reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
  }

  bool send(std::span<const std::byte> bytes) {
    while (!bytes.empty()) {
      const ssize_t sent = ::send(socket_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (sent <= 0) return false;
      bytes = bytes.subspan(static_cast<size_t>(sent));
    }
    return true;
  }
  bool send(const wire::Request& request) {
    std::array<std::byte, wire::kRequestSize> bytes;
    wire::encode(request, bytes);
    return send(std::span<const std::byte>(bytes));
  }
  /// Fills `to` wholly; false when the peer closed before that.
  bool receive(std::span<std::byte> to) {
    while (!to.empty()) {
      const ssize_t given = recv(socket_.get(), to.data(), to.size(), 0);
      if (given <= 0) return false;
      to = to.subspan(static_cast<size_t>(given));
    }
    return true;
  }
  /// Shakes hands; the server's answer, or nothing when it closed without one.
  std::optional<wire::ServerHello> greet(const wire::ClientHello& hello) {
    std::array<std::byte, wire::kHelloSize> bytes;
    wire::encode(hello, bytes);
    if (!send(std::span<const std::byte>(bytes)) || !receive(bytes)) return std::nullopt;
    auto answer = wire::decodeServerHello(bytes);
    return answer ? std::optional(*answer) : std::nullopt;
  }
  std::optional<wire::Response> response() {
    std::array<std::byte, wire::kResponseSize> bytes;
    if (!receive(bytes)) return std::nullopt;
    auto answer = wire::decodeResponse(bytes);
    return answer ? std::optional(*answer) : std::nullopt;
  }
  /// Returns once the peer has closed, dropping what it still sends.
  void waitForEnd() {
    std::byte sink[4096];
    while (recv(socket_.get(), sink, sizeof sink, 0) > 0) {
    }
  }
  void endSending() { shutdown(socket_.get(), SHUT_WR); }
  int fd() const { return socket_.get(); }

 private:
  UniqueFd socket_;
};

/// Accepts one connection, answers the handshake, then runs `script` on the socket.
class ScriptedServer {
 public:
  explicit ScriptedServer(std::function<void(int socket)> script) {
    auto listener = listenTcp(loopback(0));
    EXPECT_TRUE(listener);
    listener_ = std::move(*listener);
    port_ = *boundPort(listener_.get());
    fcntl(listener_.get(), F_SETFL, 0);  // listenTcp() makes it non-blocking
    thread_ = std::thread([this, run = std::move(script)] {
      const UniqueFd socket(accept(listener_.get(), nullptr, nullptr));
      std::array<std::byte, wire::kHelloSize> bytes;
      if (recv(socket.get(), bytes.data(), bytes.size(), MSG_WAITALL) != wire::kHelloSize) return;
      wire::ServerHello hello;
      hello.region = 1;
      hello.epoch = Epoch(1);
      hello.capacity = Bytes(kGiB);
      wire::encode(hello, bytes);
      EXPECT_EQ(::send(socket.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL), wire::kHelloSize);
      run(socket.get());
    });
  }
  ~ScriptedServer() {
    shutdown(listener_.get(), SHUT_RDWR);
    thread_.join();
  }
  Endpoint endpoint() const { return loopback(port_); }

 private:
  UniqueFd listener_;
  uint16_t port_ = 0;
  std::thread thread_;
};

}  // namespace tidepool
