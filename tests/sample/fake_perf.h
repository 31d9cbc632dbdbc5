// SPDX-License-Identifier: Apache-2.0
// Rings that tests fill as the kernel would, and a port that opens them. The rings outlive what
// opened them. Not thread-safe.
#pragma once

#include <deque>
#include <memory>
#include <optional>
#include <vector>

#include "runtime/os/perf_events.h"

namespace tidepool {

/// What the kernel and the reader share of one ring.
struct FakeRingMemory {
  std::vector<std::byte> bytes = std::vector<std::byte>(8192);
  uint64_t head = 0;
  uint64_t tail = 0;
  bool running = false;

  /// A record of kPmuSampleType; dropped, as the kernel does, if the ring is full.
  void sample(uint32_t process, uint64_t address) {
    struct Record {
      uint32_t type = 9;
      uint16_t misc = 0;
      uint16_t size = sizeof(Record);
      uint32_t process, thread;
      uint64_t address, weight = 0, source = 2;
    };
    const Record record{.process = process, .thread = process, .address = address};
    if (head + sizeof record - tail > bytes.size()) return;
    for (size_t i = 0; i < sizeof record; ++i) {
      bytes[head++ % bytes.size()] = reinterpret_cast<const std::byte*>(&record)[i];
    }
  }
};

class FakePerfPort final : public PerfPort {
 public:
  std::optional<ErrorCode> refuses;
  int absent = -1;  // a processor that is not there

  Result<std::unique_ptr<PerfRing>> open(const MemoryEvent&, uint64_t, int cpu) override {
    if (refuses) return fail(*refuses, "refused");
    if (cpu == absent) return fail(ErrorCode::kNotFound, "no processor %d", cpu);
    return std::unique_ptr<PerfRing>(new Ring(memory_.emplace_back()));
  }
  Result<std::unique_ptr<FaultRing>> openFaults(int) override {
    return fail(ErrorCode::kUnsupported, "no registers");
  }
  FakeRingMemory& ring(size_t number) { return memory_[number]; }
  size_t rings() const { return memory_.size(); }

 private:
  class Ring final : public PerfRing {
   public:
    explicit Ring(FakeRingMemory& memory) : memory_(memory) {}
    std::span<const std::byte> data() const override { return memory_.bytes; }
    uint64_t head() const override { return memory_.head; }
    void release(uint64_t tail) override { memory_.tail = tail; }
    void start() override { memory_.running = true; }
    void stop() override { memory_.running = false; }

   private:
    FakeRingMemory& memory_;
  };
  std::deque<FakeRingMemory> memory_;
};

}  // namespace tidepool
