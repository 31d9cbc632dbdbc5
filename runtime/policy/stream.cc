// SPDX-License-Identifier: Apache-2.0
// Stream detection and window growth. See stream.h. A random fault, the usual case, costs one pass
// over sixteen numbers and four look-ups in small tables.
#include "runtime/policy/stream.h"

#include <algorithm>
#include <utility>

#include "runtime/base/check.h"
#include "runtime/base/debug_check.h"

namespace tidepool {

StreamTracker::StreamTracker() {
  next_.fill(kFarAway);
  window_.fill(0);
}

PageRun StreamTracker::pagesAt(uint64_t position, uint64_t count, Direction direction) {
  if (direction == kUp) return {PageIndex(position), PageCount(count)};
  const uint64_t last = kMirror - position;
  count = std::min(count, last + 1);
  return {PageIndex(last + 1 - count), PageCount(count)};
}

StreamTracker::Candidate& StreamTracker::candidateAt(Candidates& candidates, uint64_t position) {
  return candidates[position * 0x9e3779b97f4a7c15ull >> 58];
}

// Pages of the scanned range that were local already do not fault, so a fault may skip ahead of a
// stream by up to its window, but only of one that is running: a random fault has a fair chance to
// hit somewhere ahead of a stream long gone. Of two that match, the one closest before the page.
size_t StreamTracker::find(uint64_t page) const {
  size_t best = kNone;
  uint64_t best_distance = kFarAway;
  for (size_t i = 0; i < kStreams; ++i) {
    // Wraps to a huge number when before it.
    const uint64_t distance = positionOf(page, streams_[i].direction) - next_[i];
    if (distance <= window_[i] && distance < best_distance) {
      if (distance > 0 && tick_ - streams_[i].last_use > kRunning) continue;
      best = i;
      best_distance = distance;
    }
  }
  return best;
}

PageRun StreamTracker::goOn(size_t index, uint64_t page) {
  Stream& stream = streams_[index];
  const uint64_t position = positionOf(page, stream.direction);
  TP_DCHECK_OP(next_[index], >=, stream.start + window_[index]);
  passed_ = pagesAt(next_[index] - window_[index], window_[index], stream.direction);
  stream.last_use = tick_;
  // A skip may be luck: it brings in less, and luck does not last.
  window_[index] = position == next_[index] ? std::min(window_[index] * 2, kLastWindow)
                                            : std::max(window_[index] / 2, kFirstWindow);
  next_[index] = position + window_[index];
  return pagesAt(position, window_[index], stream.direction);
}

// The third of adjacent faults in a direction makes a stream believed.
bool StreamTracker::isThird(uint64_t position, Candidates& candidates) {
  Candidate& candidate = candidateAt(candidates, position);
  uint32_t hits = 1;
  if (candidate.hits > 0 && candidate.next == position) {
    hits += candidate.hits;
    candidate.hits = 0;
  }
  if (hits >= kConfirmations) return true;
  candidateAt(candidates, position + 1) = Candidate{position + 1, hits};
  return false;
}

// It takes the place of the one longest unused.
void StreamTracker::confirm(uint64_t position, Direction direction) {
  size_t oldest = 0;
  for (size_t i = 0; i < kStreams; ++i) {
    if (streams_[i].last_use < streams_[oldest].last_use) oldest = i;
  }
  TP_DCHECK_OP(position, >=, kConfirmations - 1);
  const uint64_t start = position - (kConfirmations - 1);
  streams_[oldest] = Stream{start, start, tick_, direction};
  window_[oldest] = kFirstWindow;
  next_[oldest] = position + kFirstWindow;
}

PageRun StreamTracker::onFault(PageIndex page) {
  const uint64_t number = page.value();
  TP_CHECK_OP(number, <, kMirror - kLastWindow);
  ++tick_;
  passed_ = PageRun{};
  const size_t index = find(number);
  if (index != kNone) return goOn(index, number);
  for (const Direction direction : {kUp, kDown}) {
    const uint64_t position = positionOf(number, direction);
    if (!isThird(position, candidates_[direction])) continue;
    confirm(position, direction);
    return pagesAt(position, kFirstWindow, direction);
  }
  return PageRun{page, PageCount(1)};
}

PageRun StreamTracker::takeBehind(PageCount limit) {
  if (given_up_.count.value() > 0 && limit.value() > 0) {
    const PageRun run{given_up_.first, std::min(limit, given_up_.count)};
    given_up_ = {run.first + run.count.value(), given_up_.count - run.count};
    return run;
  }
  for (size_t i = 0; i < kStreams; ++i) {
    if (next_[i] == kFarAway || next_[i] - streams_[i].start < kScanLength) continue;
    // Where a scan has ended, what is still there may since have found another use.
    if (tick_ - streams_[i].last_use > kRunning) continue;
    // The cursor is somewhere in the last window fetched; what lies before that has been passed.
    const uint64_t ahead = window_[i] + kKeepBehind;
    TP_DCHECK_OP(streams_[i].behind, <=, next_[i]);
    const uint64_t left = next_[i] - streams_[i].behind;
    if (left <= ahead) continue;
    const uint64_t count = std::min(limit.value(), left - ahead);
    if (count == 0) continue;
    const uint64_t from = std::exchange(streams_[i].behind, streams_[i].behind + count);
    return pagesAt(from, count, streams_[i].direction);
  }
  return PageRun{};
}

}  // namespace tidepool
