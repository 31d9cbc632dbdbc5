// SPDX-License-Identifier: Apache-2.0
// When the service threads end, and what they tell of themselves. Thread-safe.
#pragma once

#include <array>
#include <atomic>
#include <ctime>

#include "runtime/base/units.h"

namespace tidepool {

class ServiceControl {
 public:
  /// True once they are to end: acquire pairs with the release of stop().
  bool stopping() const { return stopping_.load(std::memory_order_acquire); }
  /// They end for good, or for a moment (pause()). The caller rings their doorbells.
  void stop() { stopping_.store(true, std::memory_order_release); }
  void pause() {
    pausing_ = true;
    stop();
  }
  /// Before they are started again, and once they run.
  void beginRestart() { stopping_.store(false, std::memory_order_relaxed); }
  void endRestart() { pausing_ = false; }
  /// For themselves before they end.
  bool pausing() const { return pausing_; }

  /// The code that has started them.
  void setClocks(std::array<clockid_t, 3> clocks) {
    for (size_t i = 0; i < clocks.size(); ++i) clocks_[i].store(clocks[i]);
  }
  /// CPU time that they have used.
  Nanoseconds cpuTime() const {
    Nanoseconds sum;
    for (const auto& published : clocks_) {
      timespec time;
      const clockid_t clock = published.load();
      if (clock == 0 || clock_gettime(clock, &time) != 0) continue;
      sum += Nanoseconds(static_cast<uint64_t>(time.tv_sec) * 1'000'000'000u +
                         static_cast<uint64_t>(time.tv_nsec));
    }
    return sum;
  }

  /// Processor that the fault service is bound to, beside the threads it serves; -1: none. That
  /// service sets it.
  int faultProcessor() const { return fault_processor_.load(std::memory_order_relaxed); }
  void setFaultProcessor(int cpu) { fault_processor_.store(cpu, std::memory_order_relaxed); }

 private:
  std::atomic<bool> stopping_{false};
  bool pausing_ = false;  // written while none of them runs, or by who ends them, before stop()
  std::array<std::atomic<clockid_t>, 3> clocks_{};  // 0: not running
  std::atomic<int> fault_processor_{-1};
};

}  // namespace tidepool
