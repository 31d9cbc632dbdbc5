// SPDX-License-Identifier: Apache-2.0
// A FaultPort over another one that fails on purpose, at random from a seed: moves meet pinned
// pages, copies meet a changing address space or no memory, operations end half-way. What it
// reports is what it did. Thread-safe; owns the port below it.
#pragma once

#include <algorithm>
#include <atomic>
#include <functional>
#include <memory>
#include <utility>

#include "runtime/os/fault_port.h"

namespace tidepool {

/// One in so many calls fails; 0: none does.
struct FaultyRates {
  uint64_t move_busy = 0;   // kBusy, or kBusy after a part of the range
  uint64_t move_retry = 0;  // kRetry, or kRetry after a part
  uint64_t copy_retry = 0;
  uint64_t copy_no_memory = 0;
  uint64_t protect_fails = 0;
  /// Called with the source of every move just before it, as a thread of the program might act.
  std::function<void(uintptr_t from, Bytes size)> before_move = nullptr;
};

class FaultyPort final : public FaultPort {
 public:
  FaultyPort(std::unique_ptr<FaultPort> below, const FaultyRates& rates, uint64_t seed)
      : below_(std::move(below)), rates_(rates), state_(seed) {}

  Result<std::unique_ptr<FaultPort>> reopen() const override {
    auto below = below_->reopen();
    if (!below) return tl::unexpected(below.error());
    return std::unique_ptr<FaultPort>(
        std::make_unique<FaultyPort>(std::move(*below), rates_, state_.load()));
  }
  Status arm(uintptr_t address, Bytes size) override { return below_->arm(address, size); }
  Status disarm(uintptr_t address, Bytes size) override { return below_->disarm(address, size); }

  using FaultPort::copy;
  PortResult copy(uintptr_t to, const std::byte* from, Bytes size, Wake wake, Arm writes) override {
    if (hit(rates_.copy_no_memory)) return {PortOutcome::kNoMemory, Bytes()};
    if (!hit(rates_.copy_retry)) return below_->copy(to, from, size, wake, writes);
    return inPart(PortOutcome::kRetry, size,
                  [&](Bytes part) { return below_->copy(to, from, part, wake, writes); });
  }
  PortResult move(uintptr_t to, uintptr_t from, Bytes size, Wake wake) override {
    if (rates_.before_move) rates_.before_move(from, size);
    const bool busy = hit(rates_.move_busy);
    if (!busy && !hit(rates_.move_retry)) return below_->move(to, from, size, wake);
    return inPart(busy ? PortOutcome::kBusy : PortOutcome::kRetry, size,
                  [&](Bytes part) { return below_->move(to, from, part, wake); });
  }
  Status poison(uintptr_t address, Bytes size) override { return below_->poison(address, size); }
  void wake(uintptr_t address, Bytes size) override { below_->wake(address, size); }
  Status writeProtect(uintptr_t address, Bytes size, Wake unprotect) override {
    // Unprotecting must work, or writers wait for ever: the kernel cannot fail it on our ranges.
    if (unprotect == Wake::kNo && hit(rates_.protect_fails)) {
      return fail(ErrorCode::kInternal, "injected");
    }
    return below_->writeProtect(address, size, unprotect);
  }
  size_t read(std::span<MissingFault> out) override { return below_->read(out); }
  int fd() const override { return below_->fd(); }
  bool canMove() const override { return below_->canMove(); }
  bool tracksWrites() const override { return below_->tracksWrites(); }
  bool canPoison() const override { return below_->canPoison(); }

 private:
  /// SplitMix64 over a shared counter: any thread may draw.
  uint64_t draw() {
    uint64_t z = state_.fetch_add(0x9e3779b97f4a7c15, std::memory_order_relaxed);
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9;
    z = (z ^ z >> 27) * 0x94d049bb133111eb;
    return z ^ z >> 31;
  }
  bool hit(uint64_t one_in) { return one_in != 0 && draw() % one_in == 0; }

  /// Does a random part of a range of several pages, then claims `outcome`.
  template <typename Operation>
  PortResult inPart(PortOutcome outcome, Bytes size, Operation operation) {
    const uint64_t pages = size.value() / kPageSize;
    const uint64_t part = pages > 1 ? draw() % pages : 0;
    if (part == 0) return {outcome, Bytes()};
    const PortResult result = operation(Bytes(part * kPageSize));
    if (result.outcome != PortOutcome::kDone) return result;
    return {outcome, result.done};
  }

  std::unique_ptr<FaultPort> below_;
  const FaultyRates rates_;
  std::atomic<uint64_t> state_;
};

}  // namespace tidepool
