// SPDX-License-Identifier: Apache-2.0
// The seam between those who keep tables of rows in far memory and the ways of reaching them: a
// queue of reads and writes of many rows each, named by their numbers. As FetchChannel, which does
// the same for pages. Sizes are bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "runtime/base/result.h"
#include "runtime/base/units.h"
#include "runtime/transport/fetch_channel.h"

namespace tidepool {

/// Where rows lie: `rows` of them, `row` bytes each, one after the other in adjacent frames of a
/// tier, the first one `offset` bytes behind the beginning of the first frame.
struct RowArea {
  static constexpr Bytes kLeastRow = Bytes(16);
  static constexpr Bytes kMostRow = Bytes(64 * kKiB);
  /// Of rows that are longer than a page.
  static constexpr Bytes kAlignment = Bytes(16);

  FrameRun frames;
  Bytes offset;
  Bytes row;
  uint64_t rows = 0;
};

/// A pipelined queue of reads and writes of one RowArea. Requests take effect in the order in which
/// they were submitted: a read sees the writes before it on the same channel, and may see later
/// ones if its connection breaks and is made again. Between channels there is no order. Used by one
/// thread at a time, whichever. Row numbers are copied by submit*(), the memory of rows is borrowed
/// until the request completes. A channel that is closed waits for what it has in flight.
class RowChannel {
 public:
  virtual ~RowChannel() = default;

  /// Rows that one request may name. At least 64.
  virtual size_t mostRows() const = 0;
  virtual const RowArea& area() const = 0;

  // Each queues one request; nothing need be sent before flush(). `tag` comes back in the
  // completion. Errors, after which nothing is queued: kInvalidArgument for a number beyond the
  // area (the text names it), for no rows and for more than mostRows(); kNoSpace when too many are
  // in flight: poll(), then again; kUnreachable once the channel has failed; kLost when the tier's
  // frames were taken away.

  /// The rows land in `to` one after the other, in the order of their numbers. What is in `to`
  /// after a completion with an error is not to be used.
  virtual Status submitRead(uint64_t tag, std::span<const uint64_t> rows, std::byte* to) = 0;
  /// Of a row that is named twice the later one in `from` stays. After a completion with an error
  /// each of the rows may have been written or not.
  virtual Status submitWrite(uint64_t tag, std::span<const uint64_t> rows,
                             const std::byte* from) = 0;

  /// Sends what is queued as far as the peer takes it now. Errors: kUnreachable.
  virtual Status flush() = 0;
  /// Sends and receives what it can without blocking; fills `out`, returns how many. Once the
  /// connection is lost every request in flight completes with an error, exactly once.
  virtual size_t poll(std::span<FetchCompletion> out) = 0;
  /// Blocks until one request completes. Something must be in flight.
  virtual FetchCompletion wait() = 0;
  virtual size_t inFlight() const = 0;
  /// True once the connection is lost; then `reason()` says why. The way on is a new channel.
  virtual bool failed() const = 0;
  virtual const char* reason() const = 0;
};

}  // namespace tidepool
