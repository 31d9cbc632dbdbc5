// SPDX-License-Identifier: Apache-2.0
// Connection over TCP: no delay, gathered sends, scattered receives; sockets stay in blocking mode
// and each call says whether it waits, so one descriptor serves both styles. One owner thread each.
#include <arpa/inet.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "runtime/base/check.h"
#include "runtime/base/numbers.h"
#include "runtime/base/raw_calls.h"
#include "runtime/base/raw_thread.h"
#include "runtime/transport/connection.h"

namespace tidepool {
namespace {

class TcpConnection final : public Connection {
 public:
  explicit TcpConnection(UniqueFd socket) : socket_(std::move(socket)) {}

  Result<size_t> send(std::span<const iovec> parts, Wait wait) override {
    msghdr message = messageOf(parts);
    const int flags = MSG_NOSIGNAL | (wait == Wait::kNever ? MSG_DONTWAIT : 0);
    for (;;) {
      const ssize_t sent = raw::sendmsg(socket_.get(), &message, flags);
      if (sent >= 0) return static_cast<size_t>(sent);
      if (errno == EINTR) continue;
      return stopped("send to", wait);
    }
  }

  Result<size_t> receive(std::span<const iovec> parts, Wait wait) override {
    msghdr message = messageOf(parts);
    const int flags = wait == Wait::kNever ? MSG_DONTWAIT : 0;
    for (;;) {
      const ssize_t received = raw::recvmsg(socket_.get(), &message, flags);
      if (received > 0) return static_cast<size_t>(received);
      if (received == 0) return fail(ErrorCode::kUnreachable, "the peer closed the connection");
      if (errno == EINTR) continue;
      return stopped("receive from", wait);
    }
  }

  int fd() const override { return socket_.get(); }

 private:
  static msghdr messageOf(std::span<const iovec> parts) {
    TP_CHECK_OP(parts.size(), <=, kMaxParts);
    msghdr message = {};
    message.msg_iov = const_cast<iovec*>(parts.data());  // the kernel only reads the array
    message.msg_iovlen = parts.size();
    return message;
  }

  /// What an errno of sendmsg or recvmsg means to the caller.
  static Result<size_t> stopped(const char* what, Wait wait) {
    if (errno == EAGAIN || errno == EWOULDBLOCK) {
      if (wait == Wait::kNever) return size_t{0};
      return fail(ErrorCode::kTimedOut, "no answer from the peer in time");
    }
    return failErrno(ErrorCode::kUnreachable, "cannot %s the peer", what);
  }

  UniqueFd socket_;
};

void setOption(int socket, int level, int name, int value) {
  // All of these only tune; a kernel that refuses one still carries the bytes.
  (void)raw::setsockopt(socket, level, name, &value, sizeof value);
}

/// Buffer sizes are left alone: a fixed one would switch off the kernel's own tuning and is capped
/// lower (net.core.rmem_max) than what that reaches.
void tune(int socket) {
  setOption(socket, IPPROTO_TCP, TCP_NODELAY, 1);
  setOption(socket, SOL_SOCKET, SO_KEEPALIVE, 1);
  setOption(socket, IPPROTO_TCP, TCP_KEEPIDLE, 10);
  setOption(socket, IPPROTO_TCP, TCP_KEEPINTVL, 5);
  setOption(socket, IPPROTO_TCP, TCP_KEEPCNT, 3);
}

timeval toTimeval(Nanoseconds time) {
  // At least a microsecond: a zero timeout would mean none at all.
  const uint64_t microseconds = std::max<uint64_t>(1, time.value() / 1000);
  return {static_cast<time_t>(microseconds / 1'000'000),
          static_cast<suseconds_t>(microseconds % 1'000'000)};
}

/// Owns what getaddrinfo returns.
struct Addresses {
  addrinfo* first = nullptr;
  Addresses() = default;
  Addresses(Addresses&& other) noexcept : first(std::exchange(other.first, nullptr)) {}
  ~Addresses() {
    if (first != nullptr) freeaddrinfo(first);
  }
};

enum class Role : uint8_t { kConnect, kListen };

bool outOfDescriptors(int os_error) { return os_error == EMFILE || os_error == ENFILE; }

/// The peer has nothing to do with it.
Error noDescriptor(const Endpoint& target, int os_error) {
  if (os_error == ENFILE) {
    return Error::fromErrno(ErrorCode::kIo, os_error,
                            "cannot connect to %s:%s: the system has no file descriptor left "
                            "(sysctl fs.file-max)",
                            target.host, target.port);
  }
  rlimit limit{};
  (void)getrlimit(RLIMIT_NOFILE, &limit);
  return Error::fromErrno(
      ErrorCode::kIo, os_error,
      "cannot connect to %s:%s: this process has none of its %llu file descriptors left; raise "
      "the limit (ulimit -n)",
      target.host, target.port, static_cast<unsigned long long>(limit.rlim_cur));
}

Result<Addresses> resolve(const Endpoint& endpoint, Role role) {
  addrinfo hints = {};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICHOST | AI_NUMERICSERV | (role == Role::kListen ? AI_PASSIVE : 0);
  Addresses found;
  // Numeric first: it loads no name-service library into the program we live in.
  int status = getaddrinfo(endpoint.host, endpoint.port, &hints, &found.first);
  if (status == EAI_NONAME) {
    hints.ai_flags &= ~AI_NUMERICHOST;
    RawThread::haveLibcLock();  // a service thread may ask at the same time as one of the program's
    status = getaddrinfo(endpoint.host, endpoint.port, &hints, &found.first);
  }
  if (status == EAI_SYSTEM && outOfDescriptors(errno)) {
    return tl::unexpected(noDescriptor(endpoint, errno));
  }
  if (status != 0) {
    return fail(ErrorCode::kNotFound,
                "cannot find host %s: %s; check the spelling or use an address", endpoint.host,
                gai_strerror(status));
  }
  return found;
}

/// An address that needs no looking up. getaddrinfo() would allocate, in the midst of a program's
/// own allocator if Tidepool starts there, and in a child that the program may not have finished
/// making.
struct NumericAddress {
  sockaddr_storage storage = {};
  socklen_t size = 0;
};
std::optional<NumericAddress> numericAddress(const Endpoint& endpoint) {
  const auto port = wholeNumber(endpoint.port);
  if (!port || *port > UINT16_MAX) return std::nullopt;
  NumericAddress address;
  auto& four = reinterpret_cast<sockaddr_in&>(address.storage);
  if (inet_pton(AF_INET, endpoint.host, &four.sin_addr) == 1) {
    four.sin_family = AF_INET;
    four.sin_port = htons(static_cast<uint16_t>(*port));
    address.size = sizeof four;
    return address;
  }
  auto& six = reinterpret_cast<sockaddr_in6&>(address.storage);
  if (inet_pton(AF_INET6, endpoint.host, &six.sin6_addr) != 1) return std::nullopt;
  six.sin6_family = AF_INET6;
  six.sin6_port = htons(static_cast<uint16_t>(*port));
  address.size = sizeof six;
  return address;
}

/// Connects one socket, which is writable once that has come to an end; 0, or an errno value.
int beginConnecting(int socket, const sockaddr* address, socklen_t size) {
  if (raw::fcntl(socket, F_SETFL, O_NONBLOCK) != 0) return errno;
  return raw::connect(socket, address, size) == 0 || errno == EINPROGRESS ? 0 : errno;
}

/// How it went; 0, or an errno value.
int finishConnecting(int socket) {
  int error = 0;
  socklen_t size = sizeof error;
  if (raw::getsockopt(socket, SOL_SOCKET, SO_ERROR, &error, &size) != 0) return errno;
  if (error != 0) return error;
  return raw::fcntl(socket, F_SETFL, 0) == 0 ? 0 : errno;
}

int connectWithin(int socket, const sockaddr* address, socklen_t size, Nanoseconds timeout) {
  if (const int error = beginConnecting(socket, address, size)) return error;
  pollfd waiting = {socket, POLLOUT, 0};
  const auto milliseconds =
      static_cast<int>(std::clamp<uint64_t>(timeout.value() / 1'000'000, 1, 3'600'000));
  int ready;
  do {
    ready = raw::poll(&waiting, 1, milliseconds);
  } while (ready < 0 && errno == EINTR);
  return ready == 0 ? ETIMEDOUT : finishConnecting(socket);
}

/// Writes it in numbers. False: it does not fit.
bool printAddress(const sockaddr* address, socklen_t size, Endpoint& out) {
  return getnameinfo(address, size, out.host, sizeof out.host, out.port, sizeof out.port,
                     NI_NUMERICHOST | NI_NUMERICSERV) == 0;
}

/// The waiting of sends and receives on a new connection is bounded.
void limitWaits(int socket, Nanoseconds timeout) {
  const timeval limit = toTimeval(timeout);
  (void)raw::setsockopt(socket, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
  (void)raw::setsockopt(socket, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
}

/// A connection to one address. Invalid, and `error`, an errno value, if there is none.
UniqueFd connectTo(const sockaddr* address, socklen_t size, Nanoseconds timeout, int& error) {
  UniqueFd socket(raw::socket(address->sa_family, SOCK_STREAM | SOCK_CLOEXEC, IPPROTO_TCP));
  if (!socket.valid()) {
    error = errno;
    return {};
  }
  socket.keep();
  error = connectWithin(socket.get(), address, size, timeout);
  if (error != 0) return {};
  tune(socket.get());
  limitWaits(socket.get(), timeout);
  return socket;
}

ErrorCode listenCode(int os_error) {
  switch (os_error) {
    case EADDRINUSE:
      return ErrorCode::kConflict;
    case EACCES:
      return ErrorCode::kPermission;
    default:
      return ErrorCode::kInvalidArgument;
  }
}

}  // namespace

Result<Endpoint> parseEndpoint(const char* text) {
  const char* host = text;
  const char* colon = strrchr(text, ':');
  size_t host_size = colon == nullptr ? 0 : static_cast<size_t>(colon - text);
  if (host_size >= 2 && text[0] == '[' && colon[-1] == ']') {
    host = text + 1;
    host_size -= 2;
  } else if (colon != nullptr && memchr(text, ':', host_size) != nullptr) {
    host_size = 0;  // an IPv6 address without its brackets
  }
  Endpoint endpoint;
  const auto port = colon == nullptr ? std::nullopt : wholeNumber(colon + 1);
  if (host_size == 0 || host_size >= sizeof endpoint.host || !port || *port > 65535) {
    return fail(ErrorCode::kInvalidArgument,
                "'%s' is not HOST:PORT (such as 10.0.0.7:7777, memhost:7777 or [::1]:7777)", text);
  }
  memcpy(endpoint.host, host, host_size);
  const auto value = static_cast<unsigned>(*port);
  size_t digits_used = 0;
  for (unsigned divisor = 10000; divisor > 0; divisor /= 10) {
    if (value >= divisor || divisor == 1 || digits_used > 0) {
      endpoint.port[digits_used++] = static_cast<char>('0' + value / divisor % 10);
    }
  }
  return endpoint;
}

Result<std::unique_ptr<Connection>> connectTcp(const Endpoint& target, Nanoseconds timeout) {
  int error = EHOSTUNREACH;
  UniqueFd socket;
  if (const auto numeric = numericAddress(target)) {
    socket = connectTo(reinterpret_cast<const sockaddr*>(&numeric->storage), numeric->size, timeout,
                       error);
  } else {
    auto addresses = resolve(target, Role::kConnect);
    if (!addresses) return tl::unexpected(addresses.error());
    for (const addrinfo* at = addresses->first; at != nullptr && !socket.valid();
         at = at->ai_next) {
      socket = connectTo(at->ai_addr, at->ai_addrlen, timeout, error);
    }
  }
  if (socket.valid()) return std::unique_ptr<Connection>(new TcpConnection(std::move(socket)));
  if (outOfDescriptors(error)) return tl::unexpected(noDescriptor(target, error));
  return tl::unexpected(
      Error::fromErrno(error == ETIMEDOUT ? ErrorCode::kTimedOut : ErrorCode::kUnreachable, error,
                       "cannot connect to %s:%s (is `fabricmgr memserver` running there?)",
                       target.host, target.port));
}

Result<UniqueFd> beginTcp(const Endpoint& target) {
  const auto numeric = numericAddress(target);
  if (!numeric) return fail(ErrorCode::kNotFound, "%s is no address in numbers", target.host);
  const auto* const address = reinterpret_cast<const sockaddr*>(&numeric->storage);
  UniqueFd socket(raw::socket(address->sa_family, SOCK_STREAM | SOCK_CLOEXEC, IPPROTO_TCP));
  if (!socket.valid()) return tl::unexpected(noDescriptor(target, errno));
  socket.keep();
  if (const int error = beginConnecting(socket.get(), address, numeric->size)) {
    return tl::unexpected(Error::fromErrno(ErrorCode::kUnreachable, error,
                                           "cannot connect to %s:%s", target.host, target.port));
  }
  return socket;
}

Result<std::unique_ptr<Connection>> finishTcp(UniqueFd socket, Nanoseconds timeout) {
  if (const int error = finishConnecting(socket.get())) {
    return tl::unexpected(Error::fromErrno(ErrorCode::kUnreachable, error, "cannot connect"));
  }
  tune(socket.get());
  limitWaits(socket.get(), timeout);
  return std::unique_ptr<Connection>(new TcpConnection(std::move(socket)));
}

std::unique_ptr<Connection> adoptTcp(UniqueFd socket) {
  tune(socket.get());
  return std::unique_ptr<Connection>(new TcpConnection(std::move(socket)));
}

Result<UniqueFd> listenTcp(const Endpoint& at) {
  auto addresses = resolve(at, Role::kListen);
  if (!addresses) return tl::unexpected(addresses.error());
  int error = EADDRNOTAVAIL;
  for (const addrinfo* one = addresses->first; one != nullptr; one = one->ai_next) {
    UniqueFd socket(raw::socket(one->ai_family, one->ai_socktype | SOCK_CLOEXEC | SOCK_NONBLOCK,
                                one->ai_protocol));
    if (!socket.valid()) {
      error = errno;
      continue;
    }
    setOption(socket.get(), SOL_SOCKET, SO_REUSEADDR, 1);
    if (raw::bind(socket.get(), one->ai_addr, one->ai_addrlen) == 0 &&
        raw::listen(socket.get(), SOMAXCONN) == 0) {
      return socket;
    }
    error = errno;
  }
  return tl::unexpected(
      Error::fromErrno(listenCode(error), error, "cannot listen on %s:%s", at.host, at.port));
}

Result<Endpoint> peerOf(int socket) {
  sockaddr_storage address = {};
  socklen_t size = sizeof address;
  Endpoint peer;
  if (raw::getpeername(socket, reinterpret_cast<sockaddr*>(&address), &size) != 0 ||
      !printAddress(reinterpret_cast<sockaddr*>(&address), size, peer)) {
    return fail(ErrorCode::kIo, "cannot read the peer's address of a socket");
  }
  return peer;
}

Result<Endpoint> inNumbers(const Endpoint& endpoint) {
  auto addresses = resolve(endpoint, Role::kConnect);
  if (!addresses) return tl::unexpected(addresses.error());
  const addrinfo* const first = addresses->first;
  Endpoint numeric;
  if (first == nullptr || !printAddress(first->ai_addr, first->ai_addrlen, numeric)) {
    return fail(ErrorCode::kNotFound, "host %s has no address", endpoint.host);
  }
  return numeric;
}

Result<uint16_t> boundPort(int socket) {
  sockaddr_storage address = {};
  socklen_t size = sizeof address;
  if (raw::getsockname(socket, reinterpret_cast<sockaddr*>(&address), &size) != 0) {
    return failErrno(ErrorCode::kIo, "cannot read the address of a socket");
  }
  const in_port_t port = address.ss_family == AF_INET6
                             ? reinterpret_cast<const sockaddr_in6&>(address).sin6_port
                             : reinterpret_cast<const sockaddr_in&>(address).sin_port;
  return ntohs(port);
}

}  // namespace tidepool
