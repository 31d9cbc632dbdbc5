// SPDX-License-Identifier: Apache-2.0
// How long to look for the end of a request before going to sleep. To be woken costs more than a
// short request, so looking pays where the ends come soon, and where the processor that looks is
// not the one that is needed meanwhile: never on a machine of two. Pure code; one owner thread.
#pragma once

#include <algorithm>

#include "runtime/base/units.h"

namespace tidepool::verbs {

class AdaptiveSpin {
 public:
  /// Being put to sleep and woken again takes about this long; beyond it looking does not pay.
  static constexpr uint64_t kWorthNs = 50'000;
  static constexpr int kFewProcessors = 2;

  explicit AdaptiveSpin(int processors) : allowed_(processors > kFewProcessors) {}

  /// A request took so long, from its start to when its end was seen.
  void note(Nanoseconds taken) {
    const uint64_t capped = std::min(taken.value(), 16 * kWorthNs);
    typical_ns_ = typical_ns_ - typical_ns_ / 8 + capped / 8;
  }
  /// Twice what is usual, or nothing.
  Nanoseconds budget() const {
    return Nanoseconds(allowed_ && typical_ns_ <= kWorthNs ? 2 * typical_ns_ : 0);
  }

 private:
  const bool allowed_;
  uint64_t typical_ns_ = kWorthNs / 2;
};

}  // namespace tidepool::verbs
