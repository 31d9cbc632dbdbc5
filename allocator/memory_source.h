// SPDX-License-Identifier: Apache-2.0
// Where managed memory comes from in this process: a Runtime that libtidepool has started itself,
// or the one of the preload library. Thread-safe. Addresses and sizes are page-granular.
#pragma once

#include <memory>

#include "runtime/base/result.h"
#include "runtime/base/units.h"
#include "runtime/options.h"
#include "runtime/space/placement.h"
#include "runtime/space/residency.h"
#include "runtime/tier/tier.h"

namespace tidepool {

class MemorySource {
 public:
  virtual ~MemorySource() = default;

  // As the members of Runtime of the same names say.
  virtual Result<void*> allocate(Bytes size, Bytes alignment) = 0;
  virtual Status release(void* address, Bytes size) = 0;
  virtual Status discard(void* address, Bytes size) = 0;
  virtual Status renew(void* address, Bytes size) = 0;
  virtual Status place(void* address, Bytes size, Placement placement) = 0;
  virtual Result<Residency> residency(const void* address, Bytes size) const = 0;
  virtual void willNeed(void* address, Bytes size) = 0;
  virtual void cold(void* address, Bytes size) = 0;
  virtual void pageOut(void* address, Bytes size) = 0;
  virtual Status chargeLocal(Bytes size) = 0;
  virtual void dischargeLocal(Bytes size) = 0;
  virtual void noteRowsShort(Nanoseconds saved) = 0;
  virtual Result<std::unique_ptr<RowStore>> rowStore(size_t far_tier) = 0;
  /// Up to date. Null if it is of another version, and cannot be read.
  virtual const StatsPage* stats() = 0;

  /// The managed range: fixed.
  uintptr_t base() const { return base_; }
  Bytes size() const { return size_; }
  bool contains(const void* address, Bytes bytes) const {
    const uintptr_t offset = reinterpret_cast<uintptr_t>(address) - base_;
    return offset < size_.value() && bytes.value() <= size_.value() - offset;
  }

 protected:
  void setRange(uintptr_t base, Bytes size) {
    base_ = base;
    size_ = size;
  }

 private:
  uintptr_t base_ = 0;
  Bytes size_;
};

/// Starts a Runtime. Errors: as Runtime::start().
Result<std::unique_ptr<MemorySource>> startOwnMemory(const Options& options);

/// The memory of the preload library in this process, if it manages any. Null: it does not, or is
/// not there. Errors: kUnsupported if it is of another version.
Result<std::unique_ptr<MemorySource>> findRunMemory();
/// The options that the run was given.
Result<Options> runOptions();

}  // namespace tidepool
