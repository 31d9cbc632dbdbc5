// SPDX-License-Identifier: Apache-2.0
// Owns one mmap'ed range and unmaps it. Movable, not copyable; not thread-safe. Sizes are bytes.
#pragma once

#include <cstddef>

#include "runtime/base/result.h"
#include "runtime/base/units.h"

namespace tidepool {

class Mapping {
 public:
  Mapping() = default;
  /// Takes over a range that mmap returned.
  Mapping(void* address, Bytes size) : address_(address), size_(size) {}
  Mapping(Mapping&& other) noexcept;
  Mapping& operator=(Mapping&& other) noexcept;
  ~Mapping();

  /// Private zero-filled memory that costs nothing until touched (no swap reservation).
  static Result<Mapping> anonymous(Bytes size);
  /// Shared view of `size` bytes of the file `fd` from `offset` (page-aligned), read and write.
  static Result<Mapping> sharedFile(int fd, Bytes offset, Bytes size);

  /// Leaves the range mapped.
  void abandon() {
    address_ = nullptr;
    size_ = Bytes();
  }

  std::byte* data() const { return static_cast<std::byte*>(address_); }
  Bytes size() const { return size_; }
  bool valid() const { return address_ != nullptr; }

 private:
  void* address_ = nullptr;
  Bytes size_;
};

}  // namespace tidepool
