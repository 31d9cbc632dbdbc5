// SPDX-License-Identifier: Apache-2.0
// The policy of fetch tiers behind a lock: the fault service tells it of faults, the migrator asks
// it for victims. The lock is held for tens of nanoseconds a page and never while calling the
// kernel.
#pragma once

#include "runtime/base/mapping.h"
#include "runtime/base/mutex.h"
#include "runtime/migrate/core/look_times.h"
#include "runtime/policy/far_copies.h"
#include "runtime/policy/pool_size.h"
#include "runtime/policy/run_queue.h"
#include "runtime/policy/victim.h"

namespace tidepool {

class SharedPolicy {
 public:
  static Result<std::unique_ptr<SharedPolicy>> create(const VictimConfig& config,
                                                      PageCount space_pages) {
    auto memory = Mapping::anonymous(VictimChooser::memoryFor(space_pages));
    if (!memory) return tl::unexpected(memory.error());
    auto balances = Mapping::anonymous(FarCopies::memoryFor(space_pages));
    if (!balances) return tl::unexpected(balances.error());
    auto looks = LookTimes::create(space_pages);
    if (!looks) return tl::unexpected(looks.error());
    return std::unique_ptr<SharedPolicy>(
        new SharedPolicy(config, std::move(*memory), std::move(*balances), std::move(*looks)));
  }

  Mutex& mutex() TP_RETURNS(mutex_) { return mutex_; }
  VictimChooser& chooser() TP_REQUIRES(mutex_) { return chooser_; }
  FarCopies& copies() TP_REQUIRES(mutex_) { return copies_; }
  PoolSize& poolSize() TP_REQUIRES(mutex_) { return pool_size_; }
  /// What the program wants out, and in; see advice.h.
  RunQueue& pageOut() TP_REQUIRES(mutex_) { return page_out_; }
  RunQueue& willNeed() TP_REQUIRES(mutex_) { return will_need_; }
  /// When the chooser last learned of use.
  LookTimes& looks() { return looks_; }

 private:
  SharedPolicy(const VictimConfig& config, Mapping memory, Mapping balances, LookTimes looks)
      : memory_(std::move(memory)),
        balances_(std::move(balances)),
        chooser_(config, {memory_.data(), memory_.size().value()}),
        copies_({balances_.data(), balances_.size().value()}),
        looks_(std::move(looks)) {}
  Mutex mutex_;
  Mapping memory_;
  Mapping balances_;
  VictimChooser chooser_;
  FarCopies copies_;
  PoolSize pool_size_;
  RunQueue page_out_, will_need_;
  LookTimes looks_;
};

}  // namespace tidepool
