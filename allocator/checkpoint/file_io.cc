// SPDX-License-Identifier: Apache-2.0
// Reads and writes that go on where the kernel stopped.
#include "allocator/checkpoint/file_io.h"

#include <unistd.h>

#include <cerrno>

namespace tidepool {

Error fileError(const char* what, const std::string& file) {
  const int error = errno;
  const char* const name = file.c_str();
  switch (error) {
    case ENOSPC:
    case EDQUOT:
    case EFBIG:
      return Error::fromErrno(ErrorCode::kNoSpace, error,
                              "%s %s; earlier checkpoints are untouched: make room and try again",
                              what, name);
    case ENOENT:
    case ENOTDIR:
      return Error::fromErrno(ErrorCode::kNotFound, error, "%s %s", what, name);
    case EACCES:
    case EPERM:
    case EROFS:
      return Error::fromErrno(ErrorCode::kPermission, error, "%s %s", what, name);
    default:
      return Error::fromErrno(ErrorCode::kIo, error, "%s %s", what, name);
  }
}

tl::unexpected<Error> endsTooEarly(const std::string& file) {
  return fail(ErrorCode::kCorrupt,
              "%s ends too early; restore another checkpoint (`tidepool checkpoint verify` says "
              "which are whole)",
              file.c_str());
}

Status writeAt(int fd, uint64_t offset, std::span<iovec> parts, const std::string& file) {
  while (!parts.empty()) {
    const ssize_t wrote =
        pwritev(fd, parts.data(), static_cast<int>(parts.size()), static_cast<off_t>(offset));
    if (wrote < 0 && errno == EINTR) continue;
    if (wrote < 0) return tl::unexpected(fileError("cannot write", file));
    offset += static_cast<uint64_t>(wrote);
    auto left = static_cast<size_t>(wrote);
    while (!parts.empty() && left >= parts.front().iov_len) {
      left -= parts.front().iov_len;
      parts = parts.subspan(1);
    }
    if (left == 0) continue;
    parts.front().iov_base = static_cast<std::byte*>(parts.front().iov_base) + left;
    parts.front().iov_len -= left;
  }
  return {};
}

Status readAt(int fd, uint64_t offset, std::span<std::byte> to, const std::string& file) {
  while (!to.empty()) {
    const ssize_t got = pread(fd, to.data(), to.size(), static_cast<off_t>(offset));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return tl::unexpected(fileError("cannot read", file));
    if (got == 0) return endsTooEarly(file);
    offset += static_cast<uint64_t>(got);
    to = to.subspan(static_cast<size_t>(got));
  }
  return {};
}

}  // namespace tidepool
