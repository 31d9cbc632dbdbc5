// SPDX-License-Identifier: Apache-2.0
// See unnamed_file.h.
#include "runtime/os/unnamed_file.h"

#include <linux/magic.h>
#include <sys/statfs.h>

#include <cstring>
#include <span>

#include "runtime/base/format.h"
#include "runtime/base/raw_calls.h"
#include "runtime/base/write_signals.h"
#include "runtime/os/memory.h"

namespace tidepool::os {
namespace {

/// `path` up to its last slash: the folder in which a new name is made.
bool parentOf(const char* path, std::span<char> out) {
  const char* const slash = strrchr(path, '/');
  if (slash == nullptr || slash[1] == '\0') return false;
  const size_t length = slash == path ? 1 : static_cast<size_t>(slash - path);
  if (length >= out.size()) return false;
  memcpy(out.data(), path, length);
  out[length] = '\0';
  return true;
}

bool statPath(const char* path, struct stat& out) {
  const UniqueFd fd(raw::open(path, O_PATH | O_CLOEXEC));
  return fd.valid() && raw::fstat(fd.get(), &out) == 0;
}

tl::unexpected<Error> inTheWay(const char* path, mode_t mode) {
  if (S_ISREG(mode)) {
    return fail(ErrorCode::kConflict,
                "there is a file %s, which would be overwritten: name a folder, or a new file",
                path);
  }
  if (S_ISBLK(mode)) {
    return fail(ErrorCode::kUnsupported,
                "%s is a device: name a folder of a file system on it instead", path);
  }
  return fail(ErrorCode::kInvalidArgument, "%s is neither a folder nor a new file", path);
}

/// For file systems without O_TMPFILE.
UniqueFd createAndUnlink(const char* folder, int flags) {
  char path[192];
  formatText(path, sizeof path, "%s/.tidepool-%d-%llx", folder, raw::getpid(),
             static_cast<unsigned long long>(randomBelow(uint64_t{1} << 60)));
  UniqueFd fd(raw::open(path, flags | O_CREAT | O_EXCL, 0600));
  if (fd.valid()) raw::call(SYS_unlinkat, AT_FDCWD, path, 0);
  return fd;
}

/// Calls `move(done)` until `size` bytes are done; `lost` is said of a range that cannot be moved.
template <typename Move>
Status moveAll(Bytes size, ErrorCode lost, const char* what, Move move) {
  for (uint64_t done = 0; done < size.value();) {
    const long moved = move(done);
    if (moved > 0) {
      done += static_cast<uint64_t>(moved);
    } else if (moved == 0) {
      return fail(lost, "%s: the file is shorter than it was", what);
    } else if (errno == ENOSPC || errno == EDQUOT) {
      return failErrno(ErrorCode::kNoSpace, "%s", what);
    } else if (errno != EINTR) {
      return failErrno(errno == EIO ? lost : ErrorCode::kIo, "%s", what);
    }
  }
  return {};
}

}  // namespace

Result<Folder> folderFor(const char* path) {
  Folder folder;
  struct stat about {};
  if (statPath(path, about)) {
    if (!S_ISDIR(about.st_mode)) return inTheWay(path, about.st_mode);
    formatText(folder.path, sizeof folder.path, "%s", path);
  } else if (errno != ENOENT) {
    return failErrno(errno == EACCES ? ErrorCode::kPermission : ErrorCode::kNotFound, "%s", path);
  } else if (!parentOf(path, folder.path) || !statPath(folder.path, about) ||
             !S_ISDIR(about.st_mode)) {
    return fail(ErrorCode::kNotFound, "there is no such folder as %s", path);
  }
  struct statfs disk {};
  if (raw::call(SYS_statfs, folder.path, &disk) != 0) {
    return failErrno(ErrorCode::kIo, "%s", folder.path);
  }
  folder.free = Bytes(static_cast<uint64_t>(disk.f_bavail) * static_cast<uint64_t>(disk.f_bsize));
  folder.in_memory = disk.f_type == TMPFS_MAGIC || disk.f_type == RAMFS_MAGIC;
  return folder;
}

Result<UniqueFd> createUnnamedFile(const Folder& folder, Caching caching) {
  const int flags = O_RDWR | O_CLOEXEC | (caching == Caching::kDirect ? O_DIRECT : 0);
  UniqueFd fd(raw::open(folder.path, flags | O_TMPFILE | O_EXCL, 0600));
  if (!fd.valid() && (errno == EOPNOTSUPP || errno == EISDIR)) {
    fd = createAndUnlink(folder.path, flags);
  }
  if (fd.valid()) return fd;
  if (caching == Caching::kDirect && errno == EINVAL) {
    return fail(ErrorCode::kUnsupported, "the file system of %s has no O_DIRECT", folder.path);
  }
  const bool denied = errno == EACCES || errno == EPERM || errno == EROFS;
  return failErrno(denied ? ErrorCode::kPermission : ErrorCode::kIo, "cannot make a file in %s",
                   folder.path);
}

bool reserveSpace(int fd, Bytes offset, Bytes size) {
  const WriteSignalsHeld held;
  return raw::fallocate(fd, 0, static_cast<off_t>(offset.value()),
                        static_cast<off_t>(size.value())) == 0;
}

Status readFile(int fd, Bytes offset, std::byte* to, Bytes size) {
  return moveAll(size, ErrorCode::kLost, "cannot read a page back", [&](uint64_t done) {
    return raw::call(SYS_pread64, fd, to + done, size.value() - done, offset.value() + done);
  });
}

Status writeFile(int fd, Bytes offset, const std::byte* from, Bytes size) {
  const WriteSignalsHeld held;
  return moveAll(size, ErrorCode::kIo, "cannot write a page", [&](uint64_t done) {
    return raw::call(SYS_pwrite64, fd, from + done, size.value() - done, offset.value() + done);
  });
}

}  // namespace tidepool::os
