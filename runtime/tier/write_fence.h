// SPDX-License-Identifier: Apache-2.0
// Sees to it that writes which nobody waits for any more come no more: those of relatives that have
// died, and those that this process has given up. A connection takes the place of theirs, which the
// server ends, with its lane, before it answers; the frames that their process held are free then.
// If nobody listens there, or the region is gone, nothing can come either. Does not wait. Owned and
// used by one thread.
#pragma once

#include <memory>
#include <optional>

#include "runtime/base/units.h"
#include "runtime/tier/frame_table.h"
#include "runtime/tier/remote_region.h"
#include "runtime/transport/reconnection.h"

namespace tidepool {

class WriteFence {
 public:
  /// The region that writes noted with `where` go to; empty once nobody uses that any more.
  using Find = std::optional<RegionAddress> (*)(const void* tier, uint32_t where);

  /// All are borrowed. `timeout`: of the server's answer.
  WriteFence(FrameTable& table, Find find, const void* tier, Nanoseconds timeout)
      : table_(table), find_(find), tier_(tier), timeout_(timeout) {}
  /// Goes on as far as it can; to be called now and then.
  void tend(Nanoseconds now);
  /// What was under way is the parent's.
  void forgetInChild() { reconnection_ = Reconnection(); }

 private:
  bool begin(Nanoseconds now);

  FrameTable& table_;
  const Find find_;
  const void* const tier_;
  const Nanoseconds timeout_;
  FrameTable::LateWrites writes_{};  // that are being fenced off
  Reconnection reconnection_;
  Nanoseconds until_;  // somebody else may have done it by then, or the region may be gone
  Nanoseconds next_;   // not before
  // The last one that was made: that whose place it took may have been the region's last.
  std::unique_ptr<Connection> made_;
};

}  // namespace tidepool
