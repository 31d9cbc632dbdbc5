// SPDX-License-Identifier: Apache-2.0
// The two ways to a userfaultfd.
#include "runtime/os/userfaultfd.h"

#include <fcntl.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>

#include "runtime/base/own_fds.h"
#include "runtime/os/kernel_uapi.h"

namespace tidepool::os {
namespace {

constexpr int kNotTried = -2;

UniqueFd openBy(int device) {
  return UniqueFd(ioctl(device, uapi::kUserfaultfdIocNew, O_CLOEXEC | O_NONBLOCK));
}

/// Opened once, and kept over fork(); -1 if it cannot be.
int keptDevice() {
  static constinit std::atomic<int> kept{kNotTried};
  int device = kept.load(std::memory_order_relaxed);
  if (device != kNotTried) return device;
  UniqueFd opened(open("/dev/userfaultfd", O_RDWR | O_CLOEXEC));
  opened.keep();
  if (kept.compare_exchange_strong(device, opened.get(), std::memory_order_relaxed)) {
    device = opened.release();
  }
  return device;
}

}  // namespace

UniqueFd openUserfaultfdBySyscall(int flags) {
  return UniqueFd(static_cast<int>(syscall(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK | flags)));
}

UniqueFd openUserfaultfdByDevice() {
  const UniqueFd device(open("/dev/userfaultfd", O_RDWR | O_CLOEXEC));
  if (!device.valid()) return {};
  return openBy(device.get());
}

UniqueFd openUserfaultfd() {
  const int device = keptDevice();
  UniqueFd fd = openUserfaultfdBySyscall(0);
  if (fd.valid()) return fd;
  const int saved = errno;
  if (device >= 0) fd = openBy(device);
  if (!fd.valid()) fd = openUserfaultfdByDevice();
  if (!fd.valid()) errno = saved;
  return fd;
}

}  // namespace tidepool::os
