// SPDX-License-Identifier: Apache-2.0
// Stream detection and window growth. See stream.h.
#include "runtime/policy/stream.h"

#include <algorithm>

namespace tidepool {

StreamTracker::Stream* StreamTracker::find(PageIndex page) {
  Stream* best = nullptr;
  for (Stream& stream : streams_) {
    if (stream.hits == 0 || page < stream.next) continue;
    // Pages of the scanned range that were local already do not fault, so a confirmed stream may
    // skip ahead by up to its window; an unconfirmed one must be exactly adjacent.
    if (page - stream.next > (stream.hits >= kConfirmations ? stream.window : 0)) continue;
    if (best == nullptr || stream.next > best->next) best = &stream;
  }
  return best;
}

StreamTracker::Stream* StreamTracker::replaceOldest() {
  // A confirmed stream outlives many random faults: it is only given up when it is eight times
  // as long unused as the oldest of the others.
  Stream* oldest = &streams_[0];
  uint64_t oldest_age = 0;
  for (Stream& stream : streams_) {
    if (stream.hits == 0) return &stream;
    uint64_t age = tick_ - stream.last_use;
    if (stream.hits >= kConfirmations) age /= 8;
    if (age >= oldest_age) {
      oldest = &stream;
      oldest_age = age;
    }
  }
  return oldest;
}

PageRun StreamTracker::onFault(PageIndex page) {
  ++tick_;
  Stream* stream = find(page);
  if (stream == nullptr) {
    stream = replaceOldest();
    *stream = Stream{page, page + 1, page, 0, 1, tick_};
    return PageRun{page, PageCount(1)};
  }
  stream->last_use = tick_;
  if (stream->hits < kConfirmations) ++stream->hits;
  if (stream->hits < kConfirmations) {
    stream->next = page + 1;
    return PageRun{page, PageCount(1)};
  }
  stream->window = std::clamp(stream->window * 2, kFirstWindow, kLastWindow);
  stream->next = page + stream->window;
  return PageRun{page, PageCount(stream->window)};
}

PageRun StreamTracker::takeBehind(PageCount limit) {
  for (Stream& stream : streams_) {
    if (stream.hits < kConfirmations || stream.next - stream.start < kScanLength) continue;
    // The cursor is somewhere in the last window fetched; what lies before it has been passed.
    const uint64_t distance = stream.window + kKeepBehind;
    if (stream.next - stream.behind <= distance) continue;
    const uint64_t count = std::min(limit.value(), (stream.next - stream.behind) - distance);
    if (count == 0) continue;
    const PageRun run{stream.behind, PageCount(count)};
    stream.behind = stream.behind + count;
    return run;
  }
  return PageRun{};
}

bool StreamTracker::streaming(PageIndex page) const {
  return std::any_of(streams_.begin(), streams_.end(), [page](const Stream& stream) {
    return stream.hits >= kConfirmations && page >= stream.start && page < stream.next;
  });
}

}  // namespace tidepool
