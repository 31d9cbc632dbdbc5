// SPDX-License-Identifier: Apache-2.0
// Giving out memory, in three parts: decide and write down, tell the devices, write down what came
// of it. Used by assign, apply and growing. One object a request, one thread.
#pragma once

#include <optional>

#include "fabricmgr/manager/impl.h"

namespace tidepool::fabric {

class Granting {
 public:
  Granting(Manager::Impl& impl, const Caller& caller, const Request& request)
      : impl_(impl), caller_(caller), request_(request) {}

  /// A new region for the spec's host, placed by `chosen` or, without it, now.
  Result<Answer> assign(const AssignSpec& spec, const Plan* chosen);
  /// A new region that takes the place of `region`.
  Result<Answer> move(RegionId region, const MoveSpec& spec);
  /// More at the end of `region`, up to `size`.
  Result<Answer> grow(RegionId region, Bytes size, const Constraints& how);

 private:
  /// Under the mutex: the region to make, checked; nothing is changed yet.
  Result<Region> draft(const AssignSpec& spec, const Plan* chosen) TP_REQUIRES(impl_.mutex);
  Result<Region> draftGrowth(RegionId region, Bytes size, const Constraints& how)
      TP_REQUIRES(impl_.mutex);
  Result<Region> draftMove(RegionId region, const MoveSpec& spec) TP_REQUIRES(impl_.mutex);
  /// The operation by which moved_ goes to `region`, which gets its labels.
  void putMove(Step* step, RegionId region) TP_REQUIRES(impl_.mutex);
  /// Writes the region and its intents down; fills actions_.
  Index intend(const Region& region, RegionId into) TP_REQUIRES(impl_.mutex);
  /// Tells the devices, writes the outcome down.
  Result<Answer> carryOut(RegionId region, RegionId into, Index intended);
  Result<Answer> conclude(RegionId region, RegionId into, size_t asked, const Status& told,
                          Index* index) TP_REQUIRES(impl_.mutex);

  Manager::Impl& impl_;
  const Caller& caller_;
  const Request& request_;
  std::vector<DeviceAction> actions_;
  RegionId moved_;  // whose place the new region takes; 0: none's
  Nanoseconds move_deadline_;
};

/// What placement is asked for a spec. Errors: kNotFound for names.
Result<PlacementRequest> placementOf(Manager::Impl& impl, const AssignSpec& spec)
    TP_REQUIRES(impl.mutex);
/// Errors: kRefused when the host gets nothing now, and why.
Status mayReceive(Manager::Impl& impl, const HostEntry& host) TP_REQUIRES(impl.mutex);

}  // namespace tidepool::fabric
