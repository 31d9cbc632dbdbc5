// SPDX-License-Identifier: Apache-2.0
// The file behind an emulated pool. Free functions over system calls: thread-safe, no allocation.
#pragma once

#include "runtime/base/result.h"
#include "runtime/base/unique_fd.h"
#include "runtime/base/units.h"

namespace tidepool::os {

/// A file in memory, without a path, of `size` bytes that read as zeros and cost nothing until they
/// are written. makeHuge() can join its pages if the system lets memfds have huge pages, or this
/// process may mount; a device's pages are huge, too. In /proc/PID/maps it is "memfd:NAME".
/// Errors: kNoMemory.
Result<UniqueFd> createPoolFile(const char* name, Bytes size);

}  // namespace tidepool::os
