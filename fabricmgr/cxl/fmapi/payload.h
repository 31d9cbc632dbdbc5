// SPDX-License-Identifier: Apache-2.0
// Payloads of CXL commands as bytes: little-endian fields, read and written one after the other.
// Plain values, no input or output; a reader does not own its bytes. Not thread-safe, each a
// thread's own.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace tidepool::cxl::fmapi {

using Payload = std::vector<uint8_t>;
using PayloadView = std::span<const uint8_t>;

/// Reads fields in order. What lies beyond the end reads as zero: decoders look at the length
/// first, so that they can say what is missing.
class PayloadReader {
 public:
  explicit PayloadReader(PayloadView bytes) : bytes_(bytes) {}

  uint8_t u8() { return static_cast<uint8_t>(number(1)); }
  uint16_t u16() { return static_cast<uint16_t>(number(2)); }
  uint32_t u24() { return static_cast<uint32_t>(number(3)); }
  uint32_t u32() { return static_cast<uint32_t>(number(4)); }
  uint64_t u64() { return number(8); }
  void skip(size_t count) { bytes_ = bytes_.subspan(std::min(count, bytes_.size())); }
  /// At most so many.
  PayloadView take(size_t count) {
    const PayloadView taken = bytes_.first(std::min(count, bytes_.size()));
    skip(count);
    return taken;
  }
  PayloadView rest() const { return bytes_; }

 private:
  uint64_t number(size_t count) {
    uint64_t value = 0;
    const PayloadView taken = take(count);
    for (size_t i = 0; i < taken.size(); ++i) value |= uint64_t{taken[i]} << (8 * i);
    return value;
  }

  PayloadView bytes_;
};

/// Appends fields in order.
class PayloadWriter {
 public:
  PayloadWriter& u8(uint8_t value) { return number(value, 1); }
  PayloadWriter& u16(uint16_t value) { return number(value, 2); }
  PayloadWriter& u24(uint32_t value) { return number(value, 3); }
  PayloadWriter& u32(uint32_t value) { return number(value, 4); }
  PayloadWriter& u64(uint64_t value) { return number(value, 8); }
  PayloadWriter& zeros(size_t count) {
    bytes_.resize(bytes_.size() + count);
    return *this;
  }
  PayloadWriter& bytes(PayloadView more) {
    bytes_.insert(bytes_.end(), more.begin(), more.end());
    return *this;
  }
  Payload take() { return std::move(bytes_); }

 private:
  PayloadWriter& number(uint64_t value, size_t count) {
    for (size_t i = 0; i < count; ++i) bytes_.push_back(static_cast<uint8_t>(value >> (8 * i)));
    return *this;
  }

  Payload bytes_;
};

}  // namespace tidepool::cxl::fmapi
