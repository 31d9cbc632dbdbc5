// SPDX-License-Identifier: Apache-2.0
// One connection: handshake, requests one after the other, answers or a stream. Each phase has a
// deadline. Belongs to the loop's thread; freed by the loop after doom().
#pragma once

#include <event2/bufferevent.h>
#include <event2/event.h>

#include <atomic>
#include <cstdint>
#include <ctime>
#include <memory>
#include <string>

#include "fabricmgr/api/http_parser.h"
#include "fabricmgr/api/principal.h"
#include "fabricmgr/tls/tls_context.h"
#include "runtime/base/units.h"

namespace tidepool::api {

class HttpLoop;

class HttpConnection {
 public:
  struct Peer {
    std::string text;     // "10.0.0.7:4711" or "unix"
    std::string network;  // whose handshakes are counted together; empty: there is none
  };
  /// Owns `stream`. With `ssl` (which `stream` owns) the handshake comes first.
  HttpConnection(HttpLoop& loop, uint64_t id, bufferevent* stream, SSL* ssl, Peer&& peer);
  ~HttpConnection();
  HttpConnection(const HttpConnection&) = delete;
  HttpConnection& operator=(const HttpConnection&) = delete;

  /// The peer, now known, may send requests from now on.
  void identify(Principal principal, std::time_t not_after);
  void reply(const Response& response);
  void openStream(const Response& head);
  void chunk(const std::string& part);
  void endStream();
  /// Ends what is idle at once, and the rest after its answer.
  void windDown();
  /// It is not being served. Whose it is: the principal, or, as long as that is not known, where it
  /// comes from.
  bool waits() const { return phase_ <= Phase::kBody; }
  std::string owner() const { return network_.empty() ? principal_.actor() : network_; }
  bool isLocal() const { return ssl_ == nullptr; }
  /// Without an answer.
  void cutOff() { doom(); }
  /// Shows the handler the certificate that it was not there to see.
  void introduce() const;
  /// Cuts the peer off if `tls` does not accept it.
  void recheck(const TlsContext& tls);
  void watchGone(std::shared_ptr<std::atomic<bool>> gone) { gone_ = std::move(gone); }

  uint64_t id() const { return id_; }
  /// Of the request that is being served: tells late words about an earlier one apart.
  uint64_t serial() const { return serial_; }
  const Principal& principal() const { return principal_; }
  const std::string& peer() const { return peer_; }

 private:
  enum class Phase : uint8_t {
    kHandshake,
    kIdle,
    kHead,
    kBody,
    kServing,
    kReplying,
    kStreaming,
    kLingering,  // answered and closed; reads on so that the answer is not lost
    kDoomed,
  };

  static void onRead(bufferevent* stream, void* self);
  static void onWritten(bufferevent* stream, void* self);
  static void onEvent(bufferevent* stream, short what, void* self);
  static void onDeadline(int fd, short events, void* self);
  void handshakeDone();
  void handshakeFailed();
  void handshakeEnds();
  bool hasShownWhoItIs() const;
  void advance();
  void readHead();
  void readBody();
  void afterReply();
  void refuse(Refusal why);
  void send(const Response& response, bool stream);
  void enter(Phase phase);
  void deadlineIn(Nanoseconds time);
  void linger();
  void doom();
  size_t waitingOut() const;

  HttpLoop& loop_;
  const uint64_t id_;
  bufferevent* const stream_;
  SSL* const ssl_;
  event* const deadline_;
  const std::string peer_;
  std::string network_;  // as long as the handshake is counted
  Principal principal_;
  bool admitted_ = false;
  bool close_after_ = false;
  bool winding_down_ = false;
  bool bodyless_ = false;  // the answer to HEAD
  bool chunked_ = true;    // streams to this peer are; HTTP/1.0 ends them with the connection
  bool unread_ = false;    // part of a request that was refused may still be on its way
  Phase phase_ = Phase::kHandshake;
  uint64_t serial_ = 0;
  std::time_t not_after_ = 0;  // end of the certificate; 0: none
  size_t scanned_ = 0;         // bytes of the head that hold no end of it
  Head head_;
  std::shared_ptr<std::atomic<bool>> gone_;
};

}  // namespace tidepool::api
