// SPDX-License-Identifier: Apache-2.0
// DeviceWatch, and the list of those that are in use.
#include "runtime/transport/verbs/device_watch.h"

#include <fcntl.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <type_traits>

#include "runtime/base/own_fds.h"

namespace tidepool::verbs {
namespace {

/// More devices than these at a time are watched by each connection for itself.
constexpr size_t kShared = 16;

struct Watches {
  struct Entry {
    ibv_device* device = nullptr;
    std::weak_ptr<DeviceWatch> watch;
  };
  Mutex mutex;
  std::array<Entry, kShared> entries TP_GUARDED_BY(mutex);
};

/// Never destroyed: threads may ask for a lane while the program ends.
Watches& allWatches() {
  static Watches* const all = new Watches();
  return *all;
}

}  // namespace

DeviceWatch::DeviceWatch(const Library& library, ibv_context* context)
    : library_(library),
      owner_(getpid()),
      context_(context),
      failed_event_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  for (int* const fd : {&context_->cmd_fd, &context_->async_fd}) *fd = keepFd(*fd);
  failed_event_.keep();
}

DeviceWatch::~DeviceWatch() {
  const bool inherited = getpid() != owner_;
  for (const int fd : {context_->cmd_fd, context_->async_fd}) {
    forgetOwnFd(fd);
    if (inherited) close(fd);
  }
  if (!inherited) (void)library_.close_device(context_);
}

std::shared_ptr<DeviceWatch> DeviceWatch::open(const Library& library, ibv_device* device) {
  ibv_context* const context = library.open_device(device);
  if (context == nullptr) return nullptr;
  std::shared_ptr<DeviceWatch> made(new DeviceWatch(library, context));
  const bool usable =
      made->failed_event_.valid() && fcntl(context->async_fd, F_SETFL, O_NONBLOCK) == 0;
  return usable ? made : nullptr;
}

std::shared_ptr<DeviceWatch> DeviceWatch::of(const Library& library, ibv_device* device) {
  Watches& watches = allWatches();
  MutexLock lock(watches.mutex);
  Watches::Entry* free = nullptr;
  for (Watches::Entry& entry : watches.entries) {
    auto found = entry.watch.lock();
    // While it is watched its place in memory is no other device's.
    if (found != nullptr && entry.device == device) return found;
    if (found == nullptr) free = &entry;
  }
  auto made = open(library, device);
  if (free != nullptr && made != nullptr) *free = {device, made};
  return made;
}

/// Takes in one event. False: there is none.
bool DeviceWatch::hear() {
  ibv_async_event event = {};
  if (library_.get_async_event(context_, &event) != 0) {
    failed_ = failed_ || errno == EIO;  // the kernel's word for a device that was taken away
    return false;
  }
  // A newer kernel's events may be outside this compiler's enumeration: the number, not the
  // enumerator.
  std::underlying_type_t<ibv_event_type> type;
  static_assert(sizeof type == sizeof event.event_type);
  std::memcpy(&type, &event.event_type, sizeof type);
  failed_ = failed_ || type == IBV_EVENT_DEVICE_FATAL;
  library_.ack_async_event(&event);
  return true;
}

Status DeviceWatch::verdict() {
  MutexLock lock(mutex_);
  const bool known = failed_;
  while (!failed_ && hear()) {
  }
  if (!failed_) return {};
  const uint64_t one = 1;
  // Never read again. That it cannot be written to is not to be thought of: it is the first time.
  if (!known) (void)!write(failed_event_.get(), &one, sizeof one);
  return fail(ErrorCode::kUnreachable, "the RDMA device has failed");
}

}  // namespace tidepool::verbs
