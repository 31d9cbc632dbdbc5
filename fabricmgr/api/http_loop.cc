// SPDX-License-Identifier: Apache-2.0
// HttpLoop: accepting, dispatching, delivering answers, stopping.
#include "fabricmgr/api/http_loop.h"

#include <event2/bufferevent_ssl.h>
#include <fmt/format.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <algorithm>
#include <csignal>
#include <cstring>
#include <utility>

#include "runtime/base/check.h"
#include "runtime/transport/peer_address.h"

namespace tidepool::api {
namespace {

constexpr timeval kTick = {0, 200'000};
constexpr Nanoseconds kTroubleEvery(10 * kSecond);
constexpr size_t kUsesKept = 4096;  // principals without a connection that are remembered
/// libevent accepts as long as somebody waits: a flood would be all it does, and what is cut off
/// for others would not be closed meanwhile.
constexpr unsigned kMostInARow = 16;

}  // namespace

HttpLoop::HttpLoop(const ServerOptions& options, HttpHandler& handler, WorkLane& quick,
                   WorkLane& slow)
    : options_(options),
      handler_(&handler),
      headers_(options.headers),
      quick_(quick),
      slow_(slow),
      base_(event_base_new()) {
  TP_CHECK(base_ != nullptr);
  mail_event_.reset(event_new(base_.get(), mailbox_->fd(), EV_READ | EV_PERSIST, onMail, this));
  tick_event_.reset(event_new(base_.get(), -1, EV_PERSIST, onTick, this));
  reap_event_.reset(event_new(base_.get(), -1, 0, onReap, this));
  event_add(mail_event_.get(), nullptr);
  event_add(tick_event_.get(), &kTick);
}

HttpLoop::~HttpLoop() {
  listeners_.clear();
  connections_.clear();
  doomed_.clear();
  mail_event_.reset();
  tick_event_.reset();
  reap_event_.reset();
  // What libevent has put off holds buffers: freeing the base would forget them.
  while (event_base_get_num_events(base_.get(), EVENT_BASE_COUNT_ACTIVE) > 0) {
    if (event_base_loop(base_.get(), EVLOOP_NONBLOCK) < 0) break;
  }
}

void HttpLoop::run() {
  // OpenSSL writes to sockets whose peer has gone without asking for no signal.
  sigset_t pipe;
  sigemptyset(&pipe);
  sigaddset(&pipe, SIGPIPE);
  pthread_sigmask(SIG_BLOCK, &pipe, nullptr);
  event_base_dispatch(base_.get());
}

Status HttpLoop::addListener(UniqueFd socket, Kind kind) {
  auto listening = std::make_unique<Listening>(Listening{this, kind, nullptr, nullptr});
  listening->go_on.reset(event_new(base_.get(), -1, 0, onGoOn, listening.get()));
  // 0: the socket listens already, and its backlog stays as it is.
  listening->listener.reset(evconnlistener_new(base_.get(), onAccept, listening.get(),
                                               LEV_OPT_CLOSE_ON_FREE | LEV_OPT_CLOSE_ON_EXEC, 0,
                                               socket.get()));
  if (!listening->listener) return failErrno(ErrorCode::kIo, "cannot accept connections");
  (void)socket.release();
  evconnlistener_set_error_cb(listening->listener.get(), onAcceptError);
  listeners_.push_back(std::move(listening));
  return {};
}

void HttpLoop::onAccept(evconnlistener* listener, int socket, sockaddr* address, int size,
                        void* self) {
  auto* listening = static_cast<Listening*>(self);
  if (++listening->in_a_row == kMostInARow) {
    evconnlistener_disable(listener);
    event_active(listening->go_on.get(), EV_TIMEOUT, 0);
  }
  sockaddr_storage peer = {};
  memcpy(&peer, address, std::min(sizeof peer, static_cast<size_t>(size)));
  listening->loop->accept(listening->kind, UniqueFd(socket), peer);
}

void HttpLoop::onGoOn(int, short, void* self) {
  auto* listening = static_cast<Listening*>(self);
  listening->in_a_row = 0;
  evconnlistener_enable(listening->listener.get());
}

/// The next tick accepts again.
void HttpLoop::onAcceptError(evconnlistener* listener, void* self) {
  const int error = EVUTIL_SOCKET_ERROR();
  evconnlistener_disable(listener);
  static_cast<Listening*>(self)->loop->cannotAccept(error);
}

void HttpLoop::cannotAccept(int error) {
  shed();
  const Nanoseconds now = clock_.now();
  if (trouble_said_ != Nanoseconds() && now < trouble_said_ + kTroubleEvery) return;
  trouble_said_ = now;
  handler_->inTrouble(
      fmt::format("cannot accept connections: {}; {} are open; idle ones of the client "
                  "that has most are closed",
                  strerror(error), connections_.size()));
}

/// Half of what the greediest owner leaves waiting, the oldest first. Administrators are spared,
/// and so are owners of one connection.
void HttpLoop::shed() {
  std::unordered_map<std::string, std::vector<HttpConnection*>> waiting;
  const std::vector<HttpConnection*>* most = nullptr;
  for (const auto& [id, connection] : connections_) {
    if (!connection->waits() || connection->principal().role == Role::kAdmin) continue;
    auto& of_one = waiting[connection->owner()];
    of_one.push_back(connection.get());
    if (most == nullptr || of_one.size() > most->size()) most = &of_one;
  }
  if (most == nullptr) return;
  std::vector<HttpConnection*> oldest = *most;
  std::sort(oldest.begin(), oldest.end(), [](auto* a, auto* b) { return a->id() < b->id(); });
  oldest.resize(oldest.size() / 2);
  for (HttpConnection* connection : oldest) connection->cutOff();
}

const char* HttpLoop::noRoomFor(Kind kind, const std::string& network) {
  if (kind == Kind::kUnix) {
    return local_ < options_.local_connections ? nullptr : "all local connections are taken";
  }
  const auto of_one = handshakes_of_.find(network);
  const size_t own = of_one == handshakes_of_.end() ? 0 : of_one->second.size();
  if (own >= options_.handshakes_of_one) return "its address has too many handshakes under way";
  if (handshakes_ < options_.handshakes || giveWay(own)) return nullptr;
  return "too many handshakes are under way";
}

bool HttpLoop::giveWay(size_t own) {
  const auto most = std::max_element(
      handshakes_of_.begin(), handshakes_of_.end(),
      [](const auto& a, const auto& b) { return a.second.size() < b.second.size(); });
  // Networks that have some take only from those that have more even then: or two would go on
  // taking places from each other.
  if (own != 0 && most->second.size() < own + 2) return false;
  HttpConnection& oldest = *connections_.at(*most->second.begin());
  handler_->strangerRefused(oldest.peer(),
                            "it gave way: all handshakes are taken, most of them by its address");
  oldest.cutOff();
  return true;
}

void HttpLoop::accept(Kind kind, UniqueFd socket, const sockaddr_storage& address) {
  HttpConnection::Peer peer;
  peer.text = kind == Kind::kUnix ? kUnixPeer : peerText(address);
  if (kind == Kind::kTls) peer.network = networkOf(address);
  if (const char* full = noRoomFor(kind, peer.network)) {
    handler_->strangerRefused(peer.text, full);
    return;
  }
  const int fd = socket.get();
  SslPointer<SSL> ssl;
  if (kind == Kind::kTls) {
    const int on = 1;
    (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    (void)setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
    ssl = tls_->newConnection();
    if (!ssl) return;
  }
  constexpr int kOptions = BEV_OPT_CLOSE_ON_FREE | BEV_OPT_DEFER_CALLBACKS;
  bufferevent* stream = ssl ? bufferevent_openssl_socket_new(base_.get(), fd, ssl.get(),
                                                             BUFFEREVENT_SSL_ACCEPTING, kOptions)
                            : bufferevent_socket_new(base_.get(), fd, kOptions);
  if (stream == nullptr) return;
  (void)socket.release();
  SSL* const owned = ssl.release();  // by the stream
  const uint64_t id = next_id_++;
  if (owned != nullptr) {
    bufferevent_openssl_set_allow_dirty_shutdown(stream, 1);
    ++handshakes_;
    handshakes_of_[peer.network].insert(id);
  }
  ++(owned != nullptr ? remote_ : local_);
  HttpConnection& connection =
      *connections_
           .emplace(id, std::make_unique<HttpConnection>(*this, id, stream, owned, std::move(peer)))
           .first->second;
  connection_count_.store(connections_.size(), std::memory_order_relaxed);
  if (owned == nullptr) welcomeLocal(connection, fd);
}

void HttpLoop::welcomeLocal(HttpConnection& connection, int fd) {
  auto principal = principalOfPeer(fd, peer_rules_);
  if (!principal) return doom(connection.id());
  const size_t for_all = options_.local_connections - options_.local_connections / 4;
  if (principal->role != Role::kAdmin && local_ > for_all) {
    handler_->strangerRefused(principal->actor(),
                              "local connections are taken but for the reserve");
    return doom(connection.id());
  }
  connection.identify(std::move(*principal), 0);
}

void HttpLoop::handshakeOver(const HttpConnection& connection, const std::string& network) {
  --handshakes_;
  const auto of_one = handshakes_of_.find(network);
  of_one->second.erase(connection.id());
  if (of_one->second.empty()) handshakes_of_.erase(of_one);
}

bool HttpLoop::admit(const Principal& principal) {
  Use& use = uses_.try_emplace(principal.actor(), Use{0, TokenBucket(options_.rate, clock_.now())})
                 .first->second;
  if (principal.role != Role::kAdmin && use.connections >= options_.connections_of_one)
    return false;
  ++use.connections;
  return true;
}

void HttpLoop::leave(const Principal& principal) {
  if (const auto use = uses_.find(principal.actor()); use != uses_.end()) --use->second.connections;
}

void HttpLoop::dispatch(HttpConnection& connection, Request request) {
  const Principal& principal = connection.principal();
  const auto refuse = [&](int status, const char* detail) {
    Response response =
        handler_->refuse({&principal, &connection.peer(), &request, {status, detail}});
    response.headers.emplace_back("Retry-After", "1");
    connection.reply(response);
  };
  if (!uses_[principal.actor()].bucket.take(clock_.now())) {
    return refuse(429, "too many requests a second: wait a second, then go on more slowly");
  }
  WorkLane& lane = handler_->laneOf(request) == Lane::kQuick ? quick_ : slow_;
  auto exchange =
      std::make_shared<Exchange>(ConnectionKey{connection.id(), connection.serial()}, mailbox_,
                                 std::move(request), principal, connection.peer());
  connection.watchGone(exchange->goneFlag());
  if (lane.push([handler = handler_, exchange] { handler->serve(exchange); })) return;
  request = exchange->request;
  refuse(503, "too many requests are waiting: try again in a second");
}

void HttpLoop::doom(uint64_t id) {
  const auto found = connections_.find(id);
  if (found == connections_.end()) return;
  --(found->second->isLocal() ? local_ : remote_);
  doomed_.push_back(std::move(found->second));
  connections_.erase(found);
  connection_count_.store(connections_.size(), std::memory_order_relaxed);
  event_active(reap_event_.get(), EV_TIMEOUT, 0);
}

void HttpLoop::onReap(int, short, void* self) {
  auto* loop = static_cast<HttpLoop*>(self);
  std::exchange(loop->doomed_, {}).clear();
  loop->endIfStopped();
}

void HttpLoop::onMail(int, short, void* self) {
  auto* loop = static_cast<HttpLoop*>(self);
  for (Message& message : loop->mailbox_->take()) loop->deliver(std::move(message));
}

void HttpLoop::deliver(Message message) {
  if (message.kind == Message::Kind::kStop) return beginStop();
  if (message.kind == Message::Kind::kNewTls) return takeNewTls();
  if (message.kind == Message::Kind::kNewHandler) return takeNewHandler();
  const auto found = connections_.find(message.connection.id);
  if (found == connections_.end()) return;  // it hung up meanwhile
  HttpConnection& connection = *found->second;
  if (connection.serial() != message.connection.serial) return;
  switch (message.kind) {
    case Message::Kind::kReply:
      return connection.reply(message.response);
    case Message::Kind::kOpenStream:
      return connection.openStream(message.response);
    case Message::Kind::kChunk:
      return connection.chunk(message.response.body);
    default:
      return connection.endStream();
  }
}

void HttpLoop::offerTls(std::shared_ptr<TlsContext> tls) {
  {
    const MutexLock lock(offered_mutex_);
    offered_tls_ = std::move(tls);
  }
  mailbox_->post({Message::Kind::kNewTls, {}, {}});
}

void HttpLoop::takeNewTls() {
  {
    const MutexLock lock(offered_mutex_);
    if (!offered_tls_) return;
    tls_ = std::exchange(offered_tls_, nullptr);
  }
  handler_->tlsInUse(tls_->expiries());
  std::vector<HttpConnection*> all;  // rechecking takes some out of the map
  for (const auto& [id, connection] : connections_) all.push_back(connection.get());
  for (HttpConnection* connection : all) connection->recheck(*tls_);
}

void HttpLoop::offerHandler(HttpHandler& handler, Pairs headers) {
  {
    const MutexLock lock(offered_mutex_);
    offered_handler_ = &handler;
    offered_headers_ = std::move(headers);
  }
  mailbox_->post({Message::Kind::kNewHandler, {}, {}});
}

void HttpLoop::takeNewHandler() {
  {
    const MutexLock lock(offered_mutex_);
    handler_ = offered_handler_;
    headers_ = offered_headers_;
  }
  if (tls_) handler_->tlsInUse(tls_->expiries());
  for (const auto& [id, connection] : connections_) connection->introduce();
}

void HttpLoop::beginStop() {
  if (stop_by_.value() != 0) return;
  stop_by_ = clock_.now() + options_.times.stop;
  listeners_.clear();
  std::vector<HttpConnection*> all;
  for (const auto& [id, connection] : connections_) all.push_back(connection.get());
  for (HttpConnection* connection : all) connection->windDown();
  endIfStopped();
}

void HttpLoop::endIfStopped() {
  if (stop_by_.value() == 0) return;
  if (connections_.empty() || clock_.now() > stop_by_) event_base_loopbreak(base_.get());
}

void HttpLoop::onTick(int, short, void* self) { static_cast<HttpLoop*>(self)->tick(); }

void HttpLoop::tick() {
  for (const auto& listening : listeners_) evconnlistener_enable(listening->listener.get());
  if (uses_.size() > kUsesKept + connections_.size()) {
    std::erase_if(uses_, [](const auto& use) { return use.second.connections == 0; });
  }
  endIfStopped();
}

}  // namespace tidepool::api
