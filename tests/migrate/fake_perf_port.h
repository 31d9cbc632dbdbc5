// SPDX-License-Identifier: Apache-2.0
// Samples of threads' faults as a test gives them, in the place of the kernel's.
#pragma once

#include <map>
#include <memory>
#include <optional>

#include "runtime/os/perf_events.h"

namespace tidepool {

/// What the kernel and the reader share.
struct FakeThreads {
  std::map<int, FaultSample> latest;
  std::optional<ErrorCode> refuses;
  int opened = 0, open = 0;
};

class FakePerfPort final : public PerfPort {
 public:
  explicit FakePerfPort(FakeThreads& threads) : threads_(threads) {}
  Result<std::unique_ptr<FaultRing>> openFaults(int thread) override {
    if (threads_.refuses) return fail(*threads_.refuses, "refused");
    return std::unique_ptr<FaultRing>(new Ring(threads_, thread));
  }
  Result<std::unique_ptr<PerfRing>> open(const MemoryEvent&, uint64_t, int) override {
    return fail(ErrorCode::kUnsupported, "no accesses");
  }

 private:
  class Ring final : public FaultRing {
   public:
    Ring(FakeThreads& threads, int thread) : threads_(threads), thread_(thread) {
      ++threads_.opened;
      ++threads_.open;
    }
    ~Ring() override { --threads_.open; }
    bool latest(FaultSample& out) const override {
      const auto found = threads_.latest.find(thread_);
      if (found == threads_.latest.end()) return false;
      out = found->second;
      return true;
    }

   private:
    FakeThreads& threads_;
    int thread_;
  };
  FakeThreads& threads_;
};

}  // namespace tidepool
