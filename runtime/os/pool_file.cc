// SPDX-License-Identifier: Apache-2.0
// createPoolFile(): where the system's setting for shared memory is "never", which is the kernel's
// default, not even madvise(MADV_COLLAPSE) makes pages of a memfd huge (Linux 6.18). A tmpfs has a
// setting of its own. Ours is mounted nowhere: nobody else can reach it, and it ends with the file.
#include "runtime/os/pool_file.h"

#include <fcntl.h>
#include <linux/mount.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstring>

#include "runtime/base/format.h"
#include "runtime/base/raw_calls.h"
#include "runtime/os/file_size.h"
#include "runtime/os/memory.h"

namespace tidepool::os {
namespace {

bool memfdsAreNeverHuge() {
  UniqueFd fd(raw::open("/sys/kernel/mm/transparent_hugepage/shmem_enabled", O_RDONLY | O_CLOEXEC));
  char text[128] = {};
  return fd.valid() && raw::read(fd.get(), text, sizeof text - 1) > 0 &&
         strstr(text, "[never]") != nullptr;
}

bool configure(int context, unsigned command, const char* key, const char* value) {
  return raw::call(SYS_fsconfig, context, command, key, value, 0) == 0;
}

/// Invalid if this process may not mount.
UniqueFd mountPrivateTmpfs() {
  UniqueFd context(static_cast<int>(raw::call(SYS_fsopen, "tmpfs", FSOPEN_CLOEXEC)));
  // Huge pages only where they are asked for; no limit, as memfds have none.
  if (!context.valid() || !configure(context.get(), FSCONFIG_SET_STRING, "huge", "advise") ||
      !configure(context.get(), FSCONFIG_SET_STRING, "size", "0") ||
      !configure(context.get(), FSCONFIG_CMD_CREATE, nullptr, nullptr)) {
    return {};
  }
  return UniqueFd(static_cast<int>(raw::call(SYS_fsmount, context.get(), FSMOUNT_CLOEXEC, 0)));
}

/// Invalid if it cannot be had.
UniqueFd createInPrivateTmpfs(const char* name, Bytes size) {
  const UniqueFd mount = mountPrivateTmpfs();
  if (!mount.valid()) return {};
  char file[64];
  formatText(file, sizeof file, "memfd:%s", name);
  constexpr int kFlags = O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC;
  UniqueFd fd(static_cast<int>(raw::call(SYS_openat, mount.get(), file, kFlags, 0600)));
  if (!fd.valid() || raw::call(SYS_unlinkat, mount.get(), file, 0) != 0 ||
      !setFileSize(fd.get(), size)) {
    return {};
  }
  fd.keep();
  return fd;
}

}  // namespace

Result<UniqueFd> createPoolFile(const char* name, Bytes size) {
  if (memfdsAreNeverHuge()) {
    UniqueFd fd = createInPrivateTmpfs(name, size);
    if (fd.valid()) return fd;
  }
  return createMemfd(name, size);
}

}  // namespace tidepool::os
