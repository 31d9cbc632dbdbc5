// SPDX-License-Identifier: Apache-2.0
// Token buckets: so many events a second, and so many at once after a pause. Time is handed in. Not
// thread-safe; owned by one thread.
#pragma once

#include <algorithm>
#include <cstdint>

#include "runtime/base/units.h"

namespace tidepool::api {

struct Rate {
  uint64_t per_second = 0;  // 0: no limit
  uint64_t burst = 0;
};

class TokenBucket {
 public:
  TokenBucket() = default;
  TokenBucket(Rate rate, Nanoseconds now) : rate_(rate), tokens_(rate.burst * kUnit), last_(now) {}

  /// Whether one more may pass now; if so it is counted.
  bool take(Nanoseconds now) {
    if (rate_.per_second == 0) return true;
    const uint64_t passed = now > last_ ? (now - last_).value() : 0;
    last_ = std::max(now, last_);
    // A pause of a minute fills any sensible bucket; more could overflow.
    const uint64_t gained = std::min<uint64_t>(passed, 60 * kUnit) * rate_.per_second;
    tokens_ = std::min(tokens_ + gained, rate_.burst * kUnit);
    if (tokens_ < kUnit) return false;
    tokens_ -= kUnit;
    return true;
  }

 private:
  static constexpr uint64_t kUnit = 1'000'000'000;  // one token, in token-nanoseconds
  Rate rate_;
  uint64_t tokens_ = 0;
  Nanoseconds last_;
};

}  // namespace tidepool::api
