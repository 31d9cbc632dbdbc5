// SPDX-License-Identifier: Apache-2.0
// HttpConnection over a libevent bufferevent, plain or TLS. Its callbacks are deferred, so none of
// them runs inside another.
#include "fabricmgr/api/http_connection.h"

#include <event2/buffer.h>
#include <event2/bufferevent_ssl.h>
#include <fmt/format.h>
#include <openssl/err.h>
#include <sys/socket.h>

#include <algorithm>
#include <utility>

#include "fabricmgr/api/http_loop.h"
#include "runtime/base/check.h"

namespace tidepool::api {
namespace {

constexpr Nanoseconds kLinger(2 * kSecond);
constexpr uint64_t kSlowestBytesPerSecond = 64 * 1024;
constexpr size_t kLongestBacklog = 1024 * 1024;  // of a stream whose reader is slow
constexpr size_t kCopyBelow = 4096;
constexpr int kNoContent = 204;
constexpr int kNotModified = 304;

std::string dateNow() {
  // Made once a second.
  thread_local std::time_t last = 0;
  thread_local std::string text;
  const std::time_t now = std::time(nullptr);
  if (now != last) {
    std::tm parts = {};
    gmtime_r(&now, &parts);
    char buffer[40];
    strftime(buffer, sizeof buffer, "%a, %d %b %Y %H:%M:%S GMT", &parts);
    text = buffer;
    last = now;
  }
  return text;
}

void appendBody(evbuffer* out, const std::string& body) {
  if (body.size() < kCopyBelow) {
    evbuffer_add(out, body.data(), body.size());
    return;
  }
  auto* kept = new std::string(body);
  const auto drop = [](const void*, size_t, void* one) { delete static_cast<std::string*>(one); };
  if (evbuffer_add_reference(out, kept->data(), kept->size(), drop, kept) != 0) delete kept;
}

}  // namespace

HttpConnection::HttpConnection(HttpLoop& loop, uint64_t id, bufferevent* stream, SSL* ssl,
                               Peer&& peer)
    : loop_(loop),
      id_(id),
      stream_(stream),
      ssl_(ssl),
      deadline_(evtimer_new(loop.base(), onDeadline, this)),
      peer_(std::move(peer.text)),
      network_(std::move(peer.network)) {
  const HttpLimits& limits = loop.options().limits;
  bufferevent_setcb(stream_, onRead, onWritten, onEvent, this);
  bufferevent_setwatermark(stream_, EV_READ, 0, limits.head + limits.body);
  deadlineIn(loop.options().times.handshake);
  bufferevent_enable(stream_, EV_READ | EV_WRITE);
}

HttpConnection::~HttpConnection() {
  if (admitted_) loop_.leave(principal_);
  event_free(deadline_);
  bufferevent_free(stream_);
}

void HttpConnection::identify(Principal principal, std::time_t not_after) {
  principal_ = std::move(principal);
  not_after_ = not_after;
  enter(Phase::kIdle);
  admitted_ = loop_.admit(principal_);
  if (!admitted_) {
    refuse({429, fmt::format("'{}' has {} connections open already: use those, or close some",
                             principal_.actor(), loop_.options().connections_of_one)});
    return;
  }
  advance();
}

void HttpConnection::onRead(bufferevent*, void* self) {
  static_cast<HttpConnection*>(self)->advance();
}

void HttpConnection::onWritten(bufferevent*, void* self) {
  auto* connection = static_cast<HttpConnection*>(self);
  if (connection->phase_ == Phase::kReplying && connection->waitingOut() == 0) {
    connection->afterReply();
  }
}

void HttpConnection::onEvent(bufferevent*, short what, void* self) {
  auto* connection = static_cast<HttpConnection*>(self);
  if ((what & BEV_EVENT_CONNECTED) != 0) {
    connection->handshakeDone();
  } else if (connection->phase_ == Phase::kHandshake) {
    connection->handshakeFailed();
  } else {
    connection->doom();  // the peer hung up, or the connection broke
  }
}

void HttpConnection::onDeadline(int, short, void* self) {
  auto* connection = static_cast<HttpConnection*>(self);
  const uint64_t seconds = connection->loop_.options().times.request.value() / kSecond;
  switch (connection->phase_) {
    case Phase::kHead:
    case Phase::kBody:
      connection->refuse({408, fmt::format("the request was not complete within {} s", seconds)});
      return;
    case Phase::kServing:
    case Phase::kStreaming:
      return;
    case Phase::kHandshake:
      connection->loop_.handler().strangerRefused(connection->peer_, "the handshake took too long");
      [[fallthrough]];
    default:
      connection->doom();
  }
}

void HttpConnection::handshakeEnds() {
  if (!network_.empty()) loop_.handshakeOver(*this, std::exchange(network_, ""));
}

void HttpConnection::handshakeDone() {
  handshakeEnds();
  const auto peer = peerOf(ssl_);
  auto who = peer ? principalOfUrn(peer->urn) : Result<Principal>(tl::unexpected(peer.error()));
  if (!who) {
    enter(Phase::kIdle);
    refuse({403, std::string(who.error().text()) +
                     ": ask for a certificate made by `fabricmgr ca issue`"});
    return;
  }
  if (const Status good = loop_.acceptable(ssl_); !good) {
    loop_.handler().strangerRefused(peer_, who->actor() + ": " + good.error().text());
    return doom();
  }
  if (loop_.isFull()) {
    enter(Phase::kIdle);
    return refuse({503, "all connections are taken: try again in a while"});
  }
  loop_.handler().clientSeen(*who, peer->not_after);
  identify(std::move(*who), peer->not_after);
}

void HttpConnection::handshakeFailed() {
  static constexpr const char* kGone = "the peer hung up";
  std::string why = kGone;
  if (const RefusedPeer* refused = refusedPeer(ssl_)) {
    why = refused->why;
    if (const auto& ended = refused->ended) {
      if (const auto who = principalOfUrn(ended->urn)) {
        loop_.handler().clientSeen(*who, ended->not_after);
      }
    }
  } else if (const unsigned long error = bufferevent_get_openssl_error(stream_); error != 0) {
    const char* reason = ERR_reason_error_string(error);
    if (reason != nullptr) why = reason;
  }
  loop_.handler().strangerRefused(peer_, why);
  if (why == kGone) return doom();
  // The peer may be sending its request already. Closing now would reset the connection, and take
  // the alert with it that says why. It goes on counting as a handshake.
  phase_ = Phase::kLingering;
  bufferevent_disable(stream_, EV_READ | EV_WRITE);
  shutdown(bufferevent_getfd(stream_), SHUT_WR);
  deadlineIn(kLinger);
}

void HttpConnection::advance() {
  if (phase_ == Phase::kLingering) {
    evbuffer* input = bufferevent_get_input(stream_);
    evbuffer_drain(input, evbuffer_get_length(input));
  }
  if (phase_ == Phase::kIdle || phase_ == Phase::kHead) readHead();
  if (phase_ == Phase::kBody) readBody();
}

void HttpConnection::readHead() {
  evbuffer* input = bufferevent_get_input(stream_);
  const size_t have = evbuffer_get_length(input);
  if (have == 0) return;
  if (phase_ == Phase::kIdle) {
    enter(Phase::kHead);
    bodyless_ = false;
  }
  const HttpLimits& limits = loop_.options().limits;
  evbuffer_ptr from;
  evbuffer_ptr_set(input, &from, scanned_, EVBUFFER_PTR_SET);
  const evbuffer_ptr end = evbuffer_search(input, "\r\n\r\n", 4, &from);
  const size_t size = end.pos < 0 ? have : static_cast<size_t>(end.pos) + 4;
  if (size > limits.head) {
    return refuse({431, fmt::format("the request's head is larger than {} bytes", limits.head)});
  }
  if (end.pos < 0) {
    scanned_ = have < 3 ? 0 : have - 3;
    return;
  }
  scanned_ = 0;
  std::string text(size, '\0');
  evbuffer_remove(input, text.data(), size);
  auto head = parseHead(text, limits);
  if (!head) return refuse(std::move(head.error()));
  head_ = std::move(*head);
  close_after_ = head_.after == Head::After::kClose;
  chunked_ = head_.version == Head::Version::k11;
  phase_ = Phase::kBody;  // within the deadline of the whole request
  if (head_.expects == Head::Expects::kContinue && have - size < head_.body_size) {
    static constexpr std::string_view kContinue = "HTTP/1.1 100 Continue\r\n\r\n";
    bufferevent_write(stream_, kContinue.data(), kContinue.size());
  }
}

void HttpConnection::readBody() {
  evbuffer* input = bufferevent_get_input(stream_);
  if (evbuffer_get_length(input) < head_.body_size) return;
  if (not_after_ != 0 && std::time(nullptr) > not_after_) {
    return refuse({401, "the certificate has expired since the connection was made: renew it"});
  }
  Request request = std::exchange(head_.request, {});
  bodyless_ = request.method == "HEAD";
  request.body.resize(head_.body_size);
  evbuffer_remove(input, request.body.data(), head_.body_size);
  TP_CHECK(phase_ == Phase::kBody && admitted_);
  enter(Phase::kServing);
  ++serial_;
  loop_.dispatch(*this, std::move(request));
}

void HttpConnection::refuse(Refusal why) {
  close_after_ = true;
  unread_ = true;
  const Response response = loop_.handler().refuse({&principal_, &peer_, nullptr, std::move(why)});
  phase_ = Phase::kServing;
  reply(response);
}

void HttpConnection::reply(const Response& response) {
  if (phase_ != Phase::kServing) return;
  gone_.reset();
  enter(Phase::kReplying);
  deadlineIn(loop_.options().times.reply +
             Nanoseconds(response.body.size() * kSecond / kSlowestBytesPerSecond));
  send(response, false);
}

void HttpConnection::openStream(const Response& head) {
  if (phase_ != Phase::kServing) return;
  enter(Phase::kStreaming);
  send(head, true);
}

void HttpConnection::send(const Response& response, bool stream) {
  close_after_ = close_after_ || winding_down_;
  std::string text = fmt::format("HTTP/1.1 {} {}\r\nDate: {}\r\n", response.status,
                                 reasonOf(response.status), dateNow());
  for (const Pairs* some : {&loop_.headers(), &response.headers}) {
    for (const auto& [name, value] : *some) text += fmt::format("{}: {}\r\n", name, value);
  }
  if (stream) {
    text += fmt::format("Content-Type: {}\r\n{}", response.type,
                        chunked_ ? "Transfer-Encoding: chunked\r\n" : "");
  } else if (response.status != kNoContent && response.status != kNotModified) {
    text += fmt::format("Content-Type: {}\r\nContent-Length: {}\r\n", response.type,
                        response.body.size());
  }
  text += close_after_ ? "Cache-Control: no-store\r\nConnection: close\r\n\r\n"
                       : "Cache-Control: no-store\r\n\r\n";
  evbuffer* out = bufferevent_get_output(stream_);
  evbuffer_add(out, text.data(), text.size());
  if (!stream && !bodyless_) appendBody(out, response.body);
}

void HttpConnection::chunk(const std::string& part) {
  if (phase_ != Phase::kStreaming) return;
  if (waitingOut() > kLongestBacklog) return doom();  // it can ask again from where it was
  evbuffer* out = bufferevent_get_output(stream_);
  if (chunked_) evbuffer_add_printf(out, "%zx\r\n", part.size());
  appendBody(out, part);
  if (chunked_) evbuffer_add(out, "\r\n", 2);
}

void HttpConnection::endStream() {
  if (phase_ != Phase::kStreaming) return;
  gone_.reset();
  enter(Phase::kReplying);
  deadlineIn(loop_.options().times.reply);
  if (chunked_) {
    bufferevent_write(stream_, "0\r\n\r\n", 5);
  } else if (waitingOut() == 0) {
    afterReply();
  }
}

void HttpConnection::afterReply() {
  TP_CHECK(phase_ == Phase::kReplying);
  if (close_after_ || winding_down_) return unread_ ? linger() : doom();
  enter(Phase::kIdle);
  advance();
}

void HttpConnection::windDown() {
  winding_down_ = true;
  if (phase_ == Phase::kStreaming) {
    endStream();
  } else if (phase_ != Phase::kServing && phase_ != Phase::kReplying) {
    doom();
  }
}

/// A peer that is in its handshake, or was refused and lingers, has no certificate to look at.
bool HttpConnection::hasShownWhoItIs() const {
  return ssl_ != nullptr && admitted_ && phase_ != Phase::kDoomed;
}

void HttpConnection::introduce() const {
  if (hasShownWhoItIs()) loop_.handler().clientSeen(principal_, not_after_);
}

void HttpConnection::recheck(const TlsContext& tls) {
  if (!hasShownWhoItIs()) return;
  if (const Status good = tls.recheck(ssl_); !good) {
    loop_.handler().strangerRefused(peer_, principal_.actor() + ": " + good.error().text());
    return doom();
  }
  introduce();
}

void HttpConnection::enter(Phase phase) {
  TP_CHECK(phase_ != Phase::kDoomed);
  phase_ = phase;
  const HttpTimes& times = loop_.options().times;
  if (phase == Phase::kIdle) deadlineIn(times.idle);
  if (phase == Phase::kHead) deadlineIn(times.request);
  if (phase == Phase::kServing || phase == Phase::kStreaming) event_del(deadline_);
}

void HttpConnection::deadlineIn(Nanoseconds time) {
  const timeval after = {static_cast<time_t>(time.value() / kSecond),
                         static_cast<suseconds_t>(time.value() % kSecond / 1000)};
  event_add(deadline_, &after);
}

/// Closing with unread bytes would reset the connection, and take the answer with it.
void HttpConnection::linger() {
  enter(Phase::kLingering);
  deadlineIn(kLinger);
  if (ssl_ != nullptr) SSL_shutdown(ssl_);
  shutdown(bufferevent_getfd(stream_), SHUT_WR);
  advance();
}

void HttpConnection::doom() {
  if (phase_ == Phase::kDoomed) return;
  handshakeEnds();
  phase_ = Phase::kDoomed;
  if (gone_) gone_->store(true, std::memory_order_relaxed);
  if (ssl_ != nullptr && admitted_) SSL_shutdown(ssl_);
  bufferevent_setcb(stream_, nullptr, nullptr, nullptr, nullptr);
  bufferevent_disable(stream_, EV_READ | EV_WRITE);
  event_del(deadline_);
  loop_.doom(id_);
}

size_t HttpConnection::waitingOut() const {
  return evbuffer_get_length(bufferevent_get_output(stream_));
}

}  // namespace tidepool::api
