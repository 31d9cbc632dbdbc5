// SPDX-License-Identifier: Apache-2.0
// A program made of gather loops: a memory of its own for index arrays and stack, far pages that
// come in when touched or foretold, and threads that fault with registers as a compiler would use.
#pragma once

#include <cstring>
#include <map>
#include <random>
#include <set>
#include <vector>

#include "runtime/policy/indirect_prefetcher.h"

namespace tidepool {

class GatherModel final : public MemoryView {
 public:
  explicit GatherModel(uint64_t seed) : random(seed) {}

  size_t read(uint64_t address, std::span<std::byte> out) const override {
    ++reads;
    auto area = areas_.upper_bound(address);
    if (area == areas_.begin()) return 0;
    --area;
    const uint64_t at = address - area->first;
    if (at >= area->second.size()) return 0;
    const size_t count = std::min<size_t>(out.size(), area->second.size() - at);
    std::memcpy(out.data(), area->second.data() + at, count);
    return count;
  }
  bool isFar(uint64_t address) const override {
    return address >= far_begin && address < far_end && !local_.contains(address / 4096);
  }

  /// Memory that can be read.
  void put(uint64_t address, const void* bytes, size_t size) {
    auto& area = areas_[address];
    area.resize(size);
    std::memcpy(area.data(), bytes, size);
  }
  /// Everything becomes far again.
  void evictAll() { local_.clear(); }

  /// The program touches an address; what is foretold comes in.
  void touch(IndirectPrefetcher& prefetcher, FaultSample sample) {
    if (!isFar(sample.address)) return;
    ++faults;
    last = prefetcher.onFault(sample, *this);
    learned += last == IndirectPrefetcher::Result::kLearning ? 1 : 0;
    local_.insert(sample.address / 4096);
    for (const uint64_t page : prefetcher.foretold()) {
      unused_.insert(page / 4096);
      local_.insert(page / 4096);
      ++fetched;
    }
  }
  /// Whether a foretold page is used now for the first time.
  void use(uint64_t address) { used += unused_.erase(address / 4096); }

  FaultSample noise(uint64_t code) {
    FaultSample sample{.code = code, .thread = 1, .stack = kStack};
    for (uint64_t& each : sample.registers) {
      each = random() % 3 == 0 ? random() % 100'000 : kStack + random() % 4096 * 8;
    }
    return sample;
  }

  static constexpr uint64_t kStack = 0x7ffc'0000'1000;
  uint64_t far_begin = 0x10'0000'0000, far_end = far_begin + (uint64_t{1} << 34);
  std::mt19937_64 random;
  mutable uint64_t reads = 0;
  uint64_t faults = 0, fetched = 0, used = 0, learned = 0;
  IndirectPrefetcher::Result last = IndirectPrefetcher::Result::kNothing;

 private:
  std::map<uint64_t, std::vector<std::byte>> areas_;
  std::set<uint64_t> local_, unused_;
};

}  // namespace tidepool
