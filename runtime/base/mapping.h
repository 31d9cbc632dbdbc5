// SPDX-License-Identifier: Apache-2.0
// Owns one mmap'ed range and frees it. What it maps lies in Tidepool's own address space (see
// own_space.h) and is left out of core dumps. Movable, not copyable; not thread-safe. Sizes are
// bytes.
#pragma once

#include <cstddef>

#include "runtime/base/result.h"
#include "runtime/base/units.h"

namespace tidepool {

/// After memory was refused: what may be too low, for the end of a message; "" if nothing is
/// limited.
const char* memoryLimitHint();

class Mapping {
 public:
  Mapping() = default;
  /// Takes over a range that mmap returned, or that OwnSpace did.
  Mapping(void* address, Bytes size) : address_(address), size_(size) {}
  Mapping(Mapping&& other) noexcept;
  Mapping& operator=(Mapping&& other) noexcept;
  ~Mapping();

  /// Private zero-filled memory that costs nothing until touched (no swap reservation).
  static Result<Mapping> anonymous(Bytes size);
  /// Shared view of `size` bytes of the file `fd` from `offset` (page-aligned), read and write.
  static Result<Mapping> sharedFile(int fd, Bytes offset, Bytes size);
  /// The same from its beginning, for reading only.
  static Result<Mapping> sharedFileReadable(int fd, Bytes size);

  /// Address space without memory behind it; `alignment` is a power of two.
  static Result<Mapping> reserved(Bytes size, Bytes alignment);
  /// Memory that this process and its children to be share, for what has no need of a descriptor.
  static Result<Mapping> sharedAnonymous(Bytes size);

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
