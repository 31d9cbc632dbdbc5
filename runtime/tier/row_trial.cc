// SPDX-License-Identifier: Apache-2.0
// The trial: as many rows and requests as a table has under way.
#include "runtime/tier/row_trial.h"

#include <algorithm>
#include <array>

#include "runtime/base/clock.h"
#include "runtime/base/mapping.h"

namespace tidepool {
namespace {

constexpr uint64_t kRequests = 4;
constexpr uint64_t kRowsEach = 256;
// The best of these counts, so that what else happens meanwhile does not. The first use of a way
// finds nothing ready for it: it is one more.
constexpr int kRounds = 2;

struct Trial {
  RemoteClient& client;
  Bytes row;
  std::array<uint64_t, kRowsEach> offsets;
  Mapping memory;  // of one request: nobody looks at it
};

/// All requests once.
Result<Nanoseconds> timeOnce(Trial& trial) {
  const MonotonicClock clock;
  const Nanoseconds start = clock.now();
  const std::span<std::byte> to(trial.memory.data(), kRowsEach * trial.row.value());
  Status outcome;
  for (uint64_t tag = 0; tag < kRequests && outcome; ++tag) {
    outcome = trial.client.submitReadRows(tag, trial.offsets, trial.row, to);
  }
  while (trial.client.inFlight() > 0) {
    const FetchCompletion done = trial.client.wait();
    if (done.ok() || !outcome) continue;
    outcome = fail(done.error, "rows cannot be read: %s",
                   trial.client.failed() ? trial.client.reason() : errorCodeName(done.error));
  }
  if (!outcome) return tl::unexpected(outcome.error());
  return clock.now() - start;
}

Result<Nanoseconds> timeOf(Trial& trial, RowsBy by) {
  trial.client.setRows(by);
  Nanoseconds best(UINT64_MAX);
  for (int round = 0; round <= kRounds; ++round) {
    const auto took = timeOnce(trial);
    if (!took) return took;
    if (round > 0) best = std::min(best, *took);
  }
  return best;
}

}  // namespace

Result<RowsBy> quickerRows(RemoteClient& client, const RowArea& area, Bytes first) {
  const Bytes row(std::min<uint64_t>(area.row.value(), wire::kMaxRowBytes));
  auto memory = Mapping::anonymous(Bytes(roundUp(kRowsEach * row.value(), kPageSize)));
  if (!memory) return tl::unexpected(memory.error());
  Trial trial = {client, row, {}, std::move(*memory)};
  // Apart, as rows are that a cache did not have; the last one first, so that no two go together.
  for (uint64_t i = 0; i < kRowsEach; ++i) {
    const uint64_t number = (kRowsEach - 1 - i) * area.rows / kRowsEach;
    trial.offsets[i] = first.value() + number * area.row.value();
  }
  const auto by_lane = timeOf(trial, RowsBy::kLane);
  if (!by_lane) return tl::unexpected(by_lane.error());
  const bool still = client.pagesBy() == Transport::kVerbs;
  const auto by_server = timeOf(trial, RowsBy::kServer);
  if (!by_server) return tl::unexpected(by_server.error());
  const RowsBy quicker = still && *by_lane < *by_server ? RowsBy::kLane : RowsBy::kServer;
  client.setRows(quicker);
  return quicker;
}

}  // namespace tidepool
