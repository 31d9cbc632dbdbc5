// SPDX-License-Identifier: Apache-2.0
// The two ways to a userfaultfd.
#include "runtime/os/userfaultfd.h"

#include <fcntl.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>

#include "runtime/base/raw_calls.h"
#include "runtime/os/kernel_uapi.h"

namespace tidepool::os {
UniqueFd openUserfaultfdBySyscall(int flags) {
  return UniqueFd(static_cast<int>(raw::call(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK | flags)));
}

UniqueFd openUserfaultfdByDevice() {
  // Kept: a program may leave /dev behind (chroot) or its rights to it, and fork afterwards. What
  // the device makes belongs to the calling process.
  static constinit std::atomic<int> kept{-1};
  // Relaxed: a number, which the kernel gives its meaning.
  int device = kept.load(std::memory_order_relaxed);
  if (device >= 0) {
    UniqueFd made(raw::ioctl(device, uapi::kUserfaultfdIocNew, O_CLOEXEC | O_NONBLOCK));
    if (made.valid()) return made;
  }
  UniqueFd opened(raw::open("/dev/userfaultfd", O_RDWR | O_CLOEXEC));
  if (!opened.valid()) return {};
  UniqueFd made(raw::ioctl(opened.get(), uapi::kUserfaultfdIocNew, O_CLOEXEC | O_NONBLOCK));
  if (made.valid() && device < 0) {
    opened.keep();
    if (kept.compare_exchange_strong(device, opened.get(), std::memory_order_relaxed)) {
      static_cast<void>(opened.release());
    }
  }
  return made;
}

void keepUserfaultfdDevice() { openUserfaultfdByDevice(); }

UniqueFd openUserfaultfd() {
  UniqueFd fd = openUserfaultfdBySyscall(0);
  if (fd.valid()) return fd;
  const int saved = errno;
  fd = openUserfaultfdByDevice();
  if (!fd.valid()) errno = saved;
  return fd;
}

}  // namespace tidepool::os
