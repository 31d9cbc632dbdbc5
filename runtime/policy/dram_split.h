// SPDX-License-Identifier: Apache-2.0
// How local memory is divided between managed pages and the rows of embedding tables, by marginal
// gain in time: a step of memory goes where it saves more. Both sides are asked what a step more
// would save and a step less cost. Rows know it from their live miss-ratio curves. Of pages only
// faults are seen: one on a page that was evicted within the last step's worth of evictions would
// have been a hit with a step more (a ghost list, as in ARC: Megiddo and Modha, FAST 2003). What a
// step less costs cannot be seen, since touches of local pages leave no trace; it is taken to be
// what the last step gained, continued in a straight line from two ghost distances: with falling
// gains, at the least as much as one step more is worth. The step itself is that of utility-based
// partitioning (UCP: Qureshi and Patt, MICRO 2006), one at a time, since curves change. Where
// pages lose nothing and then, a step further, all of a loop's (a cliff), that shows only after the
// step: it is taken back, and tried again ever more seldom.
// Pure and deterministic; not thread-safe: one owner. Allocates nothing.
#pragma once

#include <cstdint>

#include "runtime/base/units.h"

namespace tidepool {

class DramSplit {
 public:
  /// A step is such a part of all local memory.
  static constexpr uint64_t kSteps = 32;

  /// What has been seen since the last decision.
  struct Window {
    // Faults from far memory on pages that were evicted within the last step's worth of evictions,
    // and within the step's worth before those; and what all of them cost their threads.
    uint64_t near = 0, next = 0;
    Nanoseconds faulted{};
    double gained = 0, lost = 0;  // hits in rows: with a step more, and those that a step less has
    uint64_t fetched = 0;         // rows, from far memory
    Nanoseconds waited{};         // for those: nothing, if they were read ahead in time
  };
  /// What the tables have now, and how far that may go.
  struct Bounds {
    Bytes rows, step, least, most;
  };
  /// What a step is worth a window, in ns: one more, and the last of those that there are. `doubt`:
  /// that much more or less may be chance.
  struct Worth {
    double pages_more = 0, pages_last = 0, doubt = 0;
    double rows_more = 0, rows_last = 0;
  };

  /// What the tables are to have from now on: what they have, or a step more or less. As they are
  /// while nothing is known of what a row costs.
  Bytes decide(const Window& seen, const Bounds& bounds);
  /// By what has been seen up to now.
  Worth worth() const;

 private:
  struct Cost {
    double ns = 0;  // moving average; 0: unknown
    void average(Nanoseconds took, uint64_t count);
  };
  void remember(const Window& seen);
  void moved(Bytes from, Bytes to);

  static constexpr uint32_t kLeastRest = 16, kMostRest = 1024;

  Cost fault_{48'000};  // a guess until some were seen
  Cost row_;
  // Counts of windows, each of which counts half as much as the next.
  double near_ = 0, next_ = 0, gained_ = 0, lost_ = 0;
  bool settling_ = false;  // a step to the pages was taken in the last window
  bool to_rows_ = false;   // the last step went to the rows
  uint32_t rest_ = 0;      // windows without a step to the rows
  uint32_t next_rest_ = kLeastRest;
};

}  // namespace tidepool
