// SPDX-License-Identifier: Apache-2.0
// Finds ascending fault streams, says how far to fetch ahead of each, and which pages behind it can
// go first, so that a scan does not flush the hot set. Not thread-safe: one owner. No allocation.
// Distances are pages.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "runtime/base/units.h"

namespace tidepool {

/// `count` pages from `first`; nothing when count is 0.
struct PageRun {
  PageIndex first;
  PageCount count;
};

class StreamTracker {
 public:
  // Streams followed at once: a trainer reads a handful of files and tables in step.
  static constexpr size_t kStreams = 16;
  // Adjacent faults before a stream is believed. Two is not enough: a 400-byte row that straddles
  // two pages makes two adjacent faults, and so do a tenth of all its neighbours.
  static constexpr uint32_t kConfirmations = 3;
  static constexpr uint64_t kFirstWindow = 4;   // 16 KiB, the smallest fetch worth a cluster
  static constexpr uint64_t kLastWindow = 256;  // 1 MiB
  // Pages a stream must have run before what it leaves behind counts as scanned once.
  static constexpr uint64_t kScanLength = 512;
  // Pages kept behind the cursor: readers that step back a little, or that lag in another thread.
  static constexpr uint64_t kKeepBehind = 64;

  /// Tells of a fault on `page`; returns what to bring in, starting at `page`: one page when the
  /// fault looks random. Pages past the first are hints: clip them to what exists and is absent.
  PageRun onFault(PageIndex page);

  /// Next run, of at most `limit` pages, that a long stream has left behind. Each page is reported
  /// once. count is 0 when there is none. Ask before moving the clock hand.
  PageRun takeBehind(PageCount limit);

  /// True if `page` lies in what a confirmed stream is passing over now.
  bool streaming(PageIndex page) const;

 private:
  struct Stream {
    PageIndex start;        // first fault of the stream
    PageIndex next;         // where the next fault of a pure scan would be
    PageIndex behind;       // pages before it were reported by takeBehind()
    uint64_t window = 0;    // pages fetched by the last fault
    uint32_t hits = 0;      // adjacent faults so far; 0: free slot
    uint64_t last_use = 0;  // tick of the last fault, for replacement
  };

  Stream* find(PageIndex page);
  Stream* replaceOldest();

  std::array<Stream, kStreams> streams_{};
  uint64_t tick_ = 0;
};

}  // namespace tidepool
