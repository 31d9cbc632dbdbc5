// SPDX-License-Identifier: Apache-2.0
// The two ways to a userfaultfd.
#include "runtime/os/userfaultfd.h"

#include <fcntl.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>

#include "runtime/os/kernel_uapi.h"

namespace tidepool::os {

UniqueFd openUserfaultfdBySyscall(int flags) {
  return UniqueFd(static_cast<int>(syscall(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK | flags)));
}

UniqueFd openUserfaultfdByDevice() {
  const UniqueFd device(open("/dev/userfaultfd", O_RDWR | O_CLOEXEC));
  if (!device.valid()) return {};
  return UniqueFd(ioctl(device.get(), uapi::kUserfaultfdIocNew, O_CLOEXEC | O_NONBLOCK));
}

UniqueFd openUserfaultfd() {
  UniqueFd fd = openUserfaultfdBySyscall(0);
  if (fd.valid()) return fd;
  const int saved = errno;
  fd = openUserfaultfdByDevice();
  if (!fd.valid()) errno = saved;
  return fd;
}

}  // namespace tidepool::os
