// SPDX-License-Identifier: Apache-2.0
// The C library's list of open FILEs. In the child of a process with threads, fork() walks it and
// resets each FILE's lock before any handler of ours runs, so those pages must be local by then. In
// the parent fork() waits for the list's lock, which a thread may hold that waits for a page of a
// buffer (fflush(NULL)). Thread-safe, allocates nothing.
#pragma once

#include <cstddef>
#include <cstdint>

namespace tidepool::os {

/// Takes the list's lock, as fork() does: it may be taken again by the same thread.
void lockStreams();
void unlockStreams();
/// Instead of it, in the child of a fork() by the thread that has the lock.
void unlockStreamsInChild();

/// Calls `visit` for each piece of memory that fork() is going to touch in the child: a FILE before
/// it is read here, then its lock. Stops when `visit` returns false, and returns that. The caller
/// has the list's lock.
bool visitStreams(bool (*visit)(void* argument, uintptr_t address, size_t size), void* argument);

}  // namespace tidepool::os
