// SPDX-License-Identifier: Apache-2.0
// A file on a disk that has no name, so that nothing is left of it however its process ends. Free
// functions over system calls: thread-safe, no allocation. Sizes and offsets are bytes.
#pragma once

#include "runtime/base/result.h"
#include "runtime/base/unique_fd.h"
#include "runtime/base/units.h"

namespace tidepool::os {

/// Whether reads and writes go past the page cache (O_DIRECT).
enum class Caching : uint8_t { kDirect, kCached };

/// A folder to make such a file in.
struct Folder {
  char path[128] = {};
  Bytes free;              // of its file system, for this user
  bool in_memory = false;  // it is a tmpfs or a ramfs
};
/// `path` is a folder, or a name in one that nothing has yet. Errors: kNotFound, kConflict (a file
/// is there, which is not to be overwritten), kUnsupported (a device), kInvalidArgument.
Result<Folder> folderFor(const char* path);

/// Readable and writable by this process and its children. Where the file system knows no files
/// without a name it has one for the time between two system calls. Errors: kPermission, kIo,
/// kUnsupported (the file system has no direct access).
Result<UniqueFd> createUnnamedFile(const Folder& folder, Caching caching);

/// Takes disk space for the range, so that writes to it will not lack any; sends no signal. False,
/// and errno: EOPNOTSUPP where the file system cannot.
bool reserveSpace(int fd, Bytes offset, Bytes size);

/// Read or write all of it, blocking. Errors: kLost (the file ends before, or the disk cannot read
/// it), kNoSpace (the disk is full), kIo.
Status readFile(int fd, Bytes offset, std::byte* to, Bytes size);
Status writeFile(int fd, Bytes offset, const std::byte* from, Bytes size);

}  // namespace tidepool::os
