// SPDX-License-Identifier: Apache-2.0
// Hands out runs of adjacent frames of one tier. A bitmap of one bit a frame with two levels of
// "this word is full" above it, searched next-fit; the bitmap's memory is touched only as far as
// frames are used. Thread-safe: one short lock; no allocation after create(). Counts are frames.
#pragma once

#include <atomic>
#include <memory>

#include "runtime/base/mapping.h"
#include "runtime/base/mutex.h"
#include "runtime/base/result.h"
#include "runtime/base/units.h"
#include "runtime/tier/tier.h"

namespace tidepool {

class FrameAllocator {
 public:
  /// Errors: kInvalidArgument for no frames at all, kNoMemory.
  static Result<std::unique_ptr<FrameAllocator>> create(PageCount capacity);

  /// Between 1 and `wanted` adjacent free frames: the full run if one is found within a bounded
  /// search from where the last one ended, else the longest run seen. Errors: kNoSpace when no
  /// frame is free, kInvalidArgument when `wanted` is 0.
  Result<FrameRun> allocate(PageCount wanted) TP_EXCLUDES(mutex_);
  /// Gives back frames that allocate() returned, whole runs or parts. Giving back a free frame is
  /// a broken invariant.
  void release(FrameRun run) TP_EXCLUDES(mutex_);

  PageCount capacity() const { return capacity_; }
  PageCount used() const { return PageCount(used_.load(std::memory_order_relaxed)); }

 private:
  /// One level of the bitmap: `words` 64-bit words in memory of its own, zero until touched.
  struct Level {
    Mapping memory;
    uint64_t words = 0;
    uint64_t* data() const { return reinterpret_cast<uint64_t*>(memory.data()); }
  };

  explicit FrameAllocator(PageCount capacity) : capacity_(capacity) {}
  Status mapLevels();
  /// The first free frame at or after `from`, or capacity when there is none.
  uint64_t nextFree(uint64_t from) const TP_REQUIRES(mutex_);
  /// The first word of level 0 that is not full, at or after `word`, or the number of words.
  uint64_t nextOpenWord(uint64_t word) const TP_REQUIRES(mutex_);
  /// The first used frame in [from, limit), or `limit`.
  uint64_t runEnd(uint64_t from, uint64_t limit) const TP_REQUIRES(mutex_);
  void mark(uint64_t first, uint64_t count) TP_REQUIRES(mutex_);
  void clear(uint64_t first, uint64_t count) TP_REQUIRES(mutex_);

  const PageCount capacity_;
  std::atomic<uint64_t> used_{0};  // written under mutex_, read without: a counter only
  Mutex mutex_;
  // Level 0: a set bit is a used frame. Levels 1 and 2: a set bit is a full word one level below.
  Level levels_[3] TP_GUARDED_BY(mutex_);
  uint64_t cursor_ TP_GUARDED_BY(mutex_) = 0;
};

}  // namespace tidepool
