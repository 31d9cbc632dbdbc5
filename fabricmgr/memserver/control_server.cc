// SPDX-License-Identifier: Apache-2.0
// ControlServer: the loop, and the way of a frame from its first byte to its answer's last one.
// Nothing in it waits for one peer.
#include "fabricmgr/memserver/control_server.h"

#include <fmt/format.h>
#include <poll.h>
#include <spdlog/spdlog.h>
#include <sys/eventfd.h>
#include <sys/random.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <ctime>

#include "runtime/base/check.h"
#include "runtime/transport/peer_address.h"

namespace tidepool::memserver {

namespace control = fabric::control;

namespace {

constexpr Nanoseconds kNever(UINT64_MAX);
/// When descriptors have run out: others may have been closed by then.
constexpr Nanoseconds kAcceptPause(100'000'000);
constexpr Nanoseconds kTick(1'000'000'000);
/// Accepted before those who are there have their turn: who is let in makes room.
constexpr int kAcceptedAtOnce = 16;
/// Received at a time, so that a frame's announced length alone takes no memory.
constexpr size_t kPart = 64 * kKiB;

}  // namespace

Result<std::unique_ptr<ControlServer>> ControlServer::start(Server& server,
                                                            const std::string& listen,
                                                            std::shared_ptr<TlsInUse> tls,
                                                            const ControlLimits& limits) {
  // Or strangers could have what the manager believes is its own to give.
  TP_CHECK(server.regions().lendsTo() == LendsTo::kByOrders);
  const auto endpoint = parseEndpoint(listen.c_str());
  if (!endpoint) return tl::unexpected(endpoint.error());
  auto listener = listenTcp(*endpoint);
  if (!listener) return tl::unexpected(listener.error());
  const auto port = boundPort(listener->get());
  if (!port) return tl::unexpected(port.error());
  std::string token_key(control::kTokenKeySize, '\0');
  if (getrandom(token_key.data(), token_key.size(), 0) != static_cast<ssize_t>(token_key.size())) {
    return failErrno(ErrorCode::kInternal, "no random bytes");
  }
  std::unique_ptr<ControlServer> control(new ControlServer(
      server, std::move(token_key), std::move(tls), std::move(*listener), *port, limits));
  control->wake_ = UniqueFd(eventfd(0, EFD_CLOEXEC));
  if (!control->wake_.valid()) return failErrno(ErrorCode::kIo, "cannot make an eventfd");
  control->thread_ = std::thread([self = control.get()] { self->run(); });
  return control;
}

void ControlServer::stop() {
  stopping_ = true;
  wake();
  if (thread_.joinable()) thread_.join();
  clients_.clear();
}

void ControlServer::recheck() { wake(); }

void ControlServer::wake() const {
  const uint64_t one = 1;
  (void)!write(wake_.get(), &one, sizeof one);
}

void ControlServer::useExpiries() {
  std::vector<CertificateExpiry> own = tls_->now()->expiries();
  for (CertificateExpiry& one : own) {
    if (one.kind == "server") one.kind = "memserver";
  }
  expiries_.setOwn(std::move(own));
  looked_ = Nanoseconds();
}

void ControlServer::tellOfExpiries() {
  const Nanoseconds now = kMonotonicClock.now();
  if (now - looked_ < kTick) return;
  looked_ = now;
  const auto line = expiries_.lineDue(std::time(nullptr));
  if (line) spdlog::warn("{}: `fabricmgr ca renew`, then SIGHUP", line->text);
}

void ControlServer::run() {
  std::vector<pollfd> waits;
  useExpiries();
  for (;;) {
    tellOfExpiries();
    const bool accepts = kMonotonicClock.now() >= accepts_from_;
    waits = {{wake_.get(), POLLIN, 0}, {accepts ? listener_.get() : -1, POLLIN, 0}};
    for (const Client& client : clients_) {
      waits.push_back({client.connection->fd(), client.connection->awaits(), 0});
    }
    (void)poll(waits.data(), waits.size(), timeout());
    // What came while an order was carried out is looked at before anybody is found to be late.
    const Nanoseconds now = kMonotonicClock.now();
    if (waits[0].revents != 0) {
      uint64_t any = 0;
      (void)!read(wake_.get(), &any, sizeof any);
      if (stopping_) return;
      closeRefused();
      useExpiries();
    }
    auto client = clients_.begin();
    for (size_t i = 2; i < waits.size(); ++i) {
      const bool ready = waits[i].revents != 0 || client->hasMore();
      const Status going = ready ? advance(*client) : Status();
      if (!going) {
        client = remove(client, going.error());
      } else if (client->due < now) {
        client = remove(client, Error::make(ErrorCode::kTimedOut, "it took too long"));
      } else {
        ++client;
      }
    }
    if (waits[1].revents != 0) accept();
    log_.sayRest();
  }
}

/// Of poll(), in milliseconds.
int ControlServer::timeout() const {
  const Nanoseconds now = kMonotonicClock.now();
  Nanoseconds until = now + kTick;
  if (accepts_from_ > now) until = std::min(until, accepts_from_);
  for (const Client& client : clients_) {
    until = client.hasMore() ? now : std::min(until, client.due);
  }
  return until <= now ? 0 : static_cast<int>((until - now).value() / 1'000'000 + 1);
}

void ControlServer::accept() {
  for (int i = 0; i < kAcceptedAtOnce; ++i) {
    sockaddr_storage from = {};
    socklen_t size = sizeof from;
    UniqueFd socket(
        accept4(listener_.get(), reinterpret_cast<sockaddr*>(&from), &size, SOCK_CLOEXEC));
    if (socket.valid()) {
      welcome(std::move(socket), from);
      continue;
    }
    if (errno == EINTR || errno == ECONNABORTED) continue;
    if (errno == EAGAIN) return;
    accepts_from_ = kMonotonicClock.now() + kAcceptPause;
    return log_.warn(fmt::format("cannot accept a control connection: {}", strerror(errno)));
  }
}

void ControlServer::welcome(UniqueFd socket, const sockaddr_storage& from) {
  if (newcomers_.enter(socket.get(), networkOf(from)) == Newcomers::Place::kOfAnother) {
    log_.warn("a control connection was ended to make room: it had not shown a certificate yet");
  }
  auto connection = std::make_unique<TlsConnection>(
      adoptTcp(std::move(socket)), tls_->now(), TlsConnection::Side::kServer, control::kManagerUrn);
  Client& client = clients_.emplace_back(Client{std::move(connection), peerText(from)});
  client.due = kMonotonicClock.now() + limits_.handshake;
}

ControlServer::Clients::iterator ControlServer::remove(Clients::iterator client, const Error& why) {
  if (why.code() != ErrorCode::kUnreachable) {
    log_.warn(fmt::format("control connection from {} closed: {}", client->peer, why.text()));
  }
  newcomers_.leave(client->connection->fd());
  return clients_.erase(client);
}

/// As far as it goes without waiting, and one order at most. Errors: it is over.
Status ControlServer::advance(Client& client) {
  if (!client.known) return greet(client);
  if (!client.outgoing.empty()) return send(client);
  const auto whole = receive(client);
  if (!whole) return tl::unexpected(whole.error());
  if (*whole) {
    TP_TRY(takeFrame(client));
    return send(client);
  }
  // A piece of a TLS record is one of a frame, even if there is nothing of that yet.
  if (client.due == kNever) client.due = kMonotonicClock.now() + limits_.frame;
  return {};
}

/// Goes on with the handshake; greets whom it has shown to be a manager.
Status ControlServer::greet(Client& client) {
  const auto done = client.connection->handshake();
  if (!done) return tl::unexpected(done.error());
  if (!*done) return {};
  // Somebody may have been revoked meanwhile.
  TP_TRY(client.connection->recheck(tls_->now()));
  newcomers_.leave(client.connection->fd());
  makeRoom(client);
  client.known = true;
  client.outgoing = control::encode(control::Hello());
  client.last = kMonotonicClock.now();
  client.due = client.last + limits_.frame;
  return send(client);
}

/// Sends as much as the connection takes.
Status ControlServer::send(Client& client) {
  while (!client.outgoing.empty()) {
    const iovec part = {client.outgoing.data(), client.outgoing.size()};
    const auto sent = client.connection->send({&part, 1}, Wait::kNever);
    if (!sent) return tl::unexpected(sent.error());
    if (*sent == 0) return {};
    client.outgoing.erase(0, *sent);
    if (client.outgoing.empty()) client.due = kNever;
  }
  return {};
}

/// Receives what is there of the frame. True: that is all of it.
Result<bool> ControlServer::receive(Client& client) {
  std::string& frame = client.incoming;
  for (;;) {
    size_t size = control::kHeaderSize;
    if (frame.size() >= size) {
      const auto payload = control::payloadAfter(frame, control::kRequestMagic);
      if (!payload) return tl::unexpected(payload.error());
      size += *payload;
    }
    const size_t have = frame.size();
    if (have == size) return true;
    frame.resize(std::min(size, have + kPart));
    const iovec part = {frame.data() + have, frame.size() - have};
    const auto got = client.connection->receive({&part, 1}, Wait::kNever);
    frame.resize(have + got.value_or(0));
    if (!got) return tl::unexpected(got.error());
    if (*got == 0) return false;
  }
}

/// Carries an order out, and has its answer sent.
Status ControlServer::takeFrame(Client& client) {
  const auto request = control::decodeRequest(std::exchange(client.incoming, {}));
  if (!request) return tl::unexpected(request.error());
  client.outgoing = control::encode(answerTo(client, *request));
  client.last = kMonotonicClock.now();
  client.due = client.last + limits_.frame;
  return {};
}

control::Answer ControlServer::answerTo(Client& client, const control::Request& request) {
  auto done = carryOut(client, request);
  control::Answer answer;
  if (done) {
    answer = std::move(*done);
  } else {
    answer.status = done.error().code();
    answer.payload = done.error().text();
    if (request.opcode == control::Opcode::kLead) answer.value = allegiance_.term().value();
  }
  answer.opcode = request.opcode;
  answer.region = request.region;
  return answer;
}

ManagedRegions::Done ControlServer::carryOut(Client& client, const control::Request& request) {
  if (request.opcode == control::Opcode::kLead) {
    TP_TRY(lead(client, request.leader));
    return control::Answer();
  }
  if (!allegiance_.obeys(client.leader)) {
    return fail(ErrorCode::kConflict, "who gives orders leads first, and this one does not lead");
  }
  if (request.opcode != control::Opcode::kRelease) {
    return regions_.handle(request, client.leader->fabric);
  }
  TP_TRY(regions_.forgetAll());
  allegiance_.end();
  client.leader.reset();
  closeOthers();
  return control::Answer();
}

Status ControlServer::lead(Client& client, const fabric::Leader& who) {
  TP_TRY(allegiance_.lead(who, silenceOfLeader(client)));
  client.leader = who;
  closeOthers();
  return {};
}

std::optional<Nanoseconds> ControlServer::silenceOfLeader(const Client& but) const {
  std::optional<Nanoseconds> silence;
  const Nanoseconds now = kMonotonicClock.now();
  for (const Client& client : clients_) {
    if (&client == &but || !allegiance_.obeys(client.leader)) continue;
    const Nanoseconds own = now - client.last;
    if (!silence || own < *silence) silence = own;
  }
  return silence;
}

void ControlServer::closeOthers() {
  for (Client& client : clients_) {
    if (!client.leader || allegiance_.obeys(client.leader)) continue;
    log_.warn(fmt::format("control connection from {} closed: the manager of term {} leads no more",
                          client.peer, client.leader->term.value()));
    client.leader.reset();
    (void)shutdown(client.connection->fd(), SHUT_RDWR);
  }
}

void ControlServer::closeRefused() {
  const auto tls = tls_->now();
  for (Client& client : clients_) {
    if (!client.known) continue;  // is checked when its handshake is done
    const Status good = client.connection->recheck(tls);
    if (good) continue;
    log_.warn(
        fmt::format("control connection from {} closed: {}", client.peer, good.error().text()));
    client.leader.reset();
    (void)shutdown(client.connection->fd(), SHUT_RDWR);
  }
}

/// The manager comes again when it finds a connection ended.
void ControlServer::makeRoom(const Client& for_whom) {
  Client* longest = nullptr;
  size_t known = 0;
  for (Client& client : clients_) {
    if (!client.known || &client == &for_whom) continue;
    ++known;
    if (longest == nullptr || client.last < longest->last) longest = &client;
  }
  if (known >= limits_.managers) (void)shutdown(longest->connection->fd(), SHUT_RDWR);
}

}  // namespace tidepool::memserver
