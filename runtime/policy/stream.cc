// SPDX-License-Identifier: Apache-2.0
// Stream detection and window growth. See stream.h. A random fault, the usual case, costs one pass
// over sixteen numbers and two look-ups in a small table.
#include "runtime/policy/stream.h"

#include <algorithm>

#include "runtime/base/check.h"

namespace tidepool {

StreamTracker::StreamTracker() {
  next_.fill(kFarAway);
  window_.fill(0);
}

StreamTracker::Candidate& StreamTracker::candidateAt(uint64_t page) {
  return candidates_[page * 0x9e3779b97f4a7c15ull >> 58];
}

// Pages of the scanned range that were local already do not fault, so a fault may skip ahead of a
// stream by up to its window, but only of one that is running: a random fault has a fair chance to
// hit somewhere ahead of a stream long gone. Of two that match, the one closest before the page.
size_t StreamTracker::find(uint64_t page) const {
  size_t best = kNone;
  uint64_t best_distance = kFarAway;
  for (size_t i = 0; i < kStreams; ++i) {
    const uint64_t distance = page - next_[i];  // wraps to a huge number when before it
    if (distance <= window_[i] && distance < best_distance) {
      if (distance > 0 && tick_ - streams_[i].last_use > kRunning) continue;
      best = i;
      best_distance = distance;
    }
  }
  return best;
}

// `page` is the fault that makes a stream believed. It takes the place of the one longest unused.
void StreamTracker::confirm(uint64_t page) {
  size_t oldest = 0;
  for (size_t i = 0; i < kStreams; ++i) {
    if (streams_[i].last_use < streams_[oldest].last_use) oldest = i;
  }
  const PageIndex start(page - (kConfirmations - 1));
  streams_[oldest] = Stream{start, start, tick_};
  window_[oldest] = kFirstWindow;
  next_[oldest] = page + kFirstWindow;
}

PageRun StreamTracker::onFault(PageIndex page) {
  const uint64_t number = page.value();
  TP_CHECK_OP(number, <, kFarAway - kLastWindow);
  ++tick_;
  passed_ = PageRun{};
  const size_t index = find(number);
  if (index != kNone) {
    passed_ = {PageIndex(next_[index] - window_[index]), PageCount(window_[index])};
    streams_[index].last_use = tick_;
    // A skip may be luck: it brings in less, and luck does not last.
    window_[index] = number == next_[index] ? std::min(window_[index] * 2, kLastWindow)
                                            : std::max(window_[index] / 2, kFirstWindow);
    next_[index] = number + window_[index];
    return PageRun{page, PageCount(window_[index])};
  }
  Candidate& candidate = candidateAt(number);
  uint32_t hits = 1;
  if (candidate.hits > 0 && candidate.next == number) {
    hits += candidate.hits;
    candidate.hits = 0;
  }
  if (hits >= kConfirmations) {
    confirm(number);
    return PageRun{page, PageCount(kFirstWindow)};
  }
  candidateAt(number + 1) = Candidate{number + 1, hits};
  return PageRun{page, PageCount(1)};
}

PageRun StreamTracker::takeBehind(PageCount limit) {
  if (given_up_.count.value() > 0 && limit.value() > 0) {
    const PageRun run{given_up_.first, std::min(limit, given_up_.count)};
    given_up_ = {run.first + run.count.value(), given_up_.count - run.count};
    return run;
  }
  for (size_t i = 0; i < kStreams; ++i) {
    if (next_[i] == kFarAway || next_[i] - streams_[i].start.value() < kScanLength) continue;
    // Where a scan has ended, what is still there may since have found another use.
    if (tick_ - streams_[i].last_use > kRunning) continue;
    // The cursor is somewhere in the last window fetched; what lies before that has been passed.
    const uint64_t ahead = window_[i] + kKeepBehind;
    const uint64_t left = next_[i] - streams_[i].behind.value();
    if (left <= ahead) continue;
    const PageRun run{streams_[i].behind, PageCount(std::min(limit.value(), left - ahead))};
    if (run.count.value() == 0) continue;
    streams_[i].behind = run.first + run.count.value();
    return run;
  }
  return PageRun{};
}

}  // namespace tidepool
