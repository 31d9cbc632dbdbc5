// SPDX-License-Identifier: Apache-2.0
// Transfers that are over, for one who waits for many: a descriptor that poll(2) or an event loop
// can sleep on, and the tokens of those that ended. Thread-safe.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "runtime/base/mutex.h"
#include "runtime/base/result.h"
#include "runtime/base/unique_fd.h"

namespace tidepool {

class DoneQueue {
 public:
  /// Errors: kNoMemory (no more descriptors).
  static Result<std::shared_ptr<DoneQueue>> create();

  /// Readable while there is something to take.
  int fd() const { return fd_.get(); }
  void push(uint64_t token) TP_EXCLUDES(mutex_);
  /// What was pushed since the last time, in that order; does not block.
  std::vector<uint64_t> take() TP_EXCLUDES(mutex_);

 private:
  explicit DoneQueue(UniqueFd fd) : fd_(std::move(fd)) {}

  const UniqueFd fd_;
  Mutex mutex_;
  std::vector<uint64_t> tokens_ TP_GUARDED_BY(mutex_);
};

}  // namespace tidepool
