// SPDX-License-Identifier: Apache-2.0
// Finds ascending and descending fault streams, says how far to fetch ahead of each, and which
// pages behind it can go first, so that a scan does not flush the hot set. Not thread-safe: one
// owner. No allocation. Distances are pages.
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
  StreamTracker();

  // Streams followed at once: a trainer reads a handful of files and tables in step.
  static constexpr size_t kStreams = 16;
  // Adjacent faults before a stream is believed. Two is not enough: a 400-byte row that straddles
  // two pages makes two adjacent faults, and so do a tenth of all its neighbours.
  static constexpr uint32_t kConfirmations = 3;
  static constexpr uint64_t kFirstWindow = 4;   // 16 KiB, the smallest fetch worth a cluster
  static constexpr uint64_t kLastWindow = 256;  // 1 MiB
  // A stream is running if its last fault is at most so many faults ago.
  static constexpr uint64_t kRunning = 128;
  // Pages a stream must have run before what it leaves behind counts as scanned once.
  static constexpr uint64_t kScanLength = 512;
  // Pages kept behind the cursor: readers that step back a little, or that lag in another thread.
  static constexpr uint64_t kKeepBehind = 64;

  /// Tells of a fault on `page`; returns what to bring in: one page when the fault looks random,
  /// else a run that begins with `page`, or ends with it where a stream descends. The other pages
  /// are hints: clip them to what exists and is absent, and begin next to `page`.
  PageRun onFault(PageIndex page);
  /// What the last onFault() of a stream showed to be passed: the pages of its window before.
  PageRun passed() const { return passed_; }

  /// The program says that it is done with these pages: takeBehind() reports them next, in place of
  /// what was given up before and not taken yet.
  void giveUp(PageRun run) { given_up_ = run; }

  /// Next run, of at most `limit` pages, that was given up, or that a long and still running stream
  /// has left behind. Each page is reported once. count is 0 when there is none. Ask before moving
  /// the clock hand.
  PageRun takeBehind(PageCount limit);

 private:
  // A stream is followed by its position, which goes up in either direction: the page's number, or
  // what is left of it.
  enum Direction : uint8_t { kUp, kDown };
  static constexpr uint64_t kMirror = uint64_t{1} << 62;
  static uint64_t positionOf(uint64_t page, Direction direction) {
    return direction == kUp ? page : kMirror - page;
  }
  /// The pages at `count` positions from `position`, as far as there are such pages.
  static PageRun pagesAt(uint64_t position, uint64_t count, Direction direction);

  /// A run of faults in one direction that is not believed yet, filed under the position it would
  /// go on with.
  struct Candidate {
    uint64_t next = 0;
    uint32_t hits = 0;  // adjacent faults so far; 0: free
  };
  struct Stream {
    uint64_t start;         // position of its first fault
    uint64_t behind;        // positions before it were reported by takeBehind()
    uint64_t last_use = 0;  // tick of the last fault, for replacement
    Direction direction = kUp;
  };
  static constexpr size_t kCandidates = 64;
  static constexpr size_t kNone = kStreams;
  using Candidates = std::array<Candidate, kCandidates>;

  static Candidate& candidateAt(Candidates& candidates, uint64_t position);
  size_t find(uint64_t page) const;
  PageRun goOn(size_t index, uint64_t page);
  bool isThird(uint64_t position, Candidates& candidates);
  void confirm(uint64_t position, Direction direction);

  std::array<Candidates, 2> candidates_{};  // by direction
  std::array<Stream, kStreams> streams_{};
  // What find() reads on every fault, in two dense rows. An unused stream has kFarAway.
  static constexpr uint64_t kFarAway = UINT64_MAX;
  std::array<uint64_t, kStreams> next_;    // position of the next fault of a pure scan
  std::array<uint64_t, kStreams> window_;  // pages fetched by the last fault
  uint64_t tick_ = 0;
  PageRun passed_;
  PageRun given_up_{};
};

}  // namespace tidepool
