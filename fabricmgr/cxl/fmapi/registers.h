// SPDX-License-Identifier: Apache-2.0
// A block of device registers. Tests have one that behaves as a device does.
#pragma once

#include <cstddef>
#include <cstdint>

namespace tidepool::cxl::fmapi {

/// Offsets are bytes from the block's start, multiples of the access's width, within bytes(). What
/// is no longer there reads as ones, as PCI has it. Not thread-safe.
class Registers {
 public:
  Registers() = default;
  virtual ~Registers() = default;
  Registers(const Registers&) = delete;
  Registers& operator=(const Registers&) = delete;

  virtual size_t bytes() const = 0;
  virtual uint32_t read32(size_t offset) const = 0;
  virtual uint64_t read64(size_t offset) const = 0;
  virtual void write32(size_t offset, uint32_t value) = 0;
  virtual void write64(size_t offset, uint64_t value) = 0;
};

}  // namespace tidepool::cxl::fmapi
