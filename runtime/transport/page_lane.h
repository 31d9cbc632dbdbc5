// SPDX-License-Identifier: Apache-2.0
// The seam between a client and what moves the bytes of pages and rows past the server's processor:
// RDMA verbs (verbs/verbs_lane.h), a double in tests. A lane belongs to one client and its thread.
// Offsets are bytes of the region. Nothing here allocates after connect().
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "runtime/base/result.h"
#include "runtime/base/units.h"
#include "runtime/transport/connection.h"
#include "runtime/transport/wire.h"

namespace tidepool {

/// A run of bytes that moves in one go: pages, or rows that lie one behind the other. At most
/// PageLane::kMostPiece of them.
struct LanePiece {
  enum class Direction : uint8_t { kRead, kWrite };
  Direction direction = Direction::kRead;
  uint64_t offset = 0;
  std::byte* memory = nullptr;  // only read for kWrite
  uint32_t bytes = 0;
};

class PageLane {
 public:
  static constexpr uint32_t kMostPiece = 64 * kKiB;
  virtual ~PageLane() = default;
  /// Takes one piece, to be started by post(). False: no room until reap() has returned something.
  /// What it reads from memory it has read when post() returns; what it writes there it writes in
  /// reap().
  virtual bool add(const LanePiece& piece) = 0;
  /// kTold: fd() becomes readable when some of what is under way ends. kLookedFor: that is said
  /// only from the next reap() on, so the caller does not sleep before; it spares the device and
  /// the kernel an event that nobody waits for.
  enum class Ends : uint8_t { kTold, kLookedFor };
  /// Starts what was added. Errors: kUnreachable: the lane is of no more use.
  virtual Status post(Ends ends) = 0;
  /// Bytes of pieces that have ended since, always the oldest, in the order of add(): a piece takes
  /// effect as if alone, after those before it. When it returns 0, fd() becomes readable with the
  /// next end. Errors: kUnreachable as post(); which of the pieces not returned yet took effect is
  /// not known.
  virtual Result<uint64_t> reap() = 0;
  /// Looks for an end for as long as that is cheaper than to sleep: not at all where processors are
  /// few, or ends take long. True: reap() has something.
  virtual bool lookout() = 0;
  virtual int fd() const = 0;
  /// Becomes readable when the lane itself has come to an end, which reap() then tells; -1: a lane
  /// that has no such descriptor.
  virtual int endFd() const { return -1; }
};

/// What a lane is made for: few long pieces, or many short ones.
enum class LaneLoad : uint8_t { kFewLong, kManyShort };

/// Makes lanes.
class LaneSource {
 public:
  virtual ~LaneSource() = default;
  /// Whether this process can have lanes at all. Errors: kUnsupported, with the reason.
  virtual Status usable() = 0;
  /// `server` is numeric. Errors: kUnreachable, kTimedOut, kUnsupported, kNoMemory.
  virtual Result<std::unique_ptr<PageLane>> connect(const Endpoint& server,
                                                    const wire::LaneOffer& offer, LaneLoad load,
                                                    Nanoseconds timeout) = 0;
};

}  // namespace tidepool
