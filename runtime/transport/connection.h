// SPDX-License-Identifier: Apache-2.0
// The seam between the protocol and the wire: an ordered byte stream with gathered sends and
// scattered receives. TCP is the one kind; RDMA moves pages beside it (page_lane.h). A Connection
// belongs to one thread at a time. Nothing here allocates after set-up.
#pragma once

#include <sys/uio.h>

#include <cstdint>
#include <memory>
#include <span>

#include "runtime/base/result.h"
#include "runtime/base/unique_fd.h"
#include "runtime/base/units.h"

namespace tidepool {

/// What to do when nothing can be moved at once.
enum class Wait : uint8_t { kNever, kUntilTimeout };

class Connection {
 public:
  virtual ~Connection() = default;
  /// Sends from the front of `parts`, returns the bytes taken: 0 when the peer's window is full
  /// (Wait::kNever). At most kMaxParts parts. Errors: kUnreachable when the peer has gone,
  /// kTimedOut.
  virtual Result<size_t> send(std::span<const iovec> parts, Wait wait) = 0;
  /// Receives into `parts` in order, returns the bytes: 0 when none are there (Wait::kNever).
  /// Errors: kUnreachable when the peer has gone or has closed, kTimedOut.
  virtual Result<size_t> receive(std::span<const iovec> parts, Wait wait) = 0;
  /// A descriptor to wait on with poll(2) or epoll.
  virtual int fd() const = 0;

  // The pages of a scattered request, and some headers.
  static constexpr size_t kMaxParts = 320;
};

/// Sends, or fills, all of `bytes`, waiting until `deadline` (on kMonotonicClock) at most, however
/// many pieces it takes. Errors: those of the connection, kTimedOut: it is of no more use.
Status sendAll(Connection& connection, std::span<const std::byte> bytes, Nanoseconds deadline);
Status receiveAll(Connection& connection, std::span<std::byte> bytes, Nanoseconds deadline);

/// HOST:PORT, IPv6 in brackets. Plain values.
struct Endpoint {
  char host[96] = {};
  char port[8] = {};
};
/// Errors: kInvalidArgument, with the accepted form.
Result<Endpoint> parseEndpoint(const char* text);

/// The same with an address in numbers for a host. May ask a name service, and wait for it. Errors:
/// kNotFound for unknown hosts.
Result<Endpoint> inNumbers(const Endpoint& endpoint);

/// Connects within `timeout`, which then also bounds each waiting send and receive. Errors:
/// kUnreachable and kTimedOut, naming the target and what to check; kNotFound for unknown hosts;
/// kIo without a file descriptor left.
Result<std::unique_ptr<Connection>> connectTcp(const Endpoint& target, Nanoseconds timeout);
/// Begins to connect to an address in numbers, and does not wait: poll(2) says that the socket is
/// writable once finishTcp() can tell how it went. Errors: kUnreachable, with the errno value; kIo
/// without a descriptor; kNotFound for a name.
Result<UniqueFd> beginTcp(const Endpoint& target);
/// The connection that beginTcp() began; `timeout` bounds each waiting send and receive. Errors:
/// kUnreachable, with the errno value.
Result<std::unique_ptr<Connection>> finishTcp(UniqueFd socket, Nanoseconds timeout);
/// Wraps an accepted socket. Waiting sends and receives on it wait without limit.
std::unique_ptr<Connection> adoptTcp(UniqueFd socket);
/// A non-blocking listening socket. Errors: kConflict when the address is taken, kPermission,
/// kInvalidArgument.
Result<UniqueFd> listenTcp(const Endpoint& at);
/// The other end of a connected socket, in numbers. Errors: kIo.
Result<Endpoint> peerOf(int socket);
/// The port a socket is bound to. Errors: kIo.
Result<uint16_t> boundPort(int socket);

}  // namespace tidepool
