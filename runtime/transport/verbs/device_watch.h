// SPDX-License-Identifier: Apache-2.0
// Hears that an RDMA device has failed. Its events are read from a context of our own: that which
// connections have is librdmacm's, the program may use it too, and what we took there it would
// miss. One for all connections by a device; thread-safe. In a child of fork() the destructor
// closes descriptors alone: the rest is the parent's.
#pragma once

#include <sys/types.h>

#include <memory>

#include "runtime/base/mutex.h"
#include "runtime/base/result.h"
#include "runtime/base/unique_fd.h"
#include "runtime/transport/verbs/library.h"

namespace tidepool::verbs {

class DeviceWatch {
 public:
  /// The one for `device`, which lives until its last user has gone. Null: the device cannot be
  /// opened once more, so nobody hears of it.
  static std::shared_ptr<DeviceWatch> of(const Library& library, ibv_device* device);
  ~DeviceWatch();
  DeviceWatch(const DeviceWatch&) = delete;
  DeviceWatch& operator=(const DeviceWatch&) = delete;

  /// Readable when the device has said something: the first to wake takes it in by verdict().
  int eventsFd() const { return context_->async_fd; }
  /// Readable once it has failed, so that all others wake, too.
  int failedFd() const { return failed_event_.get(); }
  /// Does not wait. Errors: kUnreachable, from the device's failure on. What happens to a port is
  /// none: a network that comes back soon is met by packets that are sent again.
  Status verdict() TP_EXCLUDES(mutex_);

 private:
  DeviceWatch(const Library& library, ibv_context* context);
  static std::shared_ptr<DeviceWatch> open(const Library& library, ibv_device* device);
  bool hear() TP_REQUIRES(mutex_);

  const Library& library_;
  const pid_t owner_;
  ibv_context* const context_;
  UniqueFd failed_event_;
  Mutex mutex_;
  bool failed_ TP_GUARDED_BY(mutex_) = false;
};

}  // namespace tidepool::verbs
