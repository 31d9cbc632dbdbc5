// SPDX-License-Identifier: Apache-2.0
// One client connection to a memory server: a ring of requests in flight, sent in gathered batches
// and answered in order, page payloads received straight into the caller's memory. Used by one
// thread at a time; allocates at connect() only. Offsets and lengths are bytes within the region.
// A connection that breaks is made again where that is wanted, and what was not answered is sent
// again: with the server's help nothing of the old connection takes effect after that, and the
// caller keeps others off the pages. Where both ends have RDMA, reads and writes of pages, and of
// rows where that is wanted, take a lane of their own, past the server's processor; the connection
// stays for the rest, and for them too once the lane has failed.
#pragma once

#include <poll.h>

#include <cstddef>
#include <memory>
#include <span>
#include <utility>

#include "runtime/base/clock.h"
#include "runtime/base/result.h"
#include "runtime/base/units.h"
#include "runtime/options.h"
#include "runtime/transport/answer_reader.h"
#include "runtime/transport/client_lane.h"
#include "runtime/transport/connection.h"
#include "runtime/transport/fetch_channel.h"
#include "runtime/transport/page_lane.h"
#include "runtime/transport/reconnection.h"
#include "runtime/transport/request_ring.h"
#include "runtime/transport/transport_census.h"
#include "runtime/transport/wire.h"
#include "runtime/transport/write_record.h"

namespace tidepool {

struct ClientOptions {
  Nanoseconds timeout = Nanoseconds(5'000'000'000);
  /// How long a connection that breaks, or brings nothing for `timeout`, is tried to be made again;
  /// requests wait meanwhile. 0: it is not.
  Nanoseconds reconnect = Nanoseconds(0);
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

  /// From now on the client notes its writes there. Before the first request.
  void recordWrites(std::unique_ptr<WriteRecord> record) { record_ = std::move(record); }

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
  /// Whether to receive from the connection first, or to look at what has been received alone.
  enum class Look : uint8_t { kReceive, kReceived };
  /// Sends and receives without blocking; fills `out`, returns how many. Call again while it
  /// fills all of `out`.
  size_t poll(std::span<FetchCompletion> out, Look look = Look::kReceive);
  /// Now and then while nothing is in flight: a connection that breaks then is made again, too.
  void tend();
  /// Blocks until one request completes. Something must be in flight.
  FetchCompletion wait();

  /// One sleep of wait()'s, or one receive.
  class Rest {
   public:
    /// Does not touch the client.
    void take();

   private:
    friend class RemoteClient;
    enum class Kind : uint8_t { kNone, kReceive, kPoll };
    Kind kind = Kind::kNone;
    Wait wait = Wait::kNever;
    Connection* connection = nullptr;
    AnswerReader::Expected into;
    Result<size_t> received = size_t{0};
    pollfd waiting = {};
    int milliseconds = 0;
  };
  // What wait() repeats, for several threads that use the client by turns: one begins, takes and
  // ends a rest, and then calls poll() as endRest() says. While it is taken others may submit
  // and flush(), but not poll, wait or rest. Something must be in flight. kNever: without blocking.
  Rest beginRest(Wait wait);
  Look endRest(const Rest& rest);
  /// Whether the last receive brought less than it could have: there is no more just now.
  bool drained() const { return answers_.drained(); }

  int fd() const {
    if (away()) return reconnection_.fd();
    return lane_.fd() >= 0 ? lane_.fd() : connection_->fd();
  }
  /// The server, in numbers. Errors: kIo.
  Result<Endpoint> peer() const { return peerOf(connection_->fd()); }
  /// How pages travel just now.
  Transport pagesBy() const { return lane_.isOpen() ? Transport::kVerbs : Transport::kTcp; }
  /// From the next request on.
  void setRows(RowsBy by) { options_.rows = by; }
  /// POLLIN, and POLLOUT while something is queued that the peer would not take.
  short events() const;
  size_t inFlight() const { return requests_.size(); }
  /// A power of two.
  uint64_t mostInFlight() const { return requests_.most(); }
  /// Requests so far. They end in their order.
  uint64_t submitted() const { return submitted_; }
  /// Time until poll() has something to do by itself, such as to give the oldest request up; 0 when
  /// it has something to return now.
  /// Without requests in flight, the whole timeout.
  Nanoseconds timeToDeadline() const;
  /// True once the connection is lost for good; then `reason()` says why.
  bool failed() const { return failure_ != ErrorCode{}; }
  const char* reason() const { return reason_; }

 private:
  RemoteClient(std::unique_ptr<Connection> connection, const ClientOptions& options);
  Status setUp(const Endpoint& target, const wire::ClientHello& hello);
  Status prepareReturn(const Endpoint& target, const wire::ClientHello& hello);
  Status openLane(const Endpoint& target, LaneSource& source, const Status& usable);
  enum class Tell : uint8_t { kStatistics, kLine };
  Status useStream(const Endpoint& target, const char* reason, Tell tell);
  bool inLane() const { return requests_.way() == RequestRing::Way::kLane; }
  Status queue(Result<wire::Request> request, std::span<const std::byte> first,
               std::span<const std::byte> second, std::span<std::byte> to);
  Status start(PageLane::Ends ends);
  Result<bool> sendParts();
  Rest restUntilPoll() const;
  size_t pollStream(std::span<FetchCompletion> out, Look look);
  size_t pollLane(std::span<FetchCompletion> out);
  bool streamSpoke();
  void leaveLane(const Error& error);
  size_t failedCompletions(std::span<FetchCompletion> out);
  bool answered() const;
  /// Has broken, and is being made again.
  bool away() const { return reconnection_.underWay(); }
  void lose(const Error& error);
  void comeBack();
  void failAll(const Error& error);
  void noteProgress() { last_progress_ = options_.clock->now(); }
  void noteWrite();
  void noteWritesEnded();
  void giveUpWrites();

  std::unique_ptr<Connection> connection_;
  ClientOptions options_;
  const LaneLoad load_;  // what the connection was made for: options_.rows may change later
  wire::ServerHello region_;
  ErrorCode failure_ = ErrorCode{};
  char reason_[232] = {};

  RequestRing requests_;
  uint64_t submitted_ = 0;
  std::unique_ptr<WriteRecord> record_;  // null: nobody wants to know
  bool writing_ = false;                 // as it says there
  uint64_t last_write_ = 0;              // how many had been submitted with it
  Nanoseconds last_progress_;
  AnswerReader answers_{requests_};
  ClientLane lane_{requests_};
  bool lane_quiet_ = false;  // the last look into the lane found nothing
  Reconnection reconnection_;
  TransportCensus::Place counted_;
};

}  // namespace tidepool
