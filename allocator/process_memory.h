// SPDX-License-Identifier: Apache-2.0
// What all contexts of a process share: one set of options, one source of managed memory (started
// when it is first needed), one ledger of local memory held outside it. Thread-safe. Its lock is
// taken under the heap's locks, and holds nothing but the Runtime's below it.
#pragma once

#include <atomic>
#include <memory>
#include <optional>

#include "allocator/memory_source.h"
#include "runtime/base/ledger.h"
#include "runtime/base/mutex.h"

namespace tidepool {

enum class MemoryOrigin : uint8_t {
  kNone,  // none has been needed yet
  kOwn,   // a runtime of libtidepool's
  kRun,   // that of `tidepool run`
};

class ProcessMemory {
 public:
  static ProcessMemory& instance();

  /// One context more. The first settles the options: those of the run if this process is managed
  /// by one, else `wanted`, else what TIDEPOOL_CONF says. Errors: kConflict if `wanted` differs
  /// from what is settled already; what the options themselves are refused for.
  Status join(const std::optional<Options>& wanted);
  /// One context less; the last stops what was started. It has no heaps.
  void leave();

  /// How often options were settled: another number when all contexts were closed meanwhile.
  uint64_t generation() const { return generation_.load(std::memory_order_relaxed); }

  /// While a context is open.
  const Options& options() const { return options_; }
  MemoryOrigin origin();
  /// Starts it if need be. Errors: as Runtime::start().
  Result<MemorySource*> memory();
  /// Null: not started.
  MemorySource* started();

  /// Errors: kNoSpace when the budget does not hold it.
  Status chargeLocal(Bytes size);
  void dischargeLocal(Bytes size);
  /// The same for a child of fork() that has not been given back to its program: takes no lock,
  /// which a thread of the parent's may have had.
  void dischargeInChild(Bytes size);
  Bytes charged();
  /// Managed memory that is to stay local for good. Its pages count to the budget as they are
  /// touched; this sees to it that the budget holds them all. Errors: kNoSpace.
  Status promiseLocal(Bytes size);
  void forgoLocal(Bytes size) { promised_.discharge(size); }

  /// For fork(), which must find it whole.
  Mutex& mutex() TP_RETURNS(mutex_) { return mutex_; }

 private:
  Status settle(const std::optional<Options>& wanted) TP_REQUIRES(mutex_);
  Status startLocked() TP_REQUIRES(mutex_);
  /// The budget without what `other` holds of it.
  Bytes budgetBeside(const Ledger& other) const;

  Mutex mutex_;
  Options options_;  // fixed while there are contexts
  size_t contexts_ TP_GUARDED_BY(mutex_) = 0;
  std::atomic<uint64_t> generation_{0};
  bool of_run_ TP_GUARDED_BY(mutex_) = false;
  std::unique_ptr<MemorySource> source_ TP_GUARDED_BY(mutex_);
  Ledger promised_;
  Ledger ledger_;  // what was charged through us, also after the source has been told
};

}  // namespace tidepool
