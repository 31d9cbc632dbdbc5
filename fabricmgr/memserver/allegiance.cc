// SPDX-License-Identifier: Apache-2.0
#include "fabricmgr/memserver/allegiance.h"

namespace tidepool::memserver {

using fabric::Leader;

Status Allegiance::lead(const Leader& who, std::optional<Nanoseconds> silent) {
  if (leader_) {
    TP_TRY(fabric::mayLead(*leader_, who,
                           "`fabricmgr device remove` it there, or restart the server when "
                           "nothing of it is in use"));
    const bool alive = silent && *silent < kAlive;
    if (alive && !leader_->is(who) && who.take_over == fabric::TakeOver::kNo) {
      return fail(
          ErrorCode::kStaleEpoch,
          "another manager of this fabric, of term %llu, is in charge and spoke %llu ms ago",
          static_cast<unsigned long long>(leader_->term.value()),
          static_cast<unsigned long long>(silent->value() / 1'000'000));
    }
  }
  leader_ = who;
  return {};
}

bool Allegiance::obeys(const std::optional<Leader>& who) const {
  return leader_ && who && leader_->is(*who);
}

}  // namespace tidepool::memserver
