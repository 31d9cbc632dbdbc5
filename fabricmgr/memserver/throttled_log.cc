// SPDX-License-Identifier: Apache-2.0
// ThrottledLog: a count for each second.
#include "fabricmgr/memserver/throttled_log.h"

#include <spdlog/spdlog.h>

namespace tidepool::memserver {
namespace {

constexpr Nanoseconds kSecond(1'000'000'000);

}  // namespace

void ThrottledLog::warn(const std::string& line) {
  MutexLock lock(mutex_);
  turn();
  if (++lines_ <= kMost) spdlog::warn("{}", line);
}

void ThrottledLog::sayRest() {
  MutexLock lock(mutex_);
  turn();
}

void ThrottledLog::turn() {
  const Nanoseconds now = clock_.now();
  if (now - since_ < kSecond) return;
  if (lines_ > kMost) spdlog::warn("{} more such warnings were left out", lines_ - kMost);
  since_ = now;
  lines_ = 0;
}

}  // namespace tidepool::memserver
