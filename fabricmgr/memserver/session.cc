// SPDX-License-Identifier: Apache-2.0
// Session: the loop of one connection, receiving, sending and the handshake. What each request does
// is in session_requests.cc. One worker thread; the only allocations are a store that grows once.
#include "fabricmgr/memserver/session.h"

#include <fmt/format.h>

#include <sys/socket.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "runtime/base/check.h"

namespace tidepool::memserver {
namespace {

// Bytes received beside what goes in place. Small, or the pages of writes would come this way, too;
// rows all do, and the more at once the better.
constexpr size_t kReadAhead = 32 * kKiB;
constexpr size_t kRowReadAhead = 128 * kKiB;
// Bytes one session may move before others on the same worker get their turn: who waits for one
// page waits for about one scattered request of somebody else's.
constexpr size_t kTurn = kMiB;

}  // namespace

Session::Session(std::unique_ptr<Connection> connection, std::string peer,
                 const SessionShared& shared, Nanoseconds now)
    : connection_(std::move(connection)),
      peer_(std::move(peer)),
      regions_(shared.regions),
      counters_(shared.counters),
      connections_(shared.connections),
      lanes_(shared.lanes),
      populator_(shared.populator),
      since_(now),
      buffer_(std::make_unique_for_overwrite<std::byte[]>(kRowReadAhead)) {
  counters_.connections.fetch_add(1, std::memory_order_relaxed);
  MutexLock turn(entry_->turn);
  entry_->session = this;
}

Session::~Session() {
  {
    MutexLock turn(entry_->turn);
    endLane();
    entry_->session = nullptr;
  }
  if (number_ != 0) connections_.leave(number_);
  if (region_ != nullptr) {
    const bool further = !made_region_ && leaving_ == Leaving::kInOrder;
    regions_.detach(region_, further ? Leaving::kOfFurther : leaving_);
  }
  counters_.connections.fetch_sub(1, std::memory_order_relaxed);
}

Next Session::advance() {
  MutexLock lock(entry_->turn);
  return turn();
}

bool Session::retire() {
  endLane();
  (void)close("another connection has taken its place");
  (void)shutdown(fd(), SHUT_RDWR);
  return std::exchange(made_region_, false);
}

Next Session::turn() {
  socket_empty_ = false;
  const uint64_t turn_end = moved_ + kTurn;
  for (;;) {
    switch (step()) {
      case Step::kProgress:
        continue;
      case Step::kClose:
        (void)drain();  // answers to what came before the end, as far as they go
        return Next::kClose;
      case Step::kNeedDrain:
        if (!drain()) return reason_.empty() ? Next::kWritable : Next::kClose;
        if (moved_ >= turn_end) return Next::kAgain;
        continue;
      case Step::kNeedBytes:
        break;
    }
    // Everything that was received is served: send the answers before waiting for more.
    if (!drain()) return reason_.empty() ? Next::kWritable : Next::kClose;
    if (socket_empty_) return Next::kReadable;
    if (moved_ >= turn_end) return Next::kAgain;
    auto received = receive();
    if (!received) {
      // The end of the stream, not an error of it.
      if (received.error().osError() == 0) leaving_ = Leaving::kInOrder;
      close(state_ == State::kRequest && buffered() == 0 ? "" : received.error().text());
      return Next::kClose;
    }
    if (!*received) return Next::kReadable;
  }
}

Session::Step Session::step() {
  switch (state_) {
    case State::kHello:
      return stepHello();
    case State::kRequest:
      return stepRequest();
    case State::kRunPayload:
      return stepRunPayload();
    case State::kRowOffsets:
      return stepRowOffsets();
    case State::kRowGather:
      return stepRowGather();
    case State::kRowData:
      return stepRowData();
    case State::kSwallow:
      return stepSwallow();
    case State::kLane:
      return stepLane();
    case State::kBye:
      return Step::kClose;
  }
  return Step::kClose;
}

Session::Step Session::close(std::string reason) {
  if (reason_.empty()) reason_ = std::move(reason);  // the first cause is the one to log
  state_ = State::kBye;
  return Step::kClose;
}

bool Session::rowsExpected() const {
  return request_.opcode == wire::Opcode::kReadRows || request_.opcode == wire::Opcode::kWriteRows;
}

/// Receives once. In the middle of a run its pages are filled in place, and only what follows them
/// goes to the buffer. False: nothing is there.
Result<bool> Session::receive() {
  if (buffer_begin_ > 0) {
    memmove(buffer_.get(), buffer_.get() + buffer_begin_, buffered());
    buffer_end_ -= buffer_begin_;
    buffer_begin_ = 0;
  }
  iovec parts[2];
  size_t used = 0;
  size_t in_place = 0;
  if (state_ == State::kRunPayload) {
    TP_CHECK_OP(buffered(), ==, 0u);  // stepRunPayload() has used it up
    in_place = request_.length - done_;
    parts[used++] = {region_->data() + request_.offset + done_, in_place};
  }
  // A client that reads or writes rows goes on with that, often with many requests at once.
  const size_t most = rowsExpected() ? kRowReadAhead : kReadAhead;
  const size_t room = std::max(most, buffer_end_) - buffer_end_;
  parts[used++] = {buffer_.get() + buffer_end_, room};
  auto given = connection_->receive({parts, used}, Wait::kNever);
  if (!given) return tl::unexpected(given.error());
  if (*given == 0) return false;
  // Less than asked for means that the socket is empty: no second call to hear so.
  socket_empty_ = *given < in_place + room;
  moved_ += *given;
  const size_t placed = std::min(*given, in_place);
  done_ += static_cast<uint32_t>(placed);
  buffer_end_ += *given - placed;
  TP_CHECK_OP(buffer_end_, <=, kRowReadAhead);
  return true;
}

/// Queues an answer; `payload` stays where it is until drain() has sent it.
void Session::answer(uint64_t tag, uint16_t status, std::span<const std::byte> payload) {
  promise(tag, status, static_cast<uint32_t>(payload.size()));
  if (!payload.empty()) append(payload, region_->epoch());
}

/// Queues the header of an answer whose payload is still to be appended, all of it.
void Session::promise(uint64_t tag, uint16_t status, uint32_t payload) {
  TP_CHECK_OP(answers_, <, kMaxAnswers);
  auto& header = headers_[answers_++];
  wire::encode(wire::Response{.status = status, .tag = tag, .payload = payload}, header);
  parts_[parts_used_++] = {header.data(), header.size()};
}

/// `epoch` is the one in which the bytes may be seen.
void Session::append(std::span<const std::byte> payload, Epoch epoch) {
  TP_CHECK_OP(parts_used_, <, parts_.size());
  if (parts_used_ == answers_) answers_epoch_ = epoch;
  parts_[parts_used_++] = {const_cast<std::byte*>(payload.data()), payload.size()};
}

bool Session::answersFit() const {
  return answers_ < kMaxAnswers && parts_used_ + 2 <= parts_.size();
}

/// Sends the queued answers. False: the client does not take more now, or (reason set) has gone.
bool Session::drain() {
  // Region memory that waits in the queue may hold the next holder's bytes once we are fenced.
  if (parts_used_ > answers_ && region_->epoch() != answers_epoch_) {
    close("fenced off while answers were waiting to be sent");
    return false;
  }
  while (parts_sent_ < parts_used_) {
    const size_t most = std::min(parts_used_ - parts_sent_, Connection::kMaxParts);
    auto taken = connection_->send({parts_.data() + parts_sent_, most}, Wait::kNever);
    if (!taken) {
      close(taken.error().text());
      return false;
    }
    if (*taken == 0) return false;
    moved_ += *taken;
    for (size_t left = *taken; left > 0;) {
      iovec& part = parts_[parts_sent_];
      const size_t whole = std::min(left, part.iov_len);
      part.iov_base = static_cast<std::byte*>(part.iov_base) + whole;
      part.iov_len -= whole;
      left -= whole;
      if (part.iov_len == 0) ++parts_sent_;
    }
  }
  TP_CHECK_OP(parts_sent_, ==, parts_used_);
  answers_ = parts_used_ = parts_sent_ = staging_used_ = 0;
  return true;
}

/// A client that has written up to `end` will write behind it next.
void Session::populateBehind(uint64_t end) {
  if (populator_ != nullptr && region_->wantBehind(end)) populator_->populate(region_);
}

Result<std::shared_ptr<Region>> Session::openRegion(const Result<wire::ClientHello>& hello) {
  if (!hello) return tl::unexpected(hello.error());
  if (hello->kind == wire::HelloKind::kCreate) {
    const bool returns = (hello->features & wire::kFeatureReplace) != 0;
    return regions_.create(hello->size, returns ? Returns::kMay : Returns::kNever);
  }
  return regions_.attach(hello->region, hello->token, hello->epoch);
}

/// Binds the session to its region; the answer to its handshake.
wire::ServerHello Session::admit(const wire::ClientHello& hello,
                                 const std::shared_ptr<Region>& region) {
  region_ = region;
  made_region_ = hello.kind == wire::HelloKind::kCreate;
  wire::ServerHello reply;
  reply.region = region_->id();
  // A managed region's secret is the manager's to give: its holder gets back what it showed.
  reply.token = made_region_ ? region_->token() : hello.token;
  reply.epoch = region_->epoch();
  reply.capacity = region_->capacity();
  if ((hello.features & wire::kFeatureOneSided) == 0) lanes_ = nullptr;
  if (lanes_ != nullptr) reply.features = wire::kFeatureOneSided;
  if (hello.replaces != 0) made_region_ = connections_.replace(hello.replaces, region_->id());
  if ((hello.features & wire::kFeatureReplace) != 0) {
    reply.features |= wire::kFeatureReplace;
    reply.connection = number_ = connections_.enter(entry_, region_->id());
  }
  return reply;
}

Session::Step Session::stepHello() {
  TP_CHECK(region_ == nullptr);
  if (buffered() < wire::kHelloSize) return Step::kNeedBytes;
  auto hello = wire::decodeClientHello(std::span<const std::byte, wire::kHelloSize>(
      buffer_.get() + buffer_begin_, wire::kHelloSize));
  if (!hello && hello.error().code() == ErrorCode::kCorrupt) return close(hello.error().text());
  Result<std::shared_ptr<Region>> region = openRegion(hello);
  // A client that comes right after another has left waits until that has been seen, and for the
  // grace of one whose connection broke to end: the worker calls again on its next tick, within the
  // time a handshake may take.
  if (!region && region.error().code() == ErrorCode::kNoSpace &&
      (!departures_done_ || regions_.willFit(hello->size))) {
    return Step::kNeedBytes;
  }
  buffer_begin_ += wire::kHelloSize;
  wire::ServerHello reply;
  if (region) {
    reply = admit(*hello, *region);
  } else {
    reply.status = static_cast<uint16_t>(region.error().code());
    if (region.error().code() == ErrorCode::kNoSpace) reply.capacity = regions_.freeBytes();
  }
  // 64 bytes into the empty send buffer of a new socket always fit.
  std::array<std::byte, wire::kHelloSize> bytes;
  wire::encode(reply, bytes);
  const iovec part = {bytes.data(), bytes.size()};
  auto sent = connection_->send({&part, 1}, Wait::kNever);
  if (!sent || *sent != bytes.size()) return close("the handshake could not be sent");
  if (!region) return close(fmt::format("handshake refused: {}", region.error().text()));
  populateBehind(0);
  state_ = State::kRequest;
  return Step::kProgress;
}

}  // namespace tidepool::memserver
