// SPDX-License-Identifier: Apache-2.0
// When something was last learned of the use of a granule's pages. Thread-safe, relaxed: for
// statistics. No allocation after create(); memory is touched where granules are in use.
#pragma once

#include <atomic>

#include "runtime/base/debug_check.h"
#include "runtime/base/mapping.h"

namespace tidepool {

class LookTimes {
 public:
  /// For a space of so many pages. Errors: kNoMemory.
  static Result<LookTimes> create(PageCount pages) {
    auto times = Mapping::anonymous(
        Bytes((granuleOf(PageIndex(pages.value())).value() + 1) * sizeof(std::atomic<uint64_t>)));
    if (!times) return tl::unexpected(times.error());
    return LookTimes(std::move(*times));
  }

  void note(GranuleIndex granule, Nanoseconds now) {
    at(granule).store(now.value(), std::memory_order_relaxed);
  }
  /// 0: never.
  Nanoseconds of(GranuleIndex granule) const {
    return Nanoseconds(at(granule).load(std::memory_order_relaxed));
  }

 private:
  explicit LookTimes(Mapping times) : times_(std::move(times)) {}
  std::atomic<uint64_t>& at(GranuleIndex granule) const {
    TP_DCHECK_OP(granule.value(), <, times_.size().value() / sizeof(uint64_t));
    return reinterpret_cast<std::atomic<uint64_t>*>(times_.data())[granule.value()];
  }
  Mapping times_;
};

}  // namespace tidepool
