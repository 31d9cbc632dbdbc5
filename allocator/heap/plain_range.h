// SPDX-License-Identifier: Apache-2.0
// Ordinary local memory for heaps that are pinned to it: a range of address space outside the
// managed one, handed out in granules. Nothing ever moves there, so devices may be given it, and it
// costs no fault but the kernel's. Thread-safe; lives as long as the process.
#pragma once

#include <memory>

#include "runtime/base/result.h"
#include "runtime/base/units.h"
#include "runtime/space/range_allocator.h"

namespace tidepool {

class PlainRange {
 public:
  /// Errors: kNoMemory when there is too little address space.
  static Result<std::unique_ptr<PlainRange>> create();

  uintptr_t base() const { return base_; }
  Bytes size() const { return size_; }

  /// Zero-filled; whole granules. Errors: kNoMemory.
  Result<uintptr_t> take(Bytes size, Bytes alignment);
  /// What was taken, or whole granules of it.
  void give(uintptr_t start, Bytes size);
  /// For fork().
  Mutex& mutex() { return ranges_.mutex(); }

 private:
  PlainRange(uintptr_t base, Bytes size) : base_(base), size_(size), ranges_(size, {base, 0}) {}

  const uintptr_t base_;
  const Bytes size_;
  RangeAllocator ranges_;
};

}  // namespace tidepool
