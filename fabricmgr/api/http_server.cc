// SPDX-License-Identifier: Apache-2.0
// HttpServer: puts loop, lanes and listeners together, and takes them apart in order.
#include "fabricmgr/api/http_server.h"

#include <utility>

#include "fabricmgr/api/http_loop.h"
#include "fabricmgr/api/work_lane.h"

namespace tidepool::api {
namespace {

constexpr size_t kLongestQuickQueue = 16 * 1024;  // every agent at once
constexpr size_t kLongestSlowQueue = 2048;

}  // namespace

HttpServer::HttpServer(const ServerOptions& options, HttpHandler& handler)
    : options_(options),
      quick_(std::make_unique<WorkLane>(options.quick_threads, kLongestQuickQueue)),
      slow_(std::make_unique<WorkLane>(options.slow_threads, kLongestSlowQueue)),
      loop_(std::make_unique<HttpLoop>(options, handler, *quick_, *slow_)) {}

HttpServer::~HttpServer() { stop(); }

Result<std::unique_ptr<HttpServer>> HttpServer::start(const ServerOptions& options,
                                                      HttpHandler& handler) {
  std::unique_ptr<HttpServer> server(new HttpServer(options, handler));
  if (options.unix_socket) TP_TRY(server->loop_->listenUnix(*options.unix_socket));
  if (options.tcp) {
    auto tls = TlsContext::load(options.tcp->tls);
    if (!tls) return tl::unexpected(tls.error());
    const auto port = server->loop_->listenTls(*options.tcp, std::move(*tls));
    if (!port) return tl::unexpected(port.error());
    server->port_ = *port;
  }
  server->thread_ = std::thread([loop = server->loop_.get()] { loop->run(); });
  return server;
}

uint64_t HttpServer::connections() const { return loop_ ? loop_->connectionCount() : 0; }

Result<std::shared_ptr<TlsContext>> HttpServer::readTls() const {
  if (!options_.tcp) return nullptr;
  return TlsContext::load(options_.tcp->tls);
}

void HttpServer::useTls(std::shared_ptr<TlsContext> tls) {
  if (tls) loop_->offerTls(std::move(tls));
}

Status HttpServer::reloadTls() {
  auto tls = readTls();
  if (!tls) return tl::unexpected(tls.error());
  useTls(std::move(*tls));
  return {};
}

void HttpServer::handOver(HttpHandler& handler, Pairs headers) {
  loop_->offerHandler(handler, std::move(headers));
}

void HttpServer::stop() {
  if (!thread_.joinable()) return;
  loop_->mailbox().post({Message::Kind::kStop, {}, {}});
  thread_.join();
  // What is left in the lanes answers into the void; libevent closes the last sockets with the
  // loop.
  slow_.reset();
  quick_.reset();
  loop_.reset();
  if (options_.unix_socket) unlink(options_.unix_socket->path.c_str());
}

}  // namespace tidepool::api
