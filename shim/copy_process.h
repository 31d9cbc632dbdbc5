// SPDX-License-Identifier: Apache-2.0
// Copies of the process that are not made by fork(): by _Fork(), clone() and their system calls.
// What shares memory (threads, vfork) is none. Async-signal-safe; flags and structures are the
// kernel's.
#pragma once

#include <linux/sched.h>
#include <sched.h>

#include <cstddef>
#include <cstdint>

namespace tidepool {

/// What clone3(2) takes, of whatever size, and what the older calls come to.
struct CopyRequest {
  union {
    clone_args args = {};
    std::byte bytes[256];
  };
  size_t size = 0;  // of what the program gave to clone3; 0: it called clone
};

/// Where the child goes on, if not where it is; 0: there.
struct Landing {
  uint64_t stack = 0;
  uint64_t thread_pointer = 0;
};

/// What clone(2) and fork(2) take; `flags` with the signal that tells of the child's end.
CopyRequest olderRequest(unsigned flags, void* stack, void* parent_tid, void* child_tid,
                         void* thread_pointer);

/// Whether such flags leave parent and child memory of their own, in a process that is managed.
bool copiesMemory(uint64_t flags);

/// Makes the copy. Returns in the parent its id or a negative errno value; in the child 0, with
/// everything done but what `landing` says.
long copyProcess(const CopyRequest& request, Landing* landing);

}  // namespace tidepool
