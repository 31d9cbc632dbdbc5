// SPDX-License-Identifier: Apache-2.0
// The HTTP server: one thread with libevent owns all connections (a Unix socket, and TCP with
// mutual TLS); requests are carried out by the threads of two lanes. Thread-safe: readTls(),
// useTls(), reloadTls(), handOver(), stop().
#pragma once

#include <sys/stat.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "fabricmgr/api/exchange.h"
#include "fabricmgr/api/http_message.h"
#include "fabricmgr/api/principal.h"
#include "fabricmgr/api/rate_limit.h"
#include "fabricmgr/tls/tls_context.h"
#include "runtime/base/result.h"
#include "runtime/base/units.h"

namespace tidepool::api {

class HttpLoop;
class WorkLane;

inline constexpr uint64_t kSecond = 1'000'000'000;

/// How long a peer may take. What is late is cut off.
struct HttpTimes {
  Nanoseconds handshake{10 * kSecond};
  Nanoseconds request{10 * kSecond};  // from its first byte to its last
  Nanoseconds idle{120 * kSecond};    // between requests
  Nanoseconds reply{30 * kSecond};    // to take the answer; big ones get more (64 KiB/s)
  Nanoseconds stop{5 * kSecond};      // for answers under way when the server stops
};

struct UnixListener {
  std::string path;
  mode_t mode = 0666;  // who may ask is decided by `rules`, which give a precise answer
  PeerRules rules;
};

struct TcpListener {
  std::string address;  // HOST:PORT; port 0: any
  TlsFiles tls;
};

struct ServerOptions {
  std::optional<UnixListener> unix_socket;
  std::optional<TcpListener> tcp;
  HttpLimits limits;
  HttpTimes times;
  Pairs headers;                    // of every answer
  Rate rate{200, 400};              // requests, of one principal
  size_t connections = 16384;       // over TLS, of peers that have shown who they are
  size_t connections_of_one = 64;   // of one principal
  size_t handshakes = 1024;         // under way
  size_t handshakes_of_one = 256;   // of one address (IPv6: of one network of 64 bits)
  size_t local_connections = 1024;  // on the Unix socket; a quarter of them for administrators
  unsigned quick_threads = 2;
  unsigned slow_threads = 64;
};

/// Quick: answers from memory, in microseconds. Slow: everything that waits, or answers at length.
enum class Lane : uint8_t { kQuick, kSlow };

/// Someone who was turned away by the server itself, before any handler.
struct Refused {
  const Principal* principal = nullptr;  // null: not known yet
  const std::string* peer = nullptr;
  const Request* request = nullptr;  // null: not understood
  Refusal why;
};

class HttpHandler {
 public:
  virtual ~HttpHandler() = default;
  /// Called by the server's thread: must not block.
  virtual Lane laneOf(const Request& request) const = 0;
  /// Called by a lane's thread.
  virtual void serve(const std::shared_ptr<Exchange>& exchange) = 0;
  /// The answer to someone who is turned away. Called by the server's thread: must not block.
  virtual Response refuse(const Refused& refused) = 0;
  /// A handshake failed. Called by the server's thread: must not block.
  virtual void strangerRefused(const std::string& peer, const std::string& why) = 0;
  /// What the server uses from now on that ends; clients are shown anew. Must not block.
  virtual void tlsInUse(const std::vector<CertificateExpiry>& /*expiries*/) {}
  /// A client has shown a certificate that ends then, or, if that is over, was refused for nothing
  /// else. Called by the server's thread: must not block.
  virtual void clientSeen(const Principal& /*client*/, std::time_t /*not_after*/) {}
  /// The server cannot do what it is to do; said once in a while. Called by the server's thread:
  /// must not block.
  virtual void inTrouble(const std::string& why) { strangerRefused("-", why); }
};

class HttpServer {
 public:
  /// Listens and begins to serve. Errors: kConflict when an address is taken (a socket file that
  /// nobody serves is replaced), kInvalidArgument, kPermission.
  static Result<std::unique_ptr<HttpServer>> start(const ServerOptions& options,
                                                   HttpHandler& handler);
  /// As stop().
  ~HttpServer();
  HttpServer(const HttpServer&) = delete;
  HttpServer& operator=(const HttpServer&) = delete;

  /// The TCP port, 0 without one.
  uint16_t port() const { return port_; }
  /// Connections that are open now.
  uint64_t connections() const;
  /// Certificates and revocations, read again, for useTls(); null without TCP. Errors: as
  /// TlsContext::load().
  Result<std::shared_ptr<TlsContext>> readTls() const;
  /// From now on that; who is not accepted any more is cut off.
  void useTls(std::shared_ptr<TlsContext> tls);
  /// Both, for a process that has no other certificates. On an error everything stays as it was.
  Status reloadTls();
  /// From now on `handler` answers, with these headers (as ServerOptions::headers): who is
  /// connected stays so, and is shown to it. What the one before it was asked already it may be
  /// answering yet; both are borrowed until the server has stopped.
  void handOver(HttpHandler& handler, Pairs headers);
  /// Accepts nothing more, ends watches, lets answers out, joins the threads. May be called twice.
  void stop();

 private:
  HttpServer(const ServerOptions& options, HttpHandler& handler);

  const ServerOptions options_;
  std::unique_ptr<WorkLane> quick_;
  std::unique_ptr<WorkLane> slow_;
  std::unique_ptr<HttpLoop> loop_;
  std::thread thread_;
  uint16_t port_ = 0;
};

}  // namespace tidepool::api
