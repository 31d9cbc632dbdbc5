// SPDX-License-Identifier: Apache-2.0
// How a loop finds its next target: the address of an element of an index array is in a register,
// in a word on the stack, or is the sum of two registers; the element's value times a stride, plus
// a base, is what the loop touches. An array of pointers is the case of a stride of 1. Pure values.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "runtime/base/debug_check.h"
#include "runtime/base/fault_sample.h"

namespace tidepool {

/// The memory of the program that faults, as the prefetcher may see it.
class MemoryView {
 public:
  virtual ~MemoryView() = default;
  /// Reads from `address` on; returns how many bytes could be had without waiting.
  virtual size_t read(uint64_t address, std::span<std::byte> out) const = 0;
  /// Whether the page of that address is in far memory and could be fetched.
  virtual bool isFar(uint64_t address) const = 0;
};

class FaultView;

/// Where the address of an index may be found. Numbered: registers, stack words, then register
/// pairs (base + index * 4, base + index * 8).
class IndexPlace {
 public:
  static constexpr size_t kRegisters = FaultSample::kRegisters;
  static constexpr size_t kRedZone = 128;  // bytes below the stack pointer that functions may use
  static constexpr size_t kStackWords = 96;
  static constexpr size_t kPairs = 2 * kRegisters * kRegisters;
  static constexpr size_t kSingle = kRegisters + kStackWords;
  static constexpr size_t kCount = kSingle + kPairs;
  using Stack = std::array<uint64_t, kStackWords>;

  IndexPlace() = default;
  explicit IndexPlace(size_t number) : number_(static_cast<uint16_t>(number)) {
    TP_DCHECK_OP(number, <, kCount);
  }

  size_t number() const { return number_; }
  /// The address found here, or 0 if it cannot be one.
  uint64_t addressIn(const FaultView& fault) const;

 private:
  uint16_t number_ = 0;
};

/// A fault, and the memory as it was then. The stack is read once, when it is first asked for.
class FaultView {
 public:
  FaultView(const FaultSample& the_sample, const MemoryView& the_memory)
      : sample(the_sample), memory(the_memory) {}
  FaultView(const FaultView&) = delete;
  FaultView& operator=(const FaultView&) = delete;

  /// Words from the red zone on; those that cannot be had are 0.
  const IndexPlace::Stack& stack() const;

  const FaultSample& sample;
  const MemoryView& memory;

 private:
  mutable bool have_stack_ = false;
  mutable IndexPlace::Stack stack_;
};

/// User addresses end here on every architecture whose registers are sampled.
inline constexpr uint64_t kAddressEnd = uint64_t{1} << 47;
inline constexpr uint64_t kAddressLeast = uint64_t{1} << 16;
constexpr bool couldBeAddress(uint64_t value) {
  return value >= kAddressLeast && value < kAddressEnd;
}

struct IndirectPattern {
  IndexPlace place;
  int16_t offset = 0;  // bytes from there to the element
  uint8_t width = 0;   // of an element's value: 4 (unsigned) or 8 bytes
  int64_t stride = 0;  // bytes from the target of value n to that of n + 1
  int64_t step = 0;    // bytes from one element to the next that the loop will read; never 0

  bool isPointers() const { return stride == 1 && width == 8; }
  bool operator==(const IndirectPattern& other) const {
    return place.number() == other.place.number() && offset == other.offset &&
           width == other.width && stride == other.stride;
  }
};

/// The value of `width` bytes at `bytes`.
int64_t indexValue(const std::byte* bytes, uint8_t width);
/// base + value * stride, unless that is no address.
std::optional<uint64_t> targetOf(int64_t base, int64_t value, int64_t stride);
/// address - value * stride, unless it overflows.
std::optional<int64_t> baseOf(uint64_t address, int64_t value, int64_t stride);

}  // namespace tidepool
