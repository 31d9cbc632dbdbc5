// SPDX-License-Identifier: Apache-2.0
// The server's thread: libevent's loop, the listeners, the connections, and what is counted for
// each principal. Everything but mailbox() and connectionCount() belongs to the thread in run().
#pragma once

#include <event2/event.h>
#include <event2/listener.h>

#include <atomic>
#include <memory>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

#include "fabricmgr/api/http_connection.h"
#include "fabricmgr/api/http_server.h"
#include "fabricmgr/api/work_lane.h"
#include "runtime/base/clock.h"

namespace tidepool::api {

struct EventDeleter {
  void operator()(event_base* base) const { event_base_free(base); }
  void operator()(event* one) const { event_free(one); }
  void operator()(evconnlistener* listener) const { evconnlistener_free(listener); }
};
template <typename T>
using EventPointer = std::unique_ptr<T, EventDeleter>;

class HttpLoop {
 public:
  HttpLoop(const ServerOptions& options, HttpHandler& handler, WorkLane& quick, WorkLane& slow);
  ~HttpLoop();

  /// Before run(). Errors: as HttpServer::start().
  Status listenUnix(const UnixListener& listener);
  Result<uint16_t> listenTls(const TcpListener& listener, std::shared_ptr<TlsContext> tls);
  /// Returns after a kStop message, once all is out or the time for it is over.
  void run();

  Mailbox& mailbox() { return *mailbox_; }
  uint64_t connectionCount() const { return connection_count_.load(std::memory_order_relaxed); }
  /// Picked up with the next kNewTls message.
  void offerTls(std::shared_ptr<TlsContext> tls) TP_EXCLUDES(offered_mutex_);
  /// Likewise, with kNewHandler. Borrowed.
  void offerHandler(HttpHandler& handler, Pairs headers) TP_EXCLUDES(offered_mutex_);

  // For connections.
  const ServerOptions& options() const { return options_; }
  event_base* base() const { return base_.get(); }
  HttpHandler& handler() const { return *handler_; }
  /// Of every answer.
  const Pairs& headers() const { return headers_; }
  /// False if the principal has too many connections already.
  bool admit(const Principal& principal);
  void leave(const Principal& principal);
  /// Its peer, of this network, has shown who it is, or has gone.
  void handshakeOver(const HttpConnection& connection, const std::string& network);
  /// More have shown who they are, over TLS, than may.
  bool isFull() const { return remote_ - handshakes_ > options_.connections; }
  /// Whether certificates read since the handshake began still let the peer in.
  Status acceptable(SSL* ssl) const { return tls_->made(ssl) ? Status() : tls_->recheck(ssl); }
  /// Hands a request to its lane, or answers it here if there is too much of them.
  void dispatch(HttpConnection& connection, Request request);
  /// Frees the connection once the loop is out of its callbacks.
  void doom(uint64_t id);

 private:
  enum class Kind : uint8_t { kUnix, kTls };
  struct Listening {
    HttpLoop* loop;
    Kind kind;
    EventPointer<evconnlistener> listener;
    EventPointer<event> go_on;  // accepts again, after what else is there to do
    unsigned in_a_row = 0;
  };
  struct Use {
    size_t connections = 0;
    TokenBucket bucket;
  };

  Status addListener(UniqueFd socket, Kind kind);
  static void onAccept(evconnlistener* listener, int socket, sockaddr* address, int size,
                       void* self);
  static void onAcceptError(evconnlistener* listener, void* self);
  static void onGoOn(int fd, short events, void* self);
  static void onMail(int fd, short events, void* self);
  static void onTick(int fd, short events, void* self);
  static void onReap(int fd, short events, void* self);
  void accept(Kind kind, UniqueFd socket, const sockaddr_storage& address);
  void welcomeLocal(HttpConnection& connection, int fd);
  /// Why there is no room for another connection; null if there is, or has been made.
  const char* noRoomFor(Kind kind, const std::string& network);
  /// The oldest handshake of the network that has most goes, for one of a network that has `own`:
  /// a flood from many addresses does not keep others out. False if none does.
  bool giveWay(size_t own);
  /// Out of descriptors, most likely: says so, and makes some free.
  void cannotAccept(int error);
  void shed();
  void deliver(Message message);
  void takeNewTls() TP_EXCLUDES(offered_mutex_);
  void takeNewHandler() TP_EXCLUDES(offered_mutex_);
  void beginStop();
  void endIfStopped();
  void tick();

  const ServerOptions options_;
  HttpHandler* handler_;
  Pairs headers_;
  WorkLane& quick_;
  WorkLane& slow_;
  MonotonicClock clock_;
  std::shared_ptr<Mailbox> mailbox_ = std::make_shared<Mailbox>();
  EventPointer<event_base> base_;
  EventPointer<event> mail_event_;
  EventPointer<event> tick_event_;
  EventPointer<event> reap_event_;
  std::vector<std::unique_ptr<Listening>> listeners_;
  PeerRules peer_rules_;
  std::shared_ptr<TlsContext> tls_;
  Mutex offered_mutex_;
  std::shared_ptr<TlsContext> offered_tls_ TP_GUARDED_BY(offered_mutex_);
  HttpHandler* offered_handler_ TP_GUARDED_BY(offered_mutex_) = nullptr;
  Pairs offered_headers_ TP_GUARDED_BY(offered_mutex_);
  uint64_t next_id_ = 1;
  std::unordered_map<uint64_t, std::unique_ptr<HttpConnection>> connections_;
  std::vector<std::unique_ptr<HttpConnection>> doomed_;
  std::unordered_map<std::string, Use> uses_;                          // by actor
  size_t local_ = 0, remote_ = 0;                                      // open connections
  size_t handshakes_ = 0;                                              // of these, under way
  std::unordered_map<std::string, std::set<uint64_t>> handshakes_of_;  // by network: oldest first
  Nanoseconds trouble_said_;
  std::atomic<uint64_t> connection_count_{0};
  Nanoseconds stop_by_;  // 0: not stopping
};

}  // namespace tidepool::api
