// SPDX-License-Identifier: Apache-2.0
// Stream detection: window growth, several streams at once, random faults, what is left behind.
#include "runtime/policy/stream.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <vector>

namespace tidepool {
namespace {

// Reads pages [first, first + count) in order, faulting on what was not brought in; returns
// the first page not brought in.
uint64_t scan(StreamTracker& tracker, uint64_t first, uint64_t count) {
  uint64_t page = first;
  while (page < first + count) {
    const PageRun run = tracker.onFault(PageIndex(page));
    EXPECT_EQ(run.first, PageIndex(page));
    EXPECT_GE(run.count.value(), 1u);
    page += run.count.value();
  }
  return page;
}

TEST(StreamTracker, WindowGrowsFrom16KiBTo1MiB) {
  StreamTracker tracker;
  std::vector<uint64_t> windows;
  for (uint64_t page = 100; page < 3000;) {
    const PageRun run = tracker.onFault(PageIndex(page));
    windows.push_back(run.count.value());
    page += run.count.value();
  }
  const std::vector<uint64_t> start(windows.begin(), windows.begin() + 10);
  EXPECT_EQ(start, (std::vector<uint64_t>{1, 1, 4, 8, 16, 32, 64, 128, 256, 256}));
}

TEST(StreamTracker, RandomFaultsBringOnePage) {
  StreamTracker tracker;
  std::mt19937_64 random(1);
  uint64_t brought = 0;
  for (int i = 0; i < 20000; ++i) {
    brought += tracker.onFault(PageIndex(random() % 1'000'000)).count.value();
  }
  EXPECT_LE(brought, 20010u);
}

TEST(StreamTracker, RandomFaultsAheadOfAnEndedScanBringOnePage) {
  StreamTracker tracker;
  scan(tracker, 0, 10'000);
  std::mt19937_64 random(4);
  uint64_t extra = 0;
  for (int i = 0; i < 20000; ++i) {
    extra += tracker.onFault(PageIndex(9'000 + random() % 20'000)).count.value() - 1;
  }
  EXPECT_LT(extra, 2000u);
}

TEST(StreamTracker, RowsAcrossTwoPagesAreNoStream) {
  StreamTracker tracker;
  std::mt19937_64 random(2);
  for (int i = 0; i < 5000; ++i) {
    const uint64_t page = random() % 1'000'000 * 4;
    EXPECT_EQ(tracker.onFault(PageIndex(page)).count, PageCount(1));
    EXPECT_EQ(tracker.onFault(PageIndex(page + 1)).count, PageCount(1));
  }
}

TEST(StreamTracker, FollowsEightStreamsAmidRandomFaults) {
  StreamTracker tracker;
  std::mt19937_64 random(3);
  uint64_t cursor[8];
  for (uint64_t i = 0; i < 8; ++i) cursor[i] = i * 1'000'000;
  uint64_t faults = 0;
  while (cursor[0] < 20000) {
    for (uint64_t& page : cursor) {
      page += tracker.onFault(PageIndex(page)).count.value();
      ++faults;
    }
    tracker.onFault(PageIndex(50'000'000 + random() % 10'000'000));
  }
  EXPECT_LT(faults, 8 * 100u);
}

TEST(StreamTracker, WhatIsLeftBehindIsReportedOnceAndNeverAhead) {
  StreamTracker tracker;
  uint64_t reported = 1000;  // everything before it was reported
  for (uint64_t page = 1000; page < 20000;) {
    const PageRun run = tracker.onFault(PageIndex(page));
    page += run.count.value();
    for (;;) {
      const PageRun behind = tracker.takeBehind(PageCount(100));
      if (behind.count == PageCount(0)) break;
      EXPECT_EQ(behind.first, PageIndex(reported));
      reported += behind.count.value();
      EXPECT_LE(behind.count.value(), 100u);
      EXPECT_LE(reported + StreamTracker::kKeepBehind, run.first.value());
    }
  }
  EXPECT_GT(reported, 19000u);
}

TEST(StreamTracker, AnEndedScanLeavesTheRestToTheHand) {
  StreamTracker tracker;
  scan(tracker, 0, 10'000);
  EXPECT_GT(tracker.takeBehind(PageCount(10)).count, PageCount(0));
  for (uint64_t i = 0; i <= StreamTracker::kRunning; ++i) {
    tracker.onFault(PageIndex(1'000'000 + i * 1000));
  }
  EXPECT_EQ(tracker.takeBehind(PageCount(10)).count, PageCount(0));
}

TEST(StreamTracker, ShortScansLeaveNothingBehind) {
  StreamTracker tracker;
  scan(tracker, 5000, 200);
  EXPECT_EQ(tracker.takeBehind(PageCount(1000)).count, PageCount(0));
}

// Reads pages downwards from `last`, `count` of them; the same as scan() otherwise. Returns how
// many faults it took.
uint64_t descend(StreamTracker& tracker, uint64_t last, uint64_t count) {
  uint64_t faults = 0;
  for (uint64_t left = count; left > 0; ++faults) {
    const uint64_t page = last - (count - left);
    const PageRun run = tracker.onFault(PageIndex(page));
    EXPECT_EQ(run.first + run.count.value(), PageIndex(page + 1));
    left -= std::min(left, run.count.value());
  }
  return faults;
}

TEST(StreamTracker, FollowsDescents) {
  StreamTracker tracker;
  EXPECT_LT(descend(tracker, 20'000, 10'000), 60u);
}

TEST(StreamTracker, ADescentEndsWithTheFirstPage) {
  StreamTracker tracker;
  EXPECT_LT(descend(tracker, 699, 700), 20u);
  EXPECT_EQ(tracker.onFault(PageIndex(5000)).count, PageCount(1));
}

TEST(StreamTracker, WhatADescentLeavesBehindLiesAboveIt) {
  StreamTracker tracker;
  uint64_t reported = 20'000;  // everything from it on was reported
  for (uint64_t page = 19'999; page > 1000;) {
    const PageRun run = tracker.onFault(PageIndex(page));
    page -= run.count.value();
    for (;;) {
      const PageRun behind = tracker.takeBehind(PageCount(100));
      if (behind.count == PageCount(0)) break;
      EXPECT_EQ(behind.first + behind.count.value(), PageIndex(reported));
      reported = behind.first.value();
      EXPECT_GE(reported, (run.first + run.count.value()).value() + StreamTracker::kKeepBehind);
    }
  }
  EXPECT_LT(reported, 2000u);
}

TEST(StreamTracker, BothWaysAtOnce) {
  StreamTracker tracker;
  std::mt19937_64 random(5);
  uint64_t up = 1'000'000, down = 4'000'000, faults = 0;
  while (up < 1'020'000) {
    const PageRun ahead = tracker.onFault(PageIndex(up));
    EXPECT_EQ(ahead.first, PageIndex(up));
    up += ahead.count.value();
    const PageRun below = tracker.onFault(PageIndex(down));
    EXPECT_EQ(below.first + below.count.value(), PageIndex(down + 1));
    down -= below.count.value();
    tracker.onFault(PageIndex(50'000'000 + random() % 10'000'000));
    ++faults;
  }
  EXPECT_LT(faults, 110u);
}

TEST(StreamTracker, TurningBackIsAStreamOfItsOwn) {
  StreamTracker tracker;
  const uint64_t next = scan(tracker, 10'000, 2000);
  EXPECT_LT(descend(tracker, next - 1, 2000), 30u);
  EXPECT_LT(descend(tracker, next - 1, 1), 2u);
}

TEST(StreamTracker, SkipsOverPagesThatWereLocal) {
  StreamTracker tracker;
  const uint64_t next = scan(tracker, 0, 1000);
  EXPECT_GT(tracker.onFault(PageIndex(next + 120)).count.value(), 1u);
  EXPECT_EQ(tracker.onFault(PageIndex(next + 5000)).count, PageCount(1));
}

}  // namespace
}  // namespace tidepool
