// SPDX-License-Identifier: Apache-2.0
// RemoteClient: what is sent when, and which way. The connection is the truth: it says what a
// lane's failure means. One owner thread; no allocation after connect().
#include "runtime/transport/client.h"

#include <algorithm>
#include <atomic>
#include <bit>
#include <utility>

#include "runtime/base/check.h"
#include "runtime/base/debug_check.h"
#include "runtime/base/format.h"
#include "runtime/base/log.h"
#include "runtime/base/raw_calls.h"
#include "runtime/transport/client_requests.h"
#include "runtime/transport/handshake.h"
#include "runtime/transport/lane_arrangement.h"
#include "runtime/transport/verbs/verbs_lane.h"

namespace tidepool {
namespace {

/// Says once in a process why pages, or rows, go over TCP: every thread has a client.
void noteTcp(const Endpoint& server, LaneLoad load, const char* reason) {
  static constinit std::atomic<bool> said_of_pages{false}, said_of_rows{false};
  const bool of_rows = load == LaneLoad::kManyShort;
  if ((of_rows ? said_of_rows : said_of_pages).exchange(true, std::memory_order_relaxed)) return;
  logLine("%s of %s:%s go over TCP: %s", of_rows ? "rows" : "pages", server.host, server.port,
          reason);
}

/// For a line that every connection to a server would say at once. `last`: when it was said.
bool onceInAWhile(std::atomic<uint64_t>& last) {
  constexpr uint64_t kWhile = 10'000'000'000;
  const uint64_t now = kMonotonicClock.now().value();
  uint64_t before = last.load(std::memory_order_relaxed);
  if (before != 0 && now - before < kWhile) return false;
  return last.compare_exchange_strong(before, now, std::memory_order_relaxed);
}

bool changesMemory(wire::Opcode opcode) {
  return opcode == wire::Opcode::kWrite || opcode == wire::Opcode::kWriteRows ||
         opcode == wire::Opcode::kDiscard;
}

}  // namespace

RemoteClient::RemoteClient(std::unique_ptr<Connection> connection, const ClientOptions& options)
    : connection_(std::move(connection)),
      options_(options),
      load_(options.rows == RowsBy::kLane ? LaneLoad::kManyShort : LaneLoad::kFewLong) {}

RemoteClient::~RemoteClient() { giveUpWrites(); }

Result<std::unique_ptr<RemoteClient>> RemoteClient::connect(const Endpoint& target,
                                                            const wire::ClientHello& hello,
                                                            const ClientOptions& options) {
  auto connection = connectTcp(target, options.timeout);
  if (!connection) return tl::unexpected(connection.error());
  std::unique_ptr<RemoteClient> client(new RemoteClient(std::move(*connection), options));
  TP_TRY(client->setUp(target, hello));
  return client;
}

Status RemoteClient::setUp(const Endpoint& target, const wire::ClientHello& hello) {
  const bool tcp = options_.transport == Transport::kTcp;
  // A client that may lose a lane needs a place for a request of its own then.
  TP_TRY(requests_.allocate(
      std::bit_ceil<uint64_t>(std::clamp(options_.max_in_flight, 1u, 1u << 20)), tcp ? 0 : 1));
  TP_TRY(answers_.allocate());
  answers_.use(*connection_);
  LaneSource& source = options_.lanes != nullptr ? *options_.lanes : verbsLanes();
  const Status usable = tcp ? fail(ErrorCode::kUnsupported, "TCP was asked for") : source.usable();
  wire::ClientHello said = hello;
  if (usable) said.features |= wire::kFeatureOneSided;
  // Of a region that the client makes, the server then awaits its return; a number alone is no
  // harm.
  if (options_.reconnect > Nanoseconds(0) || hello.kind == wire::HelloKind::kAttach) {
    said.features |= wire::kFeatureReplace;
  }
  auto answer = shakeHands(*connection_, target, said, options_.timeout);
  if (!answer) return tl::unexpected(answer.error());
  region_ = *answer;
  counted_.take(options_.census, PageWays::kTcp);
  TP_TRY(prepareReturn(target, hello));
  return tcp ? Status{} : openLane(target, source, usable);
}

Status RemoteClient::prepareReturn(const Endpoint& target, const wire::ClientHello& hello) {
  if (region_.connection == 0) return {};
  // Later there is no time to look a name up. Who attaches has been told the address in numbers.
  const auto server = hello.kind == wire::HelloKind::kCreate ? peer() : target;
  if (!server) return tl::unexpected(server.error());
  reconnection_.allow({*server, region_, options_.timeout, options_.reconnect});
  return {};
}

/// Without a lane, which is no error: at most a line, and a note in the statistics.
Status RemoteClient::openLane(const Endpoint& target, LaneSource& source, const Status& usable) {
  auto arranged = arrangeLane(*connection_, source, usable,
                              {.region = region_, .load = load_, .timeout = options_.timeout});
  if (!arranged) return tl::unexpected(arranged.error());
  if (!arranged->lane) {
    const NoLane& none = arranged->lane.error();
    const bool wanted = options_.transport == Transport::kVerbs;
    return useStream(target, none.why.text(), wanted || none.odd ? Tell::kLine : Tell::kStatistics);
  }
  counted_.change(PageWays::kVerbs);
  return lane_.open(std::move(*arranged->lane), arranged->reaches, connection_->fd());
}

Status RemoteClient::useStream(const Endpoint& target, const char* reason, Tell tell) {
  if (tell == Tell::kLine) noteTcp(target, load_, reason);
  counted_.note(reason);
  return {};
}

Status RemoteClient::queue(Result<wire::Request> request, std::span<const std::byte> first,
                           std::span<const std::byte> second, std::span<std::byte> to) {
  if (!request) return tl::unexpected(request.error());
  if (failed()) return fail(ErrorCode::kUnreachable, "%s", reason_);
  if (requests_.full()) {
    return fail(ErrorCode::kNoSpace, "%llu requests are in flight: poll() first",
                static_cast<unsigned long long>(inFlight()));
  }
  request->epoch = region_.epoch;
  const bool by_lane = lane_.carries(*request, first, options_.rows);
  RequestRing::Slot& added = requests_.add();
  added.set(*request, by_lane ? RequestRing::Way::kLane : RequestRing::Way::kStream, first, second,
            to);
  added.queued = options_.clock->now();
  ++submitted_;
  if (record_ != nullptr && changesMemory(request->opcode)) noteWrite();
  return {};
}

void RemoteClient::noteWrite() {
  last_write_ = submitted_;
  if (!std::exchange(writing_, true)) record_->begin(reconnection_.connection());
}

/// Once the last one has been answered, as requests end in their order.
void RemoteClient::noteWritesEnded() {
  if (!writing_ || failed() || submitted_ < last_write_ + requests_.size()) return;
  writing_ = false;
  record_->end();
}

void RemoteClient::giveUpWrites() {
  if (std::exchange(writing_, false)) record_->giveUp();
}

Status RemoteClient::submitRead(uint64_t tag, Bytes offset, std::span<std::byte> to) {
  return queue(runRequest(wire::Opcode::kRead, tag, offset, to.size(), region_.max_data), {}, {},
               to);
}

Status RemoteClient::submitWrite(uint64_t tag, Bytes offset, std::span<const std::byte> from) {
  return queue(runRequest(wire::Opcode::kWrite, tag, offset, from.size(), region_.max_data), from,
               {}, {});
}

Status RemoteClient::submitDiscard(uint64_t tag, Bytes offset, Bytes length) {
  return queue(discardRequest(tag, offset, length), {}, {}, {});
}

Status RemoteClient::submitPing(uint64_t tag) {
  return queue(wire::Request{.opcode = wire::Opcode::kPing, .tag = tag}, {}, {}, {});
}

Status RemoteClient::submitStat(uint64_t tag, std::span<std::byte, wire::kStatSize> to) {
  return queue(wire::Request{.opcode = wire::Opcode::kStat, .tag = tag}, {}, {}, to);
}

Status RemoteClient::submitReadRows(uint64_t tag, std::span<const uint64_t> offsets, Bytes row,
                                    std::span<std::byte> to) {
  return queue(rowsRequest(wire::Opcode::kReadRows, tag, offsets.size(), row, to.size()),
               std::as_bytes(offsets), {}, to);
}

Status RemoteClient::submitWriteRows(uint64_t tag, std::span<const uint64_t> offsets, Bytes row,
                                     std::span<const std::byte> from) {
  return queue(rowsRequest(wire::Opcode::kWriteRows, tag, offsets.size(), row, from.size()),
               std::as_bytes(offsets), from, {});
}

/// Sends from the front of what is queued for the connection. False: it takes no more.
Result<bool> RemoteClient::sendParts() {
  iovec parts[Connection::kMaxParts];
  auto taken = connection_->send({parts, requests_.gather(parts)}, Wait::kNever);
  if (!taken) return tl::unexpected(taken.error());
  requests_.advance(*taken);
  return *taken > 0;
}

Status RemoteClient::flush() { return start(PageLane::Ends::kTold); }

/// Sends what may be sent. What goes into the lane: see PageLane::Ends.
Status RemoteClient::start(PageLane::Ends ends) {
  if (failed()) return fail(ErrorCode::kUnreachable, "%s", reason_);
  while (!away() && !requests_.allSent() && requests_.mayStart()) {
    const auto moved = inLane() ? lane_.send(ends) : sendParts();
    if (!moved && inLane()) {
      leaveLane(moved.error());
      continue;
    }
    if (!moved) {
      lose(moved.error());
      if (failed()) return tl::unexpected(moved.error());
      break;
    }
    if (!*moved) break;
    noteProgress();
    lane_quiet_ = false;
  }
  // While the connection cannot send more, fd() tells when it can.
  if (!away() && lane_.fd() >= 0) {
    lane_.watchSending(connection_->fd(),
                       !inLane() && !requests_.allSent() && requests_.mayStart());
  }
  return {};
}

short RemoteClient::events() const {
  if (away()) return reconnection_.events();
  const bool sending = !requests_.allSent() && lane_.fd() < 0;
  return static_cast<short>(POLLIN | (sending ? POLLOUT : 0));
}

/// The connection is of no more use. Nobody sleeps on its descriptor for long, so it stays open
/// until there is another.
void RemoteClient::lose(const Error& error) {
  if (failed() || away()) return;
  const bool passes =
      error.code() == ErrorCode::kUnreachable || error.code() == ErrorCode::kTimedOut;
  if (!passes || !reconnection_.allowed()) return failAll(error);
  if (lane_.isOpen()) {
    counted_.change(PageWays::kTcp);
    lane_.close();
  }
  const Nanoseconds now = options_.clock->now();
  requests_.startOver(now);
  reconnection_.begin(error, now);
  static constinit std::atomic<uint64_t> said{0};
  if (!onceInAWhile(said)) return;
  logLine("the connection to the memory server %s:%s broke (%s): trying for up to %llu s",
          reconnection_.server().host, reconnection_.server().port, error.text(),
          static_cast<unsigned long long>(options_.reconnect.value() / 1'000'000'000));
}

void RemoteClient::tend() {
  if (away()) {
    comeBack();
  } else if (!failed() && requests_.empty() && reconnection_.allowed() && streamSpoke()) {
    lose(Error::make(ErrorCode::kUnreachable, "the memory server ended the connection"));
  }
}

/// Goes on making the connection again. Called by who polls alone: nobody else looks at the old
/// one.
void RemoteClient::comeBack() {
  auto made = reconnection_.advance(options_.clock->now());
  if (!made) return failAll(made.error());
  if (*made == nullptr) return;
  connection_ = std::move(*made);
  if (writing_) record_->begin(reconnection_.connection());
  answers_.use(*connection_);
  lane_.forgetConnection();
  requests_.startOver(options_.clock->now());
  noteProgress();
  counted_.noteReconnection();
  static constinit std::atomic<uint64_t> said{0};
  if (!onceInAWhile(said)) return;
  logLine("the connection to the memory server %s:%s is there again, after %llu ms",
          reconnection_.server().host, reconnection_.server().port,
          static_cast<unsigned long long>((last_progress_ - reconnection_.since()).value() /
                                          1'000'000));
}

/// Each request in flight, and none submitted later, completes with the error once.
void RemoteClient::failAll(const Error& error) {
  if (failed()) return;
  const bool known = error.code() == ErrorCode::kTimedOut || error.code() == ErrorCode::kLost ||
                     error.code() == ErrorCode::kStaleEpoch;
  failure_ = known ? error.code() : ErrorCode::kUnreachable;
  formatText(reason_, sizeof reason_, "%s", error.text());
  giveUpWrites();  // before anybody hears that they have failed
}

size_t RemoteClient::failedCompletions(std::span<FetchCompletion> out) {
  size_t count = 0;
  for (; count < out.size() && !requests_.empty(); requests_.end()) {
    if (!requests_.oldest().own) out[count++] = {requests_.oldest().tag, failure_};
  }
  return count;
}

/// Whether the oldest request has been answered.
bool RemoteClient::answered() const { return inLane() ? lane_.complete() : answers_.complete(); }

Nanoseconds RemoteClient::timeToDeadline() const {
  if (away()) return reconnection_.timeToNext(options_.clock->now());
  if (requests_.empty()) return options_.timeout;
  if (failed() || answered()) return Nanoseconds(0);
  const Nanoseconds start = std::max(requests_.oldest().queued, last_progress_);
  const Nanoseconds now = options_.clock->now();
  const Nanoseconds deadline = start + options_.timeout;
  return now >= deadline ? Nanoseconds(0) : deadline - now;
}

/// Answers that have come on the connection.
size_t RemoteClient::pollStream(std::span<FetchCompletion> out, Look look) {
  bool drained = look == Look::kReceived;
  size_t count = 0;
  while (!failed() && !away() && count < out.size() && !requests_.empty()) {
    const bool own = requests_.oldest().own;
    auto taken = answers_.take(out[count]);
    if (taken && *taken) {
      count += own ? 0 : 1;
      continue;
    }
    if (taken && drained) break;
    auto filled = taken ? answers_.fill(Wait::kNever) : taken;
    if (!filled) {
      lose(filled.error());
    } else if (!*filled) {
      break;
    } else {
      noteProgress();
    }
    drained = answers_.drained();
  }
  return count;
}

/// What has ended in the lane.
size_t RemoteClient::pollLane(std::span<FetchCompletion> out) {
  const auto ended = lane_.take(out);
  if (!ended) {
    leaveLane(ended.error());
    (void)flush();
    return 0;
  }
  if (ended->moved) {
    noteProgress();
    lane_quiet_ = false;
    (void)flush();  // there is room again
  } else if (ended->requests == 0 && !requests_.empty() && std::exchange(lane_quiet_, true) &&
             streamSpoke()) {
    // Asked at the second look for nothing, since the first comes before anybody has slept.
    lose(Error::make(ErrorCode::kUnreachable, "the memory server ended the connection"));
  }
  return ended->requests;
}

/// Nothing should come on the connection while no request is under way on it, but its end.
bool RemoteClient::streamSpoke() {
  TP_DCHECK(inLane() || requests_.empty());  // or it would be an answer that is thrown away
  std::byte unasked;
  const iovec part = {&unasked, 1};
  const auto received = connection_->receive({&part, 1}, Wait::kNever);
  return !received || *received > 0;
}

/// The lane has failed. What had not ended goes over the connection, from the beginning: reads and
/// writes may be repeated. Before that the server ends its side, so that no write of the lane's can
/// come after one of the connection's. If the server has gone, or fenced us off, the connection
/// says so.
void RemoteClient::leaveLane(const Error& error) {
  TP_CHECK(inLane() && lane_.isOpen());
  counted_.change(PageWays::kTcp);
  if (const auto server = peer()) (void)useStream(*server, error.text(), Tell::kLine);
  lane_.close();
  requests_.startOver({.opcode = wire::Opcode::kCloseLane, .epoch = region_.epoch},
                      options_.clock->now());
}

size_t RemoteClient::poll(std::span<FetchCompletion> out, Look look) {
  size_t count = 0;
  if (away()) comeBack();
  for (;;) {
    if (failed() || !flush() || away()) break;  // a failure is reported through the completions
    const size_t before = requests_.size();
    count += inLane() ? pollLane(out.subspan(count)) : pollStream(out.subspan(count), look);
    // What goes another way may start now.
    const bool ended = requests_.size() != before;
    if (!ended || requests_.sent() != 0 || requests_.allSent() || count == out.size()) break;
  }
  if (!failed() && !away() && count == 0 && !requests_.empty() &&
      timeToDeadline() == Nanoseconds(0)) {
    const Error late =
        Error::make(ErrorCode::kTimedOut, "no answer within %llu ms",
                    static_cast<unsigned long long>(options_.timeout.value() / 1'000'000));
    if (inLane()) {
      leaveLane(late);
      (void)flush();
    } else {
      lose(late);
    }
  }
  if (failed()) count += failedCompletions(out.subspan(count));
  noteWritesEnded();
  return count;
}

void RemoteClient::Rest::take() {
  if (kind == Kind::kReceive) received = connection->receive({into.parts, into.used}, wait);
  if (kind == Kind::kPoll) (void)raw::poll(&waiting, 1, milliseconds);
}

RemoteClient::Rest RemoteClient::beginRest(Wait wait) {
  TP_CHECK(!requests_.empty());
  Rest rest;
  const bool blocks = wait == Wait::kUntilTimeout;
  if (!start(blocks ? PageLane::Ends::kLookedFor : PageLane::Ends::kTold)) return rest;
  if (away()) return blocks ? restUntilPoll() : rest;
  if (!inLane() && answers_.untaken()) return rest;
  if (inLane() && (!blocks || !lane_quiet_)) {
    // Looked for first: an end that comes soon needs no event.
    if (blocks) lane_.lookout();
    return rest;
  }
  // Once all is sent one blocking receive does both, the waiting and the taking.
  if (!inLane() && (!blocks || requests_.allSent())) {
    rest.kind = Rest::Kind::kReceive;
    rest.wait = wait;
    rest.connection = connection_.get();
    rest.into = answers_.expect();
    return rest;
  }
  return restUntilPoll();
}

RemoteClient::Rest RemoteClient::restUntilPoll() const {
  Rest rest;
  rest.kind = Rest::Kind::kPoll;
  rest.waiting = {fd(), events(), 0};
  const uint64_t milliseconds = timeToDeadline().value() / 1'000'000 + 1;
  rest.milliseconds = static_cast<int>(std::min<uint64_t>(milliseconds, 1'000'000));
  return rest;
}

RemoteClient::Look RemoteClient::endRest(const Rest& rest) {
  if (rest.kind == Rest::Kind::kPoll || inLane() || away()) return Look::kReceive;
  if (rest.kind == Rest::Kind::kNone) return Look::kReceived;
  const auto taken = answers_.took(rest.into, rest.received);
  if (!taken) {
    lose(taken.error());
  } else if (*taken) {
    noteProgress();
  }
  return Look::kReceived;
}

FetchCompletion RemoteClient::wait() {
  FetchCompletion done;
  for (;;) {
    Rest rest = beginRest(Wait::kUntilTimeout);
    rest.take();
    if (poll({&done, 1}, endRest(rest)) == 1) return done;
  }
}

}  // namespace tidepool
