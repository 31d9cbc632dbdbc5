// SPDX-License-Identifier: Apache-2.0
// Opening userfaultfd(2). Free functions over system calls: thread-safe, no allocation. Descriptors
// are non-blocking and closed by exec; invalid, with errno, if they cannot be had.
#pragma once

#include "runtime/base/unique_fd.h"

namespace tidepool::os {

/// `flags` beside O_CLOEXEC and O_NONBLOCK, such as UFFD_USER_MODE_ONLY.
UniqueFd openUserfaultfdBySyscall(int flags);
/// By /dev/userfaultfd (Linux 6.1), which an administrator can open to a group.
UniqueFd openUserfaultfdByDevice();
/// Opens the device file, if it can be, for later: a program may leave /dev or its rights behind.
void keepUserfaultfdDevice();
/// The system call where the caller is privileged, else the device file; errno is the system
/// call's. Never for user mode only: a read(2) into a far page would fail. The device file, if it
/// may be opened the first time, stays open: a program that gives up its rights, or changes its
/// root directory, still forks.
UniqueFd openUserfaultfd();

}  // namespace tidepool::os
