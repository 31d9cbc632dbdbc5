// SPDX-License-Identifier: Apache-2.0
// Reconnection: one try after the other. The server may have bytes of the old connection that it
// has not read; a write among them must not come after one of the new connection. So the new one
// says what it replaces, and is answered once that has ended.
#include "runtime/transport/reconnection.h"

#include <poll.h>

#include <algorithm>
#include <cerrno>

#include "runtime/base/check.h"
#include "runtime/base/raw_calls.h"
#include "runtime/transport/handshake.h"

namespace tidepool {
namespace {

constexpr Nanoseconds kPause(50'000'000);  // between two tries
/// To connect: a network that is back answers the next try at once, but not the ones before.
constexpr Nanoseconds kConnecting(1'000'000'000);
/// A machine that answers, and has nobody listening for so long, has lost what the server had.
constexpr Nanoseconds kRefused(1'000'000'000);

wire::ClientHello helloFor(const wire::ServerHello& made) {
  wire::ClientHello hello;
  hello.kind = wire::HelloKind::kAttach;
  hello.features = wire::kFeatureReplace;
  hello.region = made.region;
  hello.token = made.token;
  hello.epoch = made.epoch;
  hello.replaces = made.connection;
  return hello;
}

}  // namespace

void Reconnection::allow(const Plan& plan) {
  plan_ = plan;
  allowed_ = plan.limit > Nanoseconds(0) && plan.made.connection != 0;
}

void Reconnection::begin(const Error& cause, Nanoseconds now) {
  TP_CHECK(allowed_ && !underWay());
  cause_ = cause;
  since_ = now;
  end_ = now + plan_.limit;
  refused_since_ = Nanoseconds(0);
  state_ = State::kPause;
  next_ = now;
}

short Reconnection::events() const {
  return state_ == State::kConnecting || (state_ == State::kGreeting && !said_) ? POLLOUT : POLLIN;
}

void Reconnection::pause(Nanoseconds now) {
  socket_ = UniqueFd();
  greeted_.reset();
  state_ = State::kPause;
  next_ = now + kPause;
}

Reconnection::Step Reconnection::connect(Nanoseconds now) {
  if (now < next_) return Step::kWaits;
  auto socket = beginTcp(plan_.server);
  if (!socket) return socket.error().osError() == ECONNREFUSED ? Step::kRefused : Step::kFailed;
  socket_ = std::move(*socket);
  state_ = State::kConnecting;
  next_ = now + kConnecting;
  return Step::kFurther;
}

Reconnection::Step Reconnection::finishConnecting(Nanoseconds now) {
  pollfd ready = {socket_.get(), POLLOUT, 0};
  if (raw::poll(&ready, 1, 0) <= 0) return now >= next_ ? Step::kFailed : Step::kWaits;
  auto made = finishTcp(std::move(socket_), plan_.timeout);
  if (!made) return made.error().osError() == ECONNREFUSED ? Step::kRefused : Step::kFailed;
  greeted_ = std::move(*made);
  wire::encode(helloFor(plan_.made), hello_);
  hello_done_ = 0;
  said_ = false;
  state_ = State::kGreeting;
  next_ = now + plan_.timeout;
  return Step::kFurther;
}

/// Says the hello, and then takes the answer in.
Reconnection::Step Reconnection::greet() {
  const iovec rest = {hello_.data() + hello_done_, hello_.size() - hello_done_};
  const auto moved = said_ ? greeted_->receive({&rest, 1}, Wait::kNever)
                           : greeted_->send({&rest, 1}, Wait::kNever);
  if (!moved) return Step::kFailed;
  if (*moved == 0) return Step::kWaits;
  hello_done_ += *moved;
  if (hello_done_ < hello_.size()) return Step::kFurther;
  if (said_) return judge();
  said_ = true;
  hello_done_ = 0;
  return Step::kFurther;
}

/// What the server has answered.
Reconnection::Step Reconnection::judge() {
  const auto answer = judgeAnswer(plan_.server, helloFor(plan_.made), hello_);
  if (answer && answer->connection != 0) {
    plan_.made = *answer;
    return Step::kDone;
  }
  // It is there, and will not have us back.
  cause_ = answer ? Error::make(ErrorCode::kUnsupported, "%s:%s makes no connection again now",
                                plan_.server.host, plan_.server.port)
                  : answer.error();
  end_ = Nanoseconds(0);
  return Step::kFailed;
}

Reconnection::Step Reconnection::step(Nanoseconds now) {
  switch (state_) {
    case State::kPause:
      return connect(now);
    case State::kConnecting:
      return finishConnecting(now);
    case State::kGreeting: {
      const Step greeted = greet();
      return greeted == Step::kWaits && now >= next_ ? Step::kFailed : greeted;
    }
    case State::kNone:
      break;
  }
  return Step::kWaits;
}

/// Whether there is nothing to be hoped for after a step with that outcome.
bool Reconnection::over(Step outcome, Nanoseconds now) {
  if (outcome == Step::kRefused && refused_since_ == Nanoseconds(0)) refused_since_ = now;
  if (outcome == Step::kFailed) refused_since_ = Nanoseconds(0);
  const bool nobody = outcome == Step::kRefused && now - refused_since_ >= kRefused;
  return nobody || now >= end_;
}

Result<std::unique_ptr<Connection>> Reconnection::advance(Nanoseconds now) {
  TP_CHECK(underWay());
  Step outcome;
  do {
    outcome = step(now);
  } while (outcome == Step::kFurther);
  if (outcome == Step::kDone) {
    state_ = State::kNone;
    return std::move(greeted_);
  }
  if (over(outcome, now)) {
    pause(now);
    state_ = State::kNone;
    return tl::unexpected(cause_);
  }
  if (outcome != Step::kWaits) pause(now);
  return nullptr;
}

}  // namespace tidepool
