// SPDX-License-Identifier: Apache-2.0
// ControlServer: accepting, one conversation a thread, and the way out.
#include "fabricmgr/memserver/control_server.h"

#include <poll.h>
#include <spdlog/spdlog.h>
#include <sys/eventfd.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/time.h>

#include "runtime/base/check.h"

namespace tidepool::memserver {

namespace control = fabric::control;

namespace {

constexpr size_t kMostClients = 16;
/// Who has the key shows it within this, or makes room for others.
constexpr timeval kFirstFrame = {10, 0};
constexpr timeval kForEver = {0, 0};

void limitSilence(const Connection& connection, const timeval& limit) {
  (void)setsockopt(connection.fd(), SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
}

}  // namespace

Result<std::unique_ptr<ControlServer>> ControlServer::start(Server& server,
                                                            const std::string& listen,
                                                            const std::string& key) {
  // Or strangers could have what the manager believes is its own to give.
  TP_CHECK(server.regions().lendsTo() == LendsTo::kByOrders);
  const auto endpoint = parseEndpoint(listen.c_str());
  if (!endpoint) return tl::unexpected(endpoint.error());
  auto listener = listenTcp(*endpoint);
  if (!listener) return tl::unexpected(listener.error());
  const auto port = boundPort(listener->get());
  if (!port) return tl::unexpected(port.error());
  std::unique_ptr<ControlServer> control(
      new ControlServer(server, key, std::move(*listener), *port));
  control->wake_ = UniqueFd(eventfd(0, EFD_CLOEXEC));
  if (!control->wake_.valid()) return failErrno(ErrorCode::kIo, "cannot make an eventfd");
  control->acceptor_ = std::thread([self = control.get()] { self->accept(); });
  return control;
}

void ControlServer::stop() {
  {
    MutexLock lock(mutex_);
    stopping_ = true;
    for (const Client& client : clients_) {
      if (client.socket >= 0) shutdown(client.socket, SHUT_RDWR);
    }
  }
  const uint64_t one = 1;
  if (wake_.valid() && write(wake_.get(), &one, sizeof one) < 0) return;
  if (acceptor_.joinable()) acceptor_.join();
  reap();
}

/// Joins the threads that have ended; all of them once we stop.
void ControlServer::reap() {
  std::list<Client> ended;
  {
    MutexLock lock(mutex_);
    for (auto at = clients_.begin(); at != clients_.end();) {
      const auto next = std::next(at);
      if (at->socket < 0 || stopping_) ended.splice(ended.end(), clients_, at);
      at = next;
    }
  }
  for (Client& client : ended) client.thread.join();
}

void ControlServer::accept() {
  for (;;) {
    pollfd waiting[2] = {{listener_.get(), POLLIN, 0}, {wake_.get(), POLLIN, 0}};
    if (poll(waiting, 2, -1) < 0 && errno != EINTR) return;
    if (waiting[1].revents != 0) return;
    UniqueFd socket(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
    if (!socket.valid()) continue;
    reap();
    MutexLock lock(mutex_);
    if (stopping_) return;
    if (clients_.size() >= kMostClients) {
      spdlog::warn("control connection refused: {} are open", clients_.size());
      continue;
    }
    Client& client = clients_.emplace_back();
    client.socket = socket.get();
    client.thread =
        std::thread([this, &client, fd = socket.release()] { serve(UniqueFd(fd), &client); });
  }
}

void ControlServer::serve(UniqueFd socket, Client* client) {
  const auto connection = adoptTcp(std::move(socket));
  const Status ended = converse(*connection);
  if (ended.error().code() != ErrorCode::kUnreachable) {
    spdlog::warn("control connection closed: {}", ended.error().text());
  }
  MutexLock lock(mutex_);
  client->socket = -1;
}

/// Until an error ends it.
Status ControlServer::converse(Connection& connection) {
  control::Hello hello;
  if (getrandom(hello.nonce.data(), hello.nonce.size(), 0) !=
      static_cast<ssize_t>(hello.nonce.size())) {
    return failErrno(ErrorCode::kInternal, "no random bytes");
  }
  TP_TRY(control::sendBytes(connection, control::encode(hello)));
  control::Seal seal(key_, hello.nonce, control::Seal::Side::kServer);
  limitSilence(connection, kFirstFrame);
  for (;;) {
    const auto frame = seal.receive(connection, control::kRequestMagic);
    if (!frame) return tl::unexpected(frame.error());
    limitSilence(connection, kForEver);
    const auto request = control::decodeRequest(*frame);
    if (!request) return tl::unexpected(request.error());
    TP_TRY(seal.send(connection, control::encode(regions_.handle(*request))));
  }
}

}  // namespace tidepool::memserver
