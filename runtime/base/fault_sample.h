// SPDX-License-Identifier: Apache-2.0
// What a thread was doing when it met an absent page. A plain value.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace tidepool {

struct FaultSample {
  static constexpr size_t kRegisters = 16;
  uint64_t code = 0;     // address of the instruction
  uint64_t address = 0;  // what it touched, to the byte
  int thread = 0;
  uint64_t stack = 0;                            // the stack pointer, also one of the registers
  std::array<uint64_t, kRegisters> registers{};  // the general ones, always in the same order
};

}  // namespace tidepool
