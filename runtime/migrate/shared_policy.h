// SPDX-License-Identifier: Apache-2.0
// The victim chooser behind a lock: the fault service tells it of faults, the migrator asks it for
// victims. The lock is held for tens of nanoseconds a page and never while calling the kernel.
#pragma once

#include "runtime/base/mapping.h"
#include "runtime/base/mutex.h"
#include "runtime/policy/run_queue.h"
#include "runtime/policy/victim.h"

namespace tidepool {

class SharedPolicy {
 public:
  static Result<std::unique_ptr<SharedPolicy>> create(const VictimConfig& config,
                                                      PageCount space_pages) {
    auto memory = Mapping::anonymous(VictimChooser::memoryFor(space_pages));
    if (!memory) return tl::unexpected(memory.error());
    return std::unique_ptr<SharedPolicy>(new SharedPolicy(config, std::move(*memory)));
  }

  Mutex& mutex() TP_RETURNS(mutex_) { return mutex_; }
  VictimChooser& chooser() TP_REQUIRES(mutex_) { return chooser_; }
  /// What the program wants out, and in; see advice.h.
  RunQueue& pageOut() TP_REQUIRES(mutex_) { return page_out_; }
  RunQueue& willNeed() TP_REQUIRES(mutex_) { return will_need_; }

 private:
  SharedPolicy(const VictimConfig& config, Mapping memory)
      : memory_(std::move(memory)), chooser_(config, {memory_.data(), memory_.size().value()}) {}
  Mutex mutex_;
  Mapping memory_;
  VictimChooser chooser_;
  RunQueue page_out_, will_need_;
};

}  // namespace tidepool
