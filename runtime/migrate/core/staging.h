// SPDX-License-Identifier: Apache-2.0
// Staging: where pages on their way out wait while they are written to far memory. Fixed number of
// segments, one per eviction batch; a slot is one page. The pages are the program's own, moved
// here, so they count against the DRAM budget until the segment is recycled. Used by the migrator
// thread; slotMemory() may be read by the fault service for a slot whose page is kEvicting.
#pragma once

#include <array>
#include <memory>

#include "runtime/base/check.h"
#include "runtime/base/mapping.h"
#include "runtime/base/units.h"
#include "runtime/os/fault_port.h"
#include "runtime/os/kernel.h"

namespace tidepool {

class Staging {
 public:
  static constexpr uint64_t kSlotsPerSegment = 128;  // 512 KiB: large enough to be cheap a page
  static constexpr uint64_t kSegments = 16;

  /// Both must outlive the staging area. Errors: kNoMemory.
  static Result<std::unique_ptr<Staging>> create(FaultPort& port, Kernel& kernel = realKernel());
  /// In a child of fork(), where it is empty: over to a port of the child's own.
  Status renew(FaultPort& port);

  uint64_t firstSlot(uint64_t segment) const { return segment * kSlotsPerSegment; }
  uintptr_t slotAddress(uint64_t slot) const {
    TP_CHECK_OP(slot, <, kSegments * kSlotsPerSegment);
    return base() + slot * kPageSize;
  }
  std::byte* slotMemory(uint64_t slot) const {
    return reinterpret_cast<std::byte*>(slotAddress(slot));
  }
  /// Frees the memory of `slots` slots from `first` on.
  void recycle(uint64_t first, PageCount slots);

 private:
  Staging(Mapping area, Kernel& kernel) : area_(std::move(area)), kernel_(kernel) {}
  uintptr_t base() const { return reinterpret_cast<uintptr_t>(area_.data()); }

  Mapping area_;
  Kernel& kernel_;
};

}  // namespace tidepool
