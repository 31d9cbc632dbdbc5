// SPDX-License-Identifier: Apache-2.0
// The ways in which a process comes to have a copy of its parent's memory. What libc does in the
// child differs, and so does what the child may do.
#pragma once

#include <cstdint>

namespace tidepool {

enum class ForkKind : uint8_t {
  kFork,               // fork(): libc puts its own state right in the child
  kClone,              // _Fork() or a system call: libc's lists still have the parent's threads
  kCloneSharingFiles,  // the same, and what the child closes is closed in the parent too
};

}  // namespace tidepool
