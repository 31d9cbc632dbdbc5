// SPDX-License-Identifier: Apache-2.0
// Reads what the processor's PMU samples of this process's accesses to memory, one ring a
// processor, and stops the events while sampling has used up its share of a core. Owned and used by
// one thread; allocates at create() only. Not run on hardware yet: see docs/limits.md.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "runtime/os/perf_events.h"
#include "runtime/sample/pmu_records.h"

namespace tidepool {

struct PmuSamplerConfig {
  int processors = 1;
  uint32_t process = 0;  // samples of others (forked children inherit events) are dropped
  double cpu_share = 0.01;
};

class PmuSampler {
 public:
  /// On a thread of the program, before it starts others. Starts the events. Errors: as
  /// PerfPort::open(); kNotFound when no processor can be opened.
  static Result<std::unique_ptr<PmuSampler>> create(PerfPort& port, const MemoryEvent& event,
                                                    const PmuSamplerConfig& config);

  /// Takes samples from the rings, at most out.size(); returns how many. If it is as many, there
  /// may be more.
  size_t poll(std::span<PmuSample> out);

  /// Charges `spent` and what the samples of the polls since the last call cost the program; it is
  /// `now`, which never goes back. Returns what was charged in all.
  Nanoseconds charge(Nanoseconds now, Nanoseconds spent);

  bool running() const { return running_; }

 private:
  struct Source {
    std::unique_ptr<PerfRing> ring;
    PmuRing records;
  };
  explicit PmuSampler(const PmuSamplerConfig& config) : config_(config) {}
  void setRunning(bool running);

  PmuSamplerConfig config_;
  std::vector<Source> sources_;
  size_t next_ = 0;         // source to begin with, so that none starves
  uint64_t uncharged_ = 0;  // samples taken since the last charge()
  double budget_ns_ = 0;
  Nanoseconds last_now_;
  bool running_ = false;
};

}  // namespace tidepool
