// SPDX-License-Identifier: Apache-2.0
// Takes a mapping that the kernel cannot write-protect (device-DAX) out of use and puts local
// memory in its place, so that its users wait meanwhile, system calls too. Has a userfaultfd
// and a thread of its own: mremap() of an armed mapping returns only when somebody has read of it,
// and what is armed stays so only then. One swap at a time; the caller sees to that.
#pragma once

#include <memory>

#include "runtime/base/result.h"
#include "runtime/base/service_thread.h"
#include "runtime/base/unique_fd.h"
#include "runtime/base/units.h"

namespace tidepool::os {

class MappingSwap {
 public:
  /// What waits: system calls too, or the process's own code alone, which needs no privilege.
  enum class Holds : uint8_t { kAll, kOwnCode };
  /// Errors: kPermission, kUnsupported (no such events), kNoMemory.
  static Result<std::unique_ptr<MappingSwap>> open(Holds holds = Holds::kAll);
  ~MappingSwap();
  MappingSwap(const MappingSwap&) = delete;
  MappingSwap& operator=(const MappingSwap&) = delete;

  /// From its return on, code that uses [address, address + size) waits. What was mapped there is
  /// unmapped; `fill` is address space of the same size, used for a moment. Errors: kNoMemory; the
  /// range may be unmapped then.
  Status take(uintptr_t address, Bytes size, uintptr_t fill);
  /// Gives it `from`'s bytes, as private memory that nothing is armed for, and lets who waits go
  /// on.
  void fill(uintptr_t address, Bytes size, const std::byte* from);
  /// Instead, when the caller has mapped something else there: lets who waits go on.
  void letGo(uintptr_t address, Bytes size);
  /// In a child of fork(): the thread is the parent's.
  void forgetThread() { thread_.forget(); }

 private:
  MappingSwap(UniqueFd faults, UniqueFd stop)
      : faults_(std::move(faults)), stop_(std::move(stop)) {}
  void readEvents();

  UniqueFd faults_;
  UniqueFd stop_;  // an eventfd
  ServiceThread thread_;
};

}  // namespace tidepool::os
