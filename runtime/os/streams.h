// SPDX-License-Identifier: Apache-2.0
// The C library's list of open FILEs. In the child of a process with threads, fork() walks it and
// resets each FILE's lock before any handler of ours runs, so those pages must be local by then.
// Takes the list's lock; thread-safe, allocates nothing.
#pragma once

#include <cstddef>
#include <cstdint>

namespace tidepool::os {

/// Calls `visit` for each piece of memory that fork() is going to touch in the child: a FILE before
/// it is read here, then its lock. Stops when `visit` returns false, and returns that.
bool visitStreams(bool (*visit)(void* argument, uintptr_t address, size_t size), void* argument);

}  // namespace tidepool::os
