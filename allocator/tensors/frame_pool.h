// SPDX-License-Identifier: Apache-2.0
// Frames of one tier for values of any size. They are kept when they come free: others would have
// to be made anew by the kernel, here or on the memory server, which costs more than filling them.
// A direct tier gives whole granules, which are cut up here. Thread-safe; the tier outlives it.
#pragma once

#include <map>
#include <span>
#include <vector>

#include "runtime/base/mutex.h"
#include "runtime/base/result.h"
#include "runtime/base/units.h"
#include "runtime/tier/tier.h"

namespace tidepool {

class FramePool {
 public:
  /// Takes at most `limit` bytes of the tier, which others may use as well.
  FramePool(Tier& tier, Bytes limit);
  /// Everything is back by then.
  ~FramePool();
  FramePool(const FramePool&) = delete;
  FramePool& operator=(const FramePool&) = delete;

  Tier& tier() const { return tier_; }
  Bytes limit() const { return limit_; }

  /// Frames for `size` bytes, in as few runs as there are; none for no bytes. Errors: kNoSpace,
  /// with nothing taken, when the limit or the tier does not allow it.
  Result<std::vector<FrameRun>> take(Bytes size) TP_EXCLUDES(mutex_);
  void giveBack(std::span<const FrameRun> runs) TP_EXCLUDES(mutex_);
  /// Gives what is free back to the tier, as far as it is in whole granules.
  void trim() TP_EXCLUDES(mutex_);

  /// Bytes of the tier that this pool has, and of these what nobody has taken.
  Bytes held() TP_EXCLUDES(mutex_);
  Bytes free() TP_EXCLUDES(mutex_);

 private:
  PageCount fromFree(PageCount wanted, std::vector<FrameRun>& to) TP_REQUIRES(mutex_);
  bool fetchMore(PageCount wanted) TP_REQUIRES(mutex_);
  void addFree(FrameRun run) TP_REQUIRES(mutex_);
  void trimLocked() TP_REQUIRES(mutex_);

  Tier& tier_;
  const Bytes limit_;
  const PageCount unit_;  // what the tier gives: multiples of this
  Mutex mutex_;
  // First frame to number of frames; no two runs touch.
  std::map<uint64_t, uint64_t> free_ TP_GUARDED_BY(mutex_);
  PageCount free_pages_ TP_GUARDED_BY(mutex_);
  PageCount held_ TP_GUARDED_BY(mutex_);
};

}  // namespace tidepool
