// SPDX-License-Identifier: Apache-2.0
// Files of /proc for as long as the process lives. A program may leave /proc behind (chroot, a
// mount namespace of its own) and fork afterwards: the child needs files of its own there. So a
// descriptor of /proc itself is kept: its "self" is the process that asks, the child as well.
// And folders read with plain system calls: opendir(3) allocates. Thread-safe; no allocation.
#pragma once

#include <cstdint>

#include "runtime/base/unique_fd.h"

namespace tidepool::os {

/// Opens a file of /proc by its path below it, such as "self/statm" (O_CLOEXEC is added). The first
/// call opens /proc. Invalid, and errno, if it cannot be.
UniqueFd openProc(const char* path, int flags);
/// Reads the beginning of such a file into `text`, null-terminated. False if there is nothing.
bool readProc(const char* path, char* text, size_t size);

/// The names in a folder, one by one.
class FolderReader {
 public:
  /// `folder` stays the caller's, and open.
  explicit FolderReader(int folder) : folder_(folder) {}
  /// The next name, "." and ".." too; valid until the next call. Null: no more, or an error.
  const char* next();

 private:
  struct Entry;
  const int folder_;
  long filled_ = 0, at_ = 0;
  alignas(8) char buffer_[4096];
};

}  // namespace tidepool::os
