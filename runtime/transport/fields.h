// SPDX-License-Identifier: Apache-2.0
// Putting the fields of a fixed layout into bytes, and taking them out again, one after the other.
// Little-endian, as hosts are (checked). No allocation; not thread-safe.
#pragma once

#include <bit>
#include <cstddef>
#include <cstring>
#include <span>

#include "runtime/base/check.h"

namespace tidepool::wire {

static_assert(std::endian::native == std::endian::little, "the wire formats are little-endian");

/// Appends fields to a span. The caller's span has the exact size of the layout.
class Writer {
 public:
  explicit Writer(std::span<std::byte> out) : out_(out) {}
  Writer(const Writer&) = delete;
  Writer& operator=(const Writer&) = delete;
  ~Writer() { TP_CHECK_OP(at_, ==, out_.size()); }
  template <typename T>
  void put(const T& value) {
    TP_CHECK_OP(at_ + sizeof value, <=, out_.size());
    memcpy(out_.data() + at_, &value, sizeof value);
    at_ += sizeof value;
  }
  void putZeros(size_t count) {
    TP_CHECK_OP(at_ + count, <=, out_.size());
    memset(out_.data() + at_, 0, count);
    at_ += count;
  }

 private:
  std::span<std::byte> out_;
  size_t at_ = 0;
};

/// Takes fields from a span, in order.
class Reader {
 public:
  explicit Reader(std::span<const std::byte> in) : in_(in) {}
  template <typename T>
  T get() {
    T value;
    TP_CHECK_OP(at_ + sizeof value, <=, in_.size());
    memcpy(&value, in_.data() + at_, sizeof value);
    at_ += sizeof value;
    return value;
  }

 private:
  std::span<const std::byte> in_;
  size_t at_ = 0;
};

}  // namespace tidepool::wire
