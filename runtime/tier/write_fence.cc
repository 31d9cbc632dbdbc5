// SPDX-License-Identifier: Apache-2.0
// WriteFence: one connection after the other, each made as one that broke is.
#include "runtime/tier/write_fence.h"

#include <atomic>

#include "runtime/base/log.h"

namespace tidepool {
namespace {

/// Before the next try, when there is no answer, or one that tells nothing.
constexpr Nanoseconds kPause(1'000'000'000);
constexpr Nanoseconds kTry(10'000'000'000);
/// Never by itself: what it ends with is then that nobody listens.
constexpr Nanoseconds kNoLimit(UINT64_MAX / 2);

/// Whether nothing can come to a region that is not there, or not for those who wrote.
bool gone(ErrorCode code) {
  return code == ErrorCode::kUnreachable || code == ErrorCode::kLost ||
         code == ErrorCode::kStaleEpoch;
}

void sayHeld(const RegionAddress& region) {
  static constinit std::atomic<bool> said{false};
  if (said.exchange(true, std::memory_order_relaxed)) return;
  logLine(
      "the memory server %s:%s cannot end connections of others: what a process held there "
      "that ended in the midst of writing stays reserved",
      region.endpoint.host, region.endpoint.port);
}

}  // namespace

bool WriteFence::begin(Nanoseconds now) {
  if (now < next_) return false;
  const auto writes = table_.nextLateWrites();
  if (!writes) return false;
  writes_ = *writes;
  const auto region = find_(tier_, writes->where());
  if (!region) {
    table_.fenced(writes_);
    return false;
  }
  if (writes->connection() == 0) {
    sayHeld(*region);
    next_ = now + kPause;
    return false;
  }
  wire::ServerHello theirs;
  theirs.region = region->region;
  theirs.token = region->token;
  theirs.epoch = region->epoch;
  theirs.connection = writes->connection();
  reconnection_.allow({region->endpoint, theirs, timeout_, kNoLimit});
  reconnection_.begin(Error::make(ErrorCode::kUnreachable, "nobody listens"), now);
  until_ = now + kTry;
  return true;
}

void WriteFence::tend(Nanoseconds now) {
  if (!reconnection_.underWay() && !begin(now)) return;
  auto made = reconnection_.advance(now);
  if (made && *made == nullptr) {
    if (now < until_) return;
    reconnection_ = Reconnection();
    next_ = now + kPause;
    return;
  }
  if (made || gone(made.error().code())) {
    table_.fenced(writes_);
  } else {
    next_ = now + kPause;
  }
  if (made) made_ = std::move(*made);
}

}  // namespace tidepool
