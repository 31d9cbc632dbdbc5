// SPDX-License-Identifier: Apache-2.0
// Arithmetic of patterns; registers and memory may hold anything, so nothing here may overflow.
#include "runtime/policy/indirect_pattern.h"

#include <cstring>
#include <utility>

namespace tidepool {
namespace {

// A base below this is no array, an index from here on is none that a pair of registers holds.
constexpr uint64_t kLeastBase = uint64_t{1} << 24;
constexpr uint64_t kMostIndex = uint64_t{1} << 32;

uint64_t pairAddress(const FaultSample& sample, size_t pair) {
  constexpr size_t kRegisters = IndexPlace::kRegisters;
  const uint64_t scale = pair < kRegisters * kRegisters ? 8 : 4;
  const size_t base_register = pair / kRegisters % kRegisters;
  const size_t index_register = pair % kRegisters;
  const uint64_t base = sample.registers[base_register];
  const uint64_t index = sample.registers[index_register];
  if (base_register == index_register || base < kLeastBase || base >= kAddressEnd || index == 0 ||
      index >= kMostIndex) {
    return 0;
  }
  return base + index * scale;
}

}  // namespace

const IndexPlace::Stack& FaultView::stack() const {
  if (!std::exchange(have_stack_, true)) {
    stack_.fill(0);
    if (couldBeAddress(sample.stack)) {
      memory.read(sample.stack - IndexPlace::kRedZone, std::as_writable_bytes(std::span(stack_)));
    }
  }
  return stack_;
}

uint64_t IndexPlace::addressIn(const FaultView& fault) const {
  uint64_t address = 0;
  if (number_ < kRegisters) {
    address = fault.sample.registers[number_];
  } else if (number_ < kSingle) {
    address = fault.stack()[number_ - kRegisters];
  } else if (number_ < kCount) {
    address = pairAddress(fault.sample, number_ - kSingle);
  }
  return couldBeAddress(address) ? address : 0;
}

int64_t indexValue(const std::byte* bytes, uint8_t width) {
  TP_DCHECK(width == 4 || width == 8);
  if (width == 4) {
    uint32_t value;
    std::memcpy(&value, bytes, sizeof value);
    return value;
  }
  int64_t value;
  std::memcpy(&value, bytes, sizeof value);
  return value;
}

std::optional<uint64_t> targetOf(int64_t base, int64_t value, int64_t stride) {
  int64_t distance, target;
  if (__builtin_mul_overflow(value, stride, &distance) ||
      __builtin_add_overflow(base, distance, &target) ||
      !couldBeAddress(static_cast<uint64_t>(target))) {
    return std::nullopt;
  }
  return static_cast<uint64_t>(target);
}

std::optional<int64_t> baseOf(uint64_t address, int64_t value, int64_t stride) {
  int64_t distance, base;
  if (__builtin_mul_overflow(value, stride, &distance) ||
      __builtin_sub_overflow(static_cast<int64_t>(address), distance, &base)) {
    return std::nullopt;
  }
  return base;
}

}  // namespace tidepool
