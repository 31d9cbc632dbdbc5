// SPDX-License-Identifier: Apache-2.0
// Looks through /proc/self/fd with plain system calls: opendir(3) would allocate.
#include "runtime/os/pin_check.h"

#include <fcntl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>

#include "runtime/base/mutex.h"
#include "runtime/base/own_fds.h"

namespace tidepool::os {
namespace {

struct Entry {  // linux_dirent64
  uint64_t inode;
  int64_t offset;
  uint16_t length;
  uint8_t type;
  char name[];
};

/// Our own RDMA connections reach memory of their own alone. A program that uses the same device
/// has a descriptor besides, if only librdmacm's for events.
bool pins(int directory, const char* name) {
  if (isOwnFd(atoi(name))) return false;
  char target[64];
  const ssize_t length = readlinkat(directory, name, target, sizeof target - 1);
  if (length <= 0) return false;  // closed meanwhile
  target[length] = '\0';
  if (strncmp(target, "anon_inode:[io_uring]", 21) == 0 ||
      strncmp(target, "/dev/infiniband/", 16) == 0 || strncmp(target, "/dev/vfio/", 10) == 0) {
    return true;
  }
  const int flags = fcntl(atoi(name), F_GETFL);
  return flags >= 0 && (flags & O_DIRECT) != 0 && target[0] == '/';
}

constinit Mutex directory_mutex;

/// The process's table of descriptors, kept open: one that is opened for each look would take the
/// number that the program's next descriptor is to have. Opened again in a forked child.
int openedDirectory() TP_REQUIRES(directory_mutex) {
  static constinit int directory = -1;
  static constinit pid_t owner = 0;
  if (owner != getpid()) {
    if (directory >= 0) {
      forgetOwnFd(directory);
      close(directory);
    }
    directory = keepFd(open("/proc/self/fd", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    owner = getpid();
  }
  return directory;
}

}  // namespace

bool mayPinPages() {
  MutexLock lock(directory_mutex);
  const int directory = openedDirectory();
  if (lseek(directory, 0, SEEK_SET) != 0) return true;
  alignas(Entry) char buffer[4096];
  for (;;) {
    const long got = syscall(SYS_getdents64, directory, buffer, sizeof buffer);
    if (got < 0) return true;
    if (got == 0) return false;
    for (long at = 0; at < got;) {
      const auto* entry = reinterpret_cast<const Entry*>(buffer + at);
      if (entry->name[0] != '.' && pins(directory, entry->name)) return true;
      at += entry->length;
    }
  }
}

}  // namespace tidepool::os
