// SPDX-License-Identifier: Apache-2.0
// Whether this process may have pages pinned for DMA: anonymous pages the kernel refuses to move by
// itself, but of file pages (direct tiers) it does not tell. Thread-safe, no allocation.
#pragma once

namespace tidepool::os {

/// True if the process holds an io_uring, a descriptor opened with O_DIRECT, or an RDMA or VFIO
/// device, any of which can keep pages pinned across system calls; true also when /proc cannot say.
bool mayPinPages();

}  // namespace tidepool::os
