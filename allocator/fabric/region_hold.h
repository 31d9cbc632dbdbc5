// SPDX-License-Identifier: Apache-2.0
// Takes what is mapped of regions out of reach of this process when its host's lease ends, and
// gives it back when the agent has said that it is the process's still. Threads that touch it
// meanwhile wait, in a table's call, a checkpoint, or while a table is made. Without a right to
// userfaultfd nobody can be made to wait, and the rows are lost. Thread-safe.
#pragma once

#include <atomic>
#include <memory>
#include <vector>

#include "runtime/base/mapping.h"
#include "runtime/base/mutex.h"
#include "runtime/os/mapping_swap.h"
#include "runtime/tier/direct_file_tier.h"

namespace tidepool {

class FabricRows;

class RegionHold {
 public:
  /// What is mapped; a tier's own view and the window of rows are two places.
  void add(DirectFileTier& tier) TP_EXCLUDES(mutex_);
  void add(FabricRows& rows) TP_EXCLUDES(mutex_);
  /// Before it is unmapped.
  void remove(DirectFileTier& tier) TP_EXCLUDES(mutex_);
  void remove(FabricRows& rows) TP_EXCLUDES(mutex_);

  /// From its return on nobody reads or writes there.
  void suspend() TP_EXCLUDES(mutex_);
  void resume() TP_EXCLUDES(mutex_);
  bool suspended() const { return suspended_.load(std::memory_order_acquire); }
  /// They are lost: a thread that uses them goes on with memory of the process's own, and its call
  /// ends with an error.
  void lose(DirectFileTier& tier) TP_EXCLUDES(mutex_);
  void lose(FabricRows& rows) TP_EXCLUDES(mutex_);

  /// Held by code that copies what is mapped, or maps it elsewhere, on the thread that resumes.
  /// Nothing is suspended meanwhile, but may be already.
  Mutex& mutex() TP_RETURNS(mutex_) { return mutex_; }

 private:
  void openSwap() TP_REQUIRES(mutex_);
  void take(std::byte* memory, Bytes size) TP_REQUIRES(mutex_);
  void takeRows(FabricRows& rows) TP_REQUIRES(mutex_);
  void replace(std::byte* memory, Bytes size) TP_REQUIRES(mutex_);
  void letGo(std::byte* memory, Bytes size) TP_REQUIRES(mutex_);

  // Ordered after all others.
  Mutex mutex_;
  std::unique_ptr<os::MappingSwap> swap_ TP_GUARDED_BY(mutex_);  // null: it cannot be
  Mapping fill_ TP_GUARDED_BY(mutex_);                           // what that needs
  std::vector<DirectFileTier*> tiers_ TP_GUARDED_BY(mutex_);
  std::vector<FabricRows*> rows_ TP_GUARDED_BY(mutex_);
  std::atomic<bool> suspended_{false};  // written with the mutex held
};

}  // namespace tidepool
