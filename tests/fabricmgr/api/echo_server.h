// SPDX-License-Identifier: Apache-2.0
// A server whose handler answers what it saw, and keeps, blocks or throws on demand.
#pragma once

#include <fmt/format.h>

#include <deque>
#include <map>
#include <memory>
#include <string>

#include "runtime/base/mutex.h"
#include "tests/fabricmgr/api/server_fixture.h"

namespace tidepool::api {

class EchoHandler : public HttpHandler {
 public:
  Lane laneOf(const Request& request) const override {
    return request.path == "/quick" ? Lane::kQuick : Lane::kSlow;
  }

  void serve(const std::shared_ptr<Exchange>& exchange) override {
    const Request& request = exchange->request;
    if (request.path == "/stream" || request.path == "/keep") return keep(exchange);
    if (request.path == "/block") block();
    if (request.path == "/throw") return;  // neither answered nor kept
    const std::string rest =
        request.body.empty() ? "by " + exchange->principal.actor() : request.body;
    std::string body = fmt::format("{} {} {}\n", request.method, request.path, rest);
    if (request.path == "/big") body.append(2u << 20, 'b');
    exchange->reply({200, "text/plain", {}, std::move(body)});
  }

  Response refuse(const Refused& refused) override {
    ++refusals;
    return {refused.why.status, "text/plain", {}, refused.why.detail + "\n"};
  }

  void strangerRefused(const std::string&, const std::string& why) override {
    const MutexLock lock(mutex_);
    strangers_.push_back(why);
    changed_.notifyAll();
  }

  void tlsInUse(const std::vector<CertificateExpiry>& expiries) override {
    const MutexLock lock(mutex_);
    own_ = expiries;
  }
  void clientSeen(const Principal& client, std::time_t not_after) override {
    const MutexLock lock(mutex_);
    ends_[client.actor()] = not_after;
  }
  std::vector<CertificateExpiry> own() {
    const MutexLock lock(mutex_);
    return own_;
  }
  std::map<std::string, std::time_t> ends() {
    const MutexLock lock(mutex_);
    return ends_;
  }

  /// The next exchange that was kept; waits for it.
  std::shared_ptr<Exchange> nextKept() {
    const MutexLock lock(mutex_);
    while (kept_.empty()) changed_.wait(mutex_);
    auto first = std::move(kept_.front());
    kept_.pop_front();
    return first;
  }
  std::string nextStranger() {
    const MutexLock lock(mutex_);
    while (strangers_.empty()) changed_.wait(mutex_);
    const std::string first = strangers_.front();
    strangers_.pop_front();
    return first;
  }
  void waitForBlocked() {
    const MutexLock lock(mutex_);
    while (!blocked_) changed_.wait(mutex_);
  }
  void unblock() {
    const MutexLock lock(mutex_);
    open_ = true;
    changed_.notifyAll();
  }

  std::atomic<int> refusals{0};

 private:
  void keep(const std::shared_ptr<Exchange>& exchange) {
    const MutexLock lock(mutex_);
    kept_.push_back(exchange);
    changed_.notifyAll();
  }
  void block() {
    const MutexLock lock(mutex_);
    blocked_ = true;
    changed_.notifyAll();
    while (!open_) changed_.wait(mutex_);
  }

  Mutex mutex_;
  CondVar changed_;
  bool blocked_ TP_GUARDED_BY(mutex_) = false;
  bool open_ TP_GUARDED_BY(mutex_) = false;
  std::deque<std::shared_ptr<Exchange>> kept_ TP_GUARDED_BY(mutex_);
  std::vector<CertificateExpiry> own_ TP_GUARDED_BY(mutex_);
  std::map<std::string, std::time_t> ends_ TP_GUARDED_BY(mutex_);
  std::deque<std::string> strangers_ TP_GUARDED_BY(mutex_);
};

/// On a Unix socket of its own (and, if `options` say so, over TLS). Everybody is a viewer, if
/// `options` do not say otherwise.
class EchoServer {
 public:
  explicit EchoServer(ServerOptions options = {}) {
    if (!options.unix_socket) options.unix_socket = UnixListener{"", 0666, {{}, Role::kViewer}};
    options.unix_socket->path = path_ = scratch_ / "sock";
    auto server = HttpServer::start(options, handler);
    EXPECT_TRUE(server) << server.error().text();
    if (server) server_ = std::move(*server);
  }
  ~EchoServer() { handler.unblock(); }

  const std::string& path() const { return path_; }
  HttpServer& operator*() { return *server_; }
  void stop() { server_->stop(); }
  /// The server sees a hang-up when it gets to it.
  void waitForConnections(uint64_t count) {
    for (int i = 0; i < 1000 && server_->connections() != count; ++i) poll(nullptr, 0, 10);
    EXPECT_EQ(server_->connections(), count);
  }

  EchoHandler handler;

 private:
  Scratch scratch_;
  std::string path_;
  std::unique_ptr<HttpServer> server_;
};

}  // namespace tidepool::api
