// SPDX-License-Identifier: Apache-2.0
// Which heap an address belongs to, by the granule it lies in: two bytes a granule of an address
// range, paid for where heaps are. Reading is one subtraction, one compare and one load, from any
// thread. Writers change different granules.
#pragma once

#include <atomic>

#include "runtime/base/mapping.h"
#include "runtime/base/units.h"

namespace tidepool {

/// Number of a heap in this process; 0 stands for none.
using HeapNumber = uint16_t;

class OwnerTable {
 public:
  /// Covers [base, base + size), granule-aligned, in which nobody owns anything. Not while anybody
  /// asks. Errors: kNoMemory.
  Status cover(uintptr_t base, Bytes size) {
    if (base == base_ && size == size_) return {};
    auto entries = Mapping::anonymous(Bytes((size.value() >> kGranuleShift) * sizeof(HeapNumber)));
    if (!entries) return tl::unexpected(entries.error());
    entries_ = std::move(*entries);
    base_ = base;
    size_ = size;
    return {};
  }

  // Relaxed: a block reaches another thread by the program's own synchronisation, which orders its
  // entry with it.
  HeapNumber of(const void* address) const {
    const uintptr_t offset = reinterpret_cast<uintptr_t>(address) - base_;
    if (offset >= size_.value()) return 0;
    return entry(offset >> kGranuleShift).load(std::memory_order_relaxed);
  }

  /// Of whole granules inside the range.
  void set(uintptr_t start, Bytes size, HeapNumber owner) {
    const uintptr_t first = (start - base_) >> kGranuleShift;
    for (uintptr_t i = 0; i < size.value() >> kGranuleShift; ++i) {
      entry(first + i).store(owner, std::memory_order_relaxed);
    }
  }

 private:
  std::atomic<HeapNumber>& entry(uintptr_t granule) const {
    return reinterpret_cast<std::atomic<HeapNumber>*>(entries_.data())[granule];
  }

  uintptr_t base_ = 0;
  Bytes size_;
  Mapping entries_;
};

}  // namespace tidepool
