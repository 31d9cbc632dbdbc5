// SPDX-License-Identifier: Apache-2.0
// How one budget of local memory is divided between the processes of a tree. While they are within
// it together, each may grow by the same part of the room that is left; beyond it they shrink,
// those first that lose least. That alone would leave a process that has become idle what it holds,
// Server (Waldspurger, OSDI 2002); but what is idle is not found by sampling. Each process knows
// what a step of memory more would save it: by faults on pages that were evicted within the last
// steps' worth of evictions (see DramSplit), and by what its tables say; or a small part of a step,
// which may be all that a loop lacks. And what a step less would cost: pages wait in staging before
// they are given up, so how often one of them is taken back says how much the next victims are in
// use. A process pays while a step costs it less than half of what it would save another.
// Pure and deterministic; not thread-safe: one owner. Allocates nothing.
#pragma once

#include <cstdint>
#include <optional>

#include "runtime/base/units.h"

namespace tidepool {

class TreeShare {
 public:
  /// What the other processes are told.
  struct Holding {
    Bytes held;
    Bytes yields;  // the part of it by which it shrinks beside others: less where it costs more
    uint64_t gain = 0;  // what a step of memory more would save, in ns a second
    /// What it gives up each second for those that gain by it.
    Bytes tax() const;
  };
  /// What they say, together.
  struct Others {
    uint32_t processes = 0;
    Bytes held, yields, taxes;
    uint64_t gain = 0, most_gain = 0;
    void add(const Holding& one);
  };
  /// A small part of a step.
  static constexpr uint64_t kParts = 32;
  /// What this process has seen: counts since some beginning, but for the last three.
  struct Seen {
    Nanoseconds saved;          // that a step more would have saved pages and tables
    Nanoseconds saved_by_part;  // and a small part of a step
    uint64_t rescues = 0;       // pages taken back from staging
    PageCount staged;           // in staging now
    PageCount step;
    Nanoseconds fault;  // what one takes that goes to far memory
  };

  /// What this process publishes. To be asked many times a second.
  Holding hold(Bytes held, const Seen& seen, const Others& others, Nanoseconds now);
  /// What it may hold from now on, by what it has published last.
  Bytes share(Bytes budget, const Others& others) const;

 private:
  void remember(const Seen& seen, Nanoseconds now);

  Holding mine_;
  Seen before_;
  std::optional<Nanoseconds> asked_;  // when last
  double since_ = 0;                  // seconds, between the last two times
  // Sums in which the past fades: ns; pages; and pages in staging, times the seconds there.
  double saved_ = 0, saved_by_part_ = 0, rescues_ = 0, page_seconds_ = 0;
};

}  // namespace tidepool
