// SPDX-License-Identifier: Apache-2.0
// The seam between fetch tiers and the ways of reaching them: a queue of page reads and writes.
// A memory server's client implements it (client.h). Frames are page-sized places of a region.
#pragma once

#include <cstddef>
#include <span>

#include "runtime/base/result.h"
#include "runtime/base/units.h"

namespace tidepool {

/// `count` frames in a row from `first`.
struct FrameRun {
  FrameIndex first;
  PageCount count;
};

/// The end of one request on a FetchChannel.
struct FetchCompletion {
  uint64_t tag = 0;
  /// kLost, kUnreachable, kTimedOut or kStaleEpoch on failure, kCorrupt for a page that was sealed
  /// and does not verify; 0 (no code) on success.
  ErrorCode error = ErrorCode{};
  bool ok() const { return error == ErrorCode{}; }
};

/// A pipelined, ordered-by-arrival queue of reads and writes to one FetchTier. Owned and used by
/// one thread. Memory passed to submit*() is borrowed until the request completes. Requests are
/// answered in their order: a page that somebody waits for is asked for before what may come later,
/// or on a channel without long requests. They may be carried out twice if the connection breaks: a
/// frame is not to be written while a read of it is in flight.
class FetchChannel {
 public:
  /// Frames of one scattered request.
  static constexpr size_t kMostScattered = 256;
  virtual ~FetchChannel() = default;
  /// Queues one run; nothing need be sent before flush(). `tag` comes back in the completion.
  /// Errors: kUnreachable once the channel has failed (every request in flight then completes
  /// with an error, exactly once); kNoSpace when too many are in flight: poll(), then again.
  virtual Status submitRead(uint64_t tag, FrameRun run, std::byte* to) = 0;
  virtual Status submitWrite(uint64_t tag, FrameRun run, const std::byte* from) = 0;
  /// One request for single frames from anywhere, in any order: page i of the memory belongs to
  /// frames[i]. `frames` is read before the call returns; a frame that is written twice keeps the
  /// later page. Errors: as above, and kInvalidArgument unless there are 1 to kMostScattered.
  virtual Status submitReadScattered(uint64_t tag, std::span<const FrameIndex> frames,
                                     std::byte* to) = 0;
  virtual Status submitWriteScattered(uint64_t tag, std::span<const FrameIndex> frames,
                                      const std::byte* from) = 0;
  /// Finds out whether the peer is there, with a page that is in its frame already: sends the same
  /// bytes once more, or reads it. Others may be reading the frame. Errors: as above.
  virtual Status submitAgain(uint64_t tag, FrameIndex frame, const std::byte* from) {
    return submitWrite(tag, {frame, PageCount(1)}, from);
  }
  /// Starts sending what is queued; does not wait for the peer to take it.
  virtual Status flush() = 0;
  /// Sends and receives what it can without blocking; fills `out`, returns how many. While more
  /// completions are ready than fitted, timeToDeadline() is 0: do not sleep on fd() then.
  virtual size_t poll(std::span<FetchCompletion> out) = 0;
  /// A descriptor for poll(2), and the events (POLLIN, POLLOUT) to wait for now.
  virtual int fd() const = 0;
  virtual short events() const = 0;
  virtual size_t inFlight() const = 0;
  /// Now and then while nothing is in flight, so that a peer who is away then is not lost.
  virtual void tend() {}
  /// Time until the oldest request must be given up as timed out; poll() then fails it.
  virtual Nanoseconds timeToDeadline() const = 0;
};

}  // namespace tidepool
