// SPDX-License-Identifier: Apache-2.0
// Which manager a memory server obeys: the first that leads pins the fabric, and later ones of the
// same fabric take over as their terms grow. Kept in memory, as is all that a server lends. Not
// thread-safe; times are durations.
#pragma once

#include <optional>

#include "fabricmgr/model/identity.h"
#include "runtime/base/result.h"
#include "runtime/base/units.h"

namespace tidepool::memserver {

class Allegiance {
 public:
  /// A manager that was heard of so recently, on a connection that is open, is alive. Managers look
  /// at their devices every 2 s.
  static constexpr Nanoseconds kAlive{15'000'000'000};

  /// `who` is to be obeyed from now on. `silent` is for how long the present leader has said
  /// nothing; none if it has no connection (those of a process that has ended are closed).
  /// Errors: kRefused, another fabric's; kStaleEpoch, another manager of the fabric is in charge:
  /// one of a newer term, or, unless `who` takes over, one that is alive.
  Status lead(const fabric::Leader& who, std::optional<Nanoseconds> silent);
  /// Whether it is the one that leads now.
  bool obeys(const std::optional<fabric::Leader>& who) const;
  /// Of the leader; 0: there is none.
  fabric::Term term() const { return leader_ ? leader_->term : fabric::Term(); }
  /// The next manager that asks may lead, of any fabric.
  void end() { leader_.reset(); }

 private:
  std::optional<fabric::Leader> leader_;
};

}  // namespace tidepool::memserver
