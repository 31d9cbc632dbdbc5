// SPDX-License-Identifier: Apache-2.0
// Whole messages on a connection, by a deadline: a peer that gives a byte now and then gains no
// time by it.
#include "runtime/transport/connection.h"

#include <poll.h>

#include <algorithm>

#include "runtime/base/check.h"
#include "runtime/base/clock.h"
#include "runtime/base/raw_calls.h"

namespace tidepool {
namespace {

/// Waits until `events` can be had or the deadline is near. Errors: kTimedOut.
Status waitFor(const Connection& connection, short events, Nanoseconds deadline) {
  const Nanoseconds now = kMonotonicClock.now();
  if (now >= deadline) return fail(ErrorCode::kTimedOut, "no answer from the peer in time");
  pollfd waiting = {connection.fd(), events, 0};
  const auto milliseconds = std::min<uint64_t>((deadline - now).value() / 1'000'000 + 1, 1'000'000);
  (void)raw::poll(&waiting, 1, static_cast<int>(milliseconds));
  return {};
}

}  // namespace

Status sendAll(Connection& connection, std::span<const std::byte> bytes, Nanoseconds deadline) {
  while (!bytes.empty()) {
    const iovec part = {const_cast<std::byte*>(bytes.data()), bytes.size()};
    const auto taken = connection.send({&part, 1}, Wait::kNever);
    if (!taken) return tl::unexpected(taken.error());
    bytes = bytes.subspan(*taken);
    if (*taken == 0) TP_TRY(waitFor(connection, POLLOUT, deadline));
  }
  return {};
}

Status receiveAll(Connection& connection, std::span<std::byte> bytes, Nanoseconds deadline) {
  while (!bytes.empty()) {
    const iovec part = {bytes.data(), bytes.size()};
    const auto given = connection.receive({&part, 1}, Wait::kNever);
    if (!given) return tl::unexpected(given.error());
    TP_CHECK_OP(*given, <=, bytes.size());
    bytes = bytes.subspan(*given);
    if (*given == 0) TP_TRY(waitFor(connection, POLLIN, deadline));
  }
  return {};
}

}  // namespace tidepool
