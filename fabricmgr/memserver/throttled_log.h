// SPDX-License-Identifier: Apache-2.0
// Warnings that a peer can cause as often as it likes: some of each second are logged, and how many
// were left out. Thread-safe.
#pragma once

#include <string>

#include "runtime/base/clock.h"
#include "runtime/base/mutex.h"

namespace tidepool::memserver {

class ThrottledLog {
 public:
  /// Lines of one second that are logged.
  static constexpr uint64_t kMost = 10;

  explicit ThrottledLog(const Clock& clock) : clock_(clock) {}

  void warn(const std::string& line) TP_EXCLUDES(mutex_);
  /// Says how many lines were left out, once their second is over. To be called now and then.
  void sayRest() TP_EXCLUDES(mutex_);

 private:
  void turn() TP_REQUIRES(mutex_);

  const Clock& clock_;
  Mutex mutex_;
  Nanoseconds since_ TP_GUARDED_BY(mutex_);  // when this second began
  uint64_t lines_ TP_GUARDED_BY(mutex_) = 0;
};

}  // namespace tidepool::memserver
