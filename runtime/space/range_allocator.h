// SPDX-License-Identifier: Apache-2.0
// Which parts of an address range are handed out: best fit over free extents, merged when freed.
// Metadata grows with the number of extents, not with the size of the range. Thread-safe.
// Offsets and sizes are in bytes, multiples of a page.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>

#include "runtime/base/mutex.h"
#include "runtime/base/result.h"
#include "runtime/base/units.h"

namespace tidepool {

/// What a range is for. The heap has one part of the space and what the program maps the other, as
/// far as there is room: a program may map something into a hole that it made, give a range back
/// together with its holes, or rely on a touch of one to fail. None of its heap may be there then.
enum class RangeUse : uint8_t { kMapping, kHeap };

class RangeAllocator {
 public:
  struct Layout {
    /// The address of offset 0, a multiple of a page: what alignments are about.
    uintptr_t base = 0;
    /// Below this only allocateAt() gives anything out.
    uint64_t lowest = 0;
    /// The heap's part, [heap, heap_end), below `lowest` or else the upper end of the range; empty:
    /// there is no division.
    uint64_t heap = 0, heap_end = 0;
  };
  /// All of [0, size) is free at first.
  explicit RangeAllocator(Bytes size, Layout layout);
  explicit RangeAllocator(Bytes size) : RangeAllocator(size, Layout()) {}

  /// Offset of a free range of `size`, its address aligned to `alignment` (a power of two). The
  /// lowest of the tightest fits in the part that is for such use, or else anywhere. Errors:
  /// kNoMemory when no extent is large enough.
  Result<uint64_t> allocate(Bytes size, Bytes alignment, RangeUse use = RangeUse::kMapping);
  /// Allocates exactly [offset, offset + size); false if any of it is taken.
  bool allocateAt(uint64_t offset, Bytes size);
  /// Frees [offset, offset + size), which must be allocated throughout.
  void release(uint64_t offset, Bytes size);
  /// True if no byte of [offset, offset + size) is free.
  bool isAllocated(uint64_t offset, Bytes size) const;
  Bytes allocated() const;
  /// For fork(), which must find the tables whole.
  Mutex& mutex() { return mutex_; }

 private:
  using Extents = std::map<uint64_t, uint64_t>;  // offset -> size
  struct Part {
    uint64_t from, to;
  };
  std::optional<uint64_t> allocateIn(Part part, Bytes size, Bytes alignment) TP_REQUIRES(mutex_);
  void insertFree(uint64_t offset, uint64_t size) TP_REQUIRES(mutex_);
  void eraseFree(Extents::iterator extent) TP_REQUIRES(mutex_);
  void take(Extents::iterator extent, uint64_t offset, uint64_t size) TP_REQUIRES(mutex_);

  const Layout layout_;
  mutable Mutex mutex_;
  Extents free_ TP_GUARDED_BY(mutex_);
  std::set<std::pair<uint64_t, uint64_t>> by_size_ TP_GUARDED_BY(mutex_);  // (size, offset)
  uint64_t allocated_ TP_GUARDED_BY(mutex_) = 0;
};

}  // namespace tidepool
