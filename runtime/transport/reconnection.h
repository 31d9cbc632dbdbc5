// SPDX-License-Identifier: Apache-2.0
// Makes a client's broken connection to a memory server again, without blocking: it connects,
// shakes hands so that the server ends the old connection first, and tries again until too much
// time has gone by or the server says no. Owned and used by one thread; only a new connection
// allocates.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "runtime/base/result.h"
#include "runtime/base/unique_fd.h"
#include "runtime/base/units.h"
#include "runtime/transport/connection.h"
#include "runtime/transport/wire.h"

namespace tidepool {

class Reconnection {
 public:
  struct Plan {
    Endpoint server;         // in numbers
    wire::ServerHello made;  // what the connection that may break was answered
    Nanoseconds timeout;     // of the new connection
    Nanoseconds limit;       // how long to try
  };
  /// A connection that breaks may be made again, if the server can replace it.
  void allow(const Plan& plan);
  bool allowed() const { return allowed_; }
  const Endpoint& server() const { return plan_.server; }
  /// The number of the connection that there is, or was last; 0: it has none.
  uint32_t connection() const { return plan_.made.connection; }
  /// When it broke last.
  Nanoseconds since() const { return since_; }

  bool underWay() const { return state_ != State::kNone; }
  /// The connection has broken because of `cause`.
  void begin(const Error& cause, Nanoseconds now);
  /// Goes on as far as it can. The new connection, or null while there is none yet. Errors: those
  /// of the cause once the time is over, or nobody listens there any more; kLost when the region is
  /// gone, kStaleEpoch, kPermission. It has ended then.
  Result<std::unique_ptr<Connection>> advance(Nanoseconds now);
  /// For poll(2), while it is under way; -1 between two tries.
  int fd() const { return greeted_ != nullptr ? greeted_->fd() : socket_.get(); }
  short events() const;
  /// Until advance() has something to do though nothing has come.
  Nanoseconds timeToNext(Nanoseconds now) const {
    const Nanoseconds next = std::min(next_, end_);
    return now >= next ? Nanoseconds(0) : next - now;
  }

 private:
  enum class State : uint8_t { kNone, kPause, kConnecting, kGreeting };
  /// What has become of a try.
  enum class Step : uint8_t { kFurther, kWaits, kFailed, kRefused, kDone };

  Step step(Nanoseconds now);
  Step connect(Nanoseconds now);
  Step finishConnecting(Nanoseconds now);
  Step greet();
  Step judge();
  bool over(Step outcome, Nanoseconds now);
  void pause(Nanoseconds now);

  Plan plan_{};
  bool allowed_ = false;
  State state_ = State::kNone;
  Error cause_ = Error::make(ErrorCode::kUnreachable, "not connected");  // what it ends with
  Nanoseconds since_;
  Nanoseconds end_;                                  // of the trying
  Nanoseconds next_;                                 // end of the pause, or of the try
  Nanoseconds refused_since_;                        // 0: the last try was not
  UniqueFd socket_;                                  // that is connecting
  std::unique_ptr<Connection> greeted_;              // that has: the server is to answer
  std::array<std::byte, wire::kHelloSize> hello_{};  // sent or received so far: hello_done_ bytes
  size_t hello_done_ = 0;
  bool said_ = false;
};

}  // namespace tidepool
