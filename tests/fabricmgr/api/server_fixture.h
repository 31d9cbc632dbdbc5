// SPDX-License-Identifier: Apache-2.0
// What tests of the HTTP server share: certificates made on the spot, a client that sends exactly
// the bytes it is told to, and a server with a handler that answers what it saw.
#pragma once

#include <gtest/gtest.h>
#include <openssl/ssl.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <atomic>
#include <csignal>
#include <memory>
#include <string>
#include <vector>

#include "fabricmgr/api/http_server.h"
#include "fabricmgr/ca/authority.h"
#include "runtime/base/unique_fd.h"
#include "runtime/transport/connection.h"
#include "tests/scratch_folder.h"

namespace tidepool::api {

using Scratch = ScratchFolder;

/// What a client shows, and whom it believes. Empty: nothing.
struct ClientFiles {
  std::string ca, certificate, key;
};

/// One connection, blocking, each wait bounded to 10 s. Plain, or TLS with `files`.
class RawClient {
 public:
  explicit RawClient(const std::string& unix_path) {
    sockaddr_un address = {};
    address.sun_family = AF_UNIX;
    unix_path.copy(address.sun_path, sizeof address.sun_path - 1);
    fd_ = UniqueFd(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    connected_ = connect(fd_.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) == 0;
  }
  RawClient(uint16_t port, const ClientFiles& files) {
    const auto target = parseEndpoint(("127.0.0.1:" + std::to_string(port)).c_str());
    signal(SIGPIPE, SIG_IGN);  // what SSL_write() does when the server has cut us off
    tcp_ = std::move(*connectTcp(*target, Nanoseconds(10 * kSecond)));
    context_.reset(SSL_CTX_new(TLS_client_method()));
    if (!files.certificate.empty()) {
      EXPECT_EQ(SSL_CTX_use_certificate_chain_file(context_.get(), files.certificate.c_str()), 1);
      EXPECT_EQ(SSL_CTX_use_PrivateKey_file(context_.get(), files.key.c_str(), SSL_FILETYPE_PEM),
                1);
    }
    EXPECT_EQ(SSL_CTX_load_verify_locations(context_.get(), files.ca.c_str(), nullptr), 1);
    SSL_CTX_set_verify(context_.get(), SSL_VERIFY_PEER, nullptr);
    ssl_.reset(SSL_new(context_.get()));
    SSL_set_fd(ssl_.get(), tcp_->fd());
    connected_ = SSL_connect(ssl_.get()) == 1;
  }

  bool connected() const { return connected_; }
  bool send(const std::string& bytes) {
    if (ssl_) return SSL_write(ssl_.get(), bytes.data(), static_cast<int>(bytes.size())) > 0;
    return ::send(fd_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL) ==
           static_cast<ssize_t>(bytes.size());
  }
  /// What comes next; empty at the end of the connection, or after 10 s of silence.
  std::string receive() {
    char buffer[65536];
    if (ssl_) {
      const int got = SSL_read(ssl_.get(), buffer, sizeof buffer);
      return std::string(buffer, static_cast<size_t>(std::max(got, 0)));
    }
    pollfd waiting = {fd_.get(), POLLIN, 0};
    if (poll(&waiting, 1, 10'000) != 1) return "";
    const ssize_t got = recv(fd_.get(), buffer, sizeof buffer, 0);
    return std::string(buffer, static_cast<size_t>(std::max<ssize_t>(got, 0)));
  }
  /// One answer with a Content-Length, whole.
  std::string answer() {
    for (;;) {
      const size_t head = kept_.find("\r\n\r\n");
      if (head != std::string::npos) {
        const size_t place = kept_.find("Content-Length: ");
        const size_t size =
            head + 4 + (place < head ? strtoul(kept_.c_str() + place + 16, nullptr, 10) : 0);
        if (kept_.size() >= size) {
          const std::string one = kept_.substr(0, size);
          kept_.erase(0, size);
          return one;
        }
      }
      const std::string more = receive();
      if (more.empty()) return std::exchange(kept_, "");
      kept_ += more;
    }
  }
  std::string ask(const std::string& bytes) {
    send(bytes);
    return answer();
  }
  /// Reads until `what` has come, or the connection ends.
  std::string until(const std::string& what) {
    while (kept_.find(what) == std::string::npos) {
      const std::string more = receive();
      if (more.empty()) break;
      kept_ += more;
    }
    return kept_;
  }
  std::string rest() {
    for (std::string more = receive(); !more.empty(); more = receive()) kept_ += more;
    return std::exchange(kept_, "");
  }

 private:
  UniqueFd fd_;
  std::unique_ptr<Connection> tcp_;
  SslPointer<SSL_CTX> context_;
  SslPointer<SSL> ssl_;
  bool connected_ = false;
  std::string kept_;
};

inline std::string getRequest(const std::string& path, const std::string& more = "") {
  return "GET " + path + " HTTP/1.1\r\nHost: x\r\n" + more + "\r\n";
}

inline std::string bodyRequest(std::string_view method, const std::string& path,
                               const std::string& body, const std::string& more = "") {
  return std::string(method) + " " + path +
         " HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n" + more +
         "Content-Length: " + std::to_string(body.size()) + "\r\n\r\n" + body;
}

inline std::string postRequest(const std::string& path, const std::string& body,
                               const std::string& more = "") {
  return bodyRequest("POST", path, body, more);
}

}  // namespace tidepool::api
