// SPDX-License-Identifier: Apache-2.0
// Whether this process may have pages pinned for DMA: anonymous pages the kernel refuses to move by
// itself, but of file pages (direct tiers) it does not tell. Pages are pinned through a
// descriptor, and what it is of tells whether it can. Thread-safe, no allocation, no I/O.
#pragma once

#include <span>

namespace tidepool::os {

/// False only if every descriptor of the process that was open when this was called, and still is,
/// is of a kind known to pin no page beyond a system call: files, directories and block devices
/// without O_DIRECT; pipes; sockets of the usual families (not AF_XDP); terminals, /dev/null and
/// its like; eventfd, epoll, timerfd, signalfd, inotify, fanotify, pidfd, userfaultfd, perf events,
/// bpf; NVIDIA's GPUs while they are followed. True for everything else, other GPUs, RDMA and VFIO
/// devices, udmabuf and io_uring among it, and when the kernel does not say. Own descriptors do not
/// count (base/own_fds.h). Costs some 0.3 us a descriptor; less than a microsecond while one that
/// was found before is still there.
bool mayPinPages();

/// Whether all memory of the program that NVIDIA's driver is told to pin leaves our care before it
/// is pinned, so that descriptors of GPUs count as harmless. Once false it stays so; it is at
/// first.
void followNvidia(bool all);

/// True if what the last look found is still open. Under a microsecond; false tells nothing.
bool mayStillPin();

/// Names what the last look found, for a message: "descriptor 5 (/dev/kvm)", null-terminated; "a
/// descriptor" if it is gone.
void describePinning(std::span<char> out);

}  // namespace tidepool::os
