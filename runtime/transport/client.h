// SPDX-License-Identifier: Apache-2.0
// One client connection to a memory server: a ring of requests in flight, sent in gathered batches
// and answered in order, page payloads received straight into the caller's memory. Owned and used
// by one thread; allocates at connect() only. Offsets and lengths are bytes within the region.
// Where both ends have RDMA, reads and writes of pages, and of rows where that is wanted, take a
// lane of their own, past the server's processor; the connection stays for the rest, and for them
// too once the lane has failed.
#pragma once

#include <cstddef>
#include <memory>
#include <span>

#include "runtime/base/clock.h"
#include "runtime/base/mapping.h"
#include "runtime/base/result.h"
#include "runtime/base/unique_fd.h"
#include "runtime/base/units.h"
#include "runtime/options.h"
#include "runtime/transport/connection.h"
#include "runtime/transport/fetch_channel.h"
#include "runtime/transport/page_lane.h"
#include "runtime/transport/transport_census.h"
#include "runtime/transport/wire.h"

namespace tidepool {

/// Who gathers and scatters rows: the server's processor, or a lane if there is one.
enum class RowsBy : uint8_t { kServer, kLane };

struct ClientOptions {
  Nanoseconds timeout = Nanoseconds(5'000'000'000);
  /// Requests that may be in flight; rounded up to a power of two.
  uint32_t max_in_flight = 1024;
  Transport transport = Transport::kTcp;
  RowsBy rows = RowsBy::kServer;
  /// Where lanes come from, borrowed; null: RDMA verbs.
  LaneSource* lanes = nullptr;
  /// Counts how this client's pages travel, borrowed for its life; null: nobody asks.
  TransportCensus* census = nullptr;
  const Clock* clock = &kMonotonicClock;
};

/// The memory of a request is borrowed until its completion has been returned.
class RemoteClient {
 public:
  /// Connects and shakes hands. Errors: kUnreachable, kTimedOut, kNotFound, kNoSpace (the server
  /// is full), kPermission (wrong token), kStaleEpoch, kLost (the region is gone), kUnsupported.
  static Result<std::unique_ptr<RemoteClient>> connect(const Endpoint& target,
                                                       const wire::ClientHello& hello,
                                                       const ClientOptions& options);
  ~RemoteClient();
  RemoteClient(const RemoteClient&) = delete;
  RemoteClient& operator=(const RemoteClient&) = delete;

  /// What the server said: the region, its token, epoch and capacity.
  const wire::ServerHello& region() const { return region_; }

  // Each queues one request; `tag` comes back in its completion. Errors: kNoSpace when
  // max_in_flight requests are (poll() first), kUnreachable once the client has failed,
  // kInvalidArgument for what the protocol cannot carry.
  Status submitRead(uint64_t tag, Bytes offset, std::span<std::byte> to);
  Status submitWrite(uint64_t tag, Bytes offset, std::span<const std::byte> from);
  Status submitDiscard(uint64_t tag, Bytes offset, Bytes length);
  Status submitPing(uint64_t tag);
  /// `to` receives wire::kStatSize bytes for wire::decodeStat().
  Status submitStat(uint64_t tag, std::span<std::byte, wire::kStatSize> to);
  /// Gathers rows of `row` bytes from `offsets` (any byte) into `to`, in their order.
  Status submitReadRows(uint64_t tag, std::span<const uint64_t> offsets, Bytes row,
                        std::span<std::byte> to);
  /// Scatters the rows of `from` to `offsets`. Where two rows overlap the later one wins.
  Status submitWriteRows(uint64_t tag, std::span<const uint64_t> offsets, Bytes row,
                         std::span<const std::byte> from);

  /// Sends what is queued as far as the peer takes it now. Errors: kUnreachable.
  Status flush();
  /// Sends and receives without blocking; fills `out`, returns how many. Call again while it
  /// fills all of `out`.
  size_t poll(std::span<FetchCompletion> out);
  /// Blocks until one request completes. Something must be in flight.
  FetchCompletion wait();

  int fd() const { return lane_events_.valid() ? lane_events_.get() : connection_->fd(); }
  /// The server, in numbers. Errors: kIo.
  Result<Endpoint> peer() const { return peerOf(connection_->fd()); }
  /// How pages travel just now.
  Transport pagesBy() const { return lane_ != nullptr ? Transport::kVerbs : Transport::kTcp; }
  /// From the next request on.
  void setRows(RowsBy by) { options_.rows = by; }
  /// POLLIN, and POLLOUT while something is queued that the peer would not take.
  short events() const;
  size_t inFlight() const { return tail_ - head_; }
  /// A power of two.
  uint64_t mostInFlight() const { return most_in_flight_; }
  /// Requests so far. They end in their order.
  uint64_t submitted() const { return submitted_; }
  /// Time until poll() gives the oldest request up; 0 when poll() has something to return now.
  /// Without requests in flight, the whole timeout.
  Nanoseconds timeToDeadline() const;
  /// True once the connection is lost; then `reason()` says why.
  bool failed() const { return failure_ != ErrorCode{}; }
  const char* reason() const { return reason_; }

 private:
  struct Slot;
  struct Expected;
  /// Answers that one receive puts in place, and the bytes that these may have in all unless it is
  /// one alone.
  static constexpr size_t kMostExpected = 16;
  static constexpr size_t kMostScattered = kMiB;
  RemoteClient(std::unique_ptr<Connection> connection, const ClientOptions& options);
  Status setUp();
  Status shakeHands(const Endpoint& target, const wire::ClientHello& hello);
  Slot& slot(uint64_t index) const;
  LaneSource* lanes() const;
  Status tryLane(const Endpoint& target);
  enum class Tell : uint8_t { kStatistics, kLine };
  Status useStream(const Endpoint& target, const char* reason, Tell tell);
  Result<wire::LaneOffer> askForLane();
  Status watchLane();
  void watchStream();
  bool inLane() const { return way_ == Way::kLane; }
  bool mayStart(const Slot& next);
  Status start(PageLane::Ends ends);
  bool laneHolds(const wire::Request& request, std::span<const std::byte> offsets) const;
  LanePiece nextPiece() const;
  Result<bool> sendParts();
  Result<bool> addPieces(PageLane::Ends ends);
  size_t pollStream(std::span<FetchCompletion> out);
  size_t pollLane(std::span<FetchCompletion> out);
  bool streamSpoke();
  void leaveLane(const Error& error);
  void sleepUntilReady();
  Status queue(wire::Request request, std::span<const std::byte> first,
               std::span<const std::byte> second, std::span<std::byte> to);
  size_t gather(std::span<iovec> parts) const;
  void advanceSent(size_t bytes);
  size_t failedCompletions(std::span<FetchCompletion> out);
  bool answerBuffered() const;
  Result<bool> takeAnswer(FetchCompletion& out);
  Result<bool> beginAnswer(FetchCompletion& out);
  Result<bool> fill(Wait wait);
  Expected expect();
  Result<bool> fillInPlace(Wait wait);
  static bool goodAnswer(const std::byte* header, const Slot& expected);
  void takeBack(const Expected& expected, size_t from, size_t left);
  std::byte* readAhead() const;
  Result<bool> fillBuffer(Wait wait);
  size_t bufferedBytes() const { return buffer_end_ - buffer_begin_; }
  void failAll(const Error& error);
  void noteProgress();

  std::unique_ptr<Connection> connection_;
  ClientOptions options_;
  const LaneLoad load_;  // what the connection was made for: options_.rows may change later
  wire::ServerHello region_;
  ErrorCode failure_ = ErrorCode{};
  char reason_[232] = {};

  // Ring of slots: [head_, sent_) are on the wire, [sent_, tail_) still to be sent; sent_offset_
  // bytes of slot sent_ have gone. Indices only grow; slot(i) is ring entry i modulo its size.
  Mapping ring_;
  uint64_t ring_mask_ = 0;
  uint64_t most_in_flight_ = 0;
  uint64_t head_ = 0;
  uint64_t sent_ = 0;
  uint64_t tail_ = 0;
  uint64_t submitted_ = 0;
  size_t sent_offset_ = 0;
  Nanoseconds last_progress_;

  // Requests that are on their way at one time all go the same way, so that they take effect and
  // end in their order; way_ is theirs, or the last one's.
  enum class Way : uint8_t { kStream, kLane };
  Way way_ = Way::kStream;
  uint64_t lane_done_ = 0;    // bytes that have ended in the lane, from slot head_ on
  uint64_t lane_length_ = 0;  // of the region, that the lane reaches
  UniqueFd lane_events_;      // epoll of the connection and the lane; outlives the lane
  bool stream_full_ = false;  // what lane_events_ waits for, too
  bool lane_quiet_ = false;   // the last look into the lane found nothing
  std::unique_ptr<PageLane> lane_;
  TransportCensus::Place counted_;

  // Good answers that are wholly in place, from slot head_ on. When in_payload_, payload_done_
  // bytes of the one after these are. Received bytes that are not placed yet are [buffer_begin_,
  // buffer_end_) of buffer_.
  uint32_t ready_ = 0;
  std::byte headers_[kMostExpected * wire::kResponseSize];
  Mapping buffer_;
  size_t buffer_begin_ = 0;
  size_t buffer_end_ = 0;
  bool in_payload_ = false;
  bool socket_empty_ = false;  // the last receive of this poll() brought less than it could have
  uint32_t payload_done_ = 0;
};

}  // namespace tidepool
