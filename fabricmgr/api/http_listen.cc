// SPDX-License-Identifier: Apache-2.0
// HttpLoop's listening sockets: a Unix socket that replaces the file of a dead server, and TCP.
#include <fcntl.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <cerrno>
#include <cstring>

#include "fabricmgr/api/http_loop.h"
#include "runtime/transport/connection.h"

namespace tidepool::api {
namespace {

/// Connects as a client would: kept by somebody (or not to be known) is a conflict.
Status checkNobodyServes(const sockaddr_un& address) {
  const UniqueFd probe(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  const auto* where = reinterpret_cast<const sockaddr*>(&address);
  if (connect(probe.get(), where, sizeof address) == 0 || errno == EAGAIN) {
    return fail(ErrorCode::kConflict, "another process serves '%s': stop it, or use another path",
                address.sun_path);
  }
  if (errno == ENOENT) return {};
  if (errno == ECONNREFUSED) {
    struct stat about;
    if (lstat(address.sun_path, &about) != 0 || !S_ISSOCK(about.st_mode)) {
      return fail(ErrorCode::kConflict, "'%s' exists and is not a socket", address.sun_path);
    }
    unlink(address.sun_path);
    return {};
  }
  return failErrno(errno == EACCES ? ErrorCode::kPermission : ErrorCode::kInvalidArgument,
                   "cannot use '%s' as a socket", address.sun_path);
}

}  // namespace

Status HttpLoop::listenUnix(const UnixListener& listener) {
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  if (listener.path.empty() || listener.path.size() >= sizeof address.sun_path) {
    return fail(ErrorCode::kInvalidArgument,
                "'%s' cannot be the path of a socket: it has to have 1 to %zu bytes",
                listener.path.c_str(), sizeof address.sun_path - 1);
  }
  memcpy(address.sun_path, listener.path.c_str(), listener.path.size() + 1);
  TP_TRY(checkNobodyServes(address));
  UniqueFd socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (bind(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0 ||
      chmod(address.sun_path, listener.mode) != 0 || ::listen(socket.get(), SOMAXCONN) != 0) {
    return failErrno(errno == EADDRINUSE ? ErrorCode::kConflict : ErrorCode::kPermission,
                     "cannot listen on '%s'", address.sun_path);
  }
  peer_rules_ = listener.rules;
  return addListener(std::move(socket), Kind::kUnix);
}

Result<uint16_t> HttpLoop::listenTls(const TcpListener& listener, std::shared_ptr<TlsContext> tls) {
  const auto endpoint = parseEndpoint(listener.address.c_str());
  if (!endpoint) return tl::unexpected(endpoint.error());
  auto socket = listenTcp(*endpoint);
  if (!socket) return tl::unexpected(socket.error());
  const auto port = boundPort(socket->get());
  if (!port) return tl::unexpected(port.error());
  tls_ = std::move(tls);
  handler_->tlsInUse(tls_->expiries());
  TP_TRY(addListener(std::move(*socket), Kind::kTls));
  return *port;
}

}  // namespace tidepool::api
