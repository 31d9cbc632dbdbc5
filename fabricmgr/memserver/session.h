// SPDX-License-Identifier: Apache-2.0
// One client connection of the memory server: a state machine driven by readiness, that moves
// payloads between the socket and the region without a copy of its own. Requests are served in
// order. Owned by one worker thread, which makes every call; the region may be shared.
#pragma once

#include <array>
#include <atomic>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "fabricmgr/memserver/connections.h"
#include "fabricmgr/memserver/lane_opener.h"
#include "fabricmgr/memserver/populator.h"
#include "fabricmgr/memserver/region_table.h"
#include "runtime/base/mapping.h"
#include "runtime/transport/connection.h"
#include "runtime/transport/wire.h"

namespace tidepool::memserver {

/// Counters of the whole server. Relaxed: each is exact, together they are no snapshot.
struct Counters {
  std::atomic<uint64_t> connections{0};
  std::atomic<uint64_t> requests{0};
  std::atomic<uint64_t> malformed{0};
};

/// What the worker should wait for next.
enum class Next : uint8_t { kReadable, kWritable, kAgain, kClose };

/// What all sessions share. Borrowed.
struct SessionShared {
  RegionTable& regions;
  Counters& counters;
  Connections& connections;
  LaneOpener* lanes = nullptr;     // null: all goes over the connection
  Populator* populator = nullptr;  // null: memory comes with the first write to it
};

class Session {
 public:
  Session(std::unique_ptr<Connection> connection, std::string peer, const SessionShared& shared,
          Nanoseconds now);
  ~Session();
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  /// Does what can be done without blocking. kAgain: more is there, but others should have a turn.
  Next advance();
  /// Another connection has taken its place: nothing of this one, nor of its lane, takes effect
  /// any more, and its worker finds it ended. By Connections, in its turn. True: it had made the
  /// region.
  bool retire();

  int fd() const { return connection_->fd(); }
  /// Bytes received and sent so far.
  uint64_t moved() const { return moved_; }
  const std::string& peer() const { return peer_; }
  /// After Next::kClose: why, in one line; empty when the client just left.
  const std::string& reason() const { return reason_; }
  bool greeted() const { return region_ != nullptr; }
  /// A lane is being made for it: to be looked at now and then.
  bool awaitsLane() const { return state_ == State::kLane; }
  Nanoseconds since() const { return since_; }
  /// Every client that left before this one came has been dealt with: what does not fit now is
  /// refused, not waited for.
  void departuresDone() { departures_done_ = true; }
  /// It has a place among the newcomers. The worker's.
  bool newcomer = true;
  /// What the worker last asked epoll for.
  Next waiting_for = Next::kReadable;

 private:
  enum class State : uint8_t {
    kHello,
    kRequest,
    kRunPayload,
    kRowOffsets,
    kRowGather,
    kRowData,
    kSwallow,
    kLane,
    kBye
  };
  enum class Step : uint8_t { kProgress, kNeedBytes, kNeedDrain, kClose };

  Next turn();
  Step step();
  Result<std::shared_ptr<Region>> openRegion(const Result<wire::ClientHello>& hello);
  wire::ServerHello admit(const wire::ClientHello& hello, const std::shared_ptr<Region>& region);
  Step stepHello();
  Step stepRequest();
  Step stepRunPayload();
  Step stepRowOffsets();
  Step stepRowGather();
  Step stepRowData();
  Step stepSwallow();
  Step begin(const wire::Request& request);
  Step beginRun(const wire::Request& request);
  Step readRun(const wire::Request& request);
  Step discard(const wire::Request& request);
  Step answerStat(const wire::Request& request);
  Step openLane(const wire::Request& request);
  Step stepLane();
  Step refuseLane(const Error& why);
  Step closeLane(const wire::Request& request);
  void dropLane();
  void endLane();
  Step refuse(const wire::Request& request, ErrorCode code, uint32_t to_swallow);
  Step close(std::string reason);
  std::optional<ErrorCode> epochError(const wire::Request& request) const;

  void answer(uint64_t tag, uint16_t status, std::span<const std::byte> payload);
  void promise(uint64_t tag, uint16_t status, uint32_t payload);
  void append(std::span<const std::byte> payload, Epoch epoch);
  bool answersFit() const;
  bool drain();
  Result<bool> receive();
  size_t buffered() const { return buffer_end_ - buffer_begin_; }
  bool rowsExpected() const;
  bool ofPages() const { return request_.row_bytes == kPageSize; }
  void populateBehind(uint64_t end);
  std::span<std::byte> staging();

  std::unique_ptr<Connection> connection_;
  const std::string peer_;
  RegionTable& regions_;
  Counters& counters_;
  Connections& connections_;
  LaneOpener* lanes_;  // null: there is none, or the client does not know of it
  Populator* const populator_;
  std::optional<wire::Token> ticket_;     // of its lane
  std::shared_ptr<LaneOpening> opening_;  // null: none
  const Nanoseconds since_;
  std::shared_ptr<Region> region_;
  const std::shared_ptr<Connections::Entry> entry_ = std::make_shared<Connections::Entry>();
  uint32_t number_ = 0;  // 0: none
  Leaving leaving_ = Leaving::kBroken;
  bool made_region_ = false;  // or replaced the connection that had
  State state_ = State::kHello;
  bool departures_done_ = false;
  std::string reason_;

  // Bytes received ahead: [buffer_begin_, buffer_end_) of buffer_.
  std::unique_ptr<std::byte[]> buffer_;
  size_t buffer_begin_ = 0;
  size_t buffer_end_ = 0;
  bool socket_empty_ = false;  // the last receive brought less than it could have
  uint64_t moved_ = 0;

  // The request in hand, and how much of its payload has been taken, or of its answer made.
  wire::Request request_;
  uint32_t done_ = 0;
  std::vector<uint64_t> row_offsets_;

  // Answers not sent yet. Headers and row data live in the two stores until all has gone. The first
  // part may be the rest of an answer whose header has been sent.
  static constexpr size_t kMaxAnswers = 64;
  std::array<std::array<std::byte, wire::kResponseSize>, kMaxAnswers> headers_;
  std::array<iovec, 2 * kMaxAnswers + 1 + Connection::kMaxParts> parts_;
  size_t answers_ = 0;
  Epoch answers_epoch_;  // the region's, when the first payload was queued
  size_t parts_used_ = 0;
  size_t parts_sent_ = 0;
  Mapping staging_;
  size_t staging_used_ = 0;
};

}  // namespace tidepool::memserver
