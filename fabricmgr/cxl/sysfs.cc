// SPDX-License-Identifier: Apache-2.0
// Sysfs: plain system calls, since an attribute has to be written in one.
#include "fabricmgr/cxl/sysfs.h"

#include <dirent.h>
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <climits>
#include <cstdlib>
#include <memory>

#include "runtime/base/unique_fd.h"

namespace tidepool::cxl {
namespace {

constexpr size_t kPage = 4096;  // the kernel shows no more of an attribute

tl::unexpected<Error> failedTo(const char* what, const std::string& path) {
  const int error = errno;
  const char* hint = codeOfErrno(error) == ErrorCode::kPermission ? " (be root)" : "";
  return tl::unexpected(
      Error::fromErrno(codeOfErrno(error), error, "cannot %s %.150s%s", what, path.c_str(), hint));
}

}  // namespace

ErrorCode codeOfErrno(int error) {
  switch (error) {
    case ENOENT:
    case ENOTDIR:
      return ErrorCode::kNotFound;
    case EACCES:
    case EPERM:
    case EROFS:
      return ErrorCode::kPermission;
    case EBUSY:
      return ErrorCode::kRefused;
    case ENXIO:
    case ENODEV:
      return ErrorCode::kUnreachable;
    case EOPNOTSUPP:
    case ENOTTY:
      return ErrorCode::kUnsupported;
    case ENOSPC:
    case ERANGE:
      return ErrorCode::kNoSpace;
    case EINVAL:
      return ErrorCode::kInvalidArgument;
    default:
      return ErrorCode::kIo;
  }
}

Result<std::string> Sysfs::read(const std::string& path) const {
  const UniqueFd file(open(inRoot(path).c_str(), O_RDONLY | O_CLOEXEC));
  if (!file.valid()) return failedTo("read", path);
  char text[kPage];
  const ssize_t got = ::read(file.get(), text, sizeof text);
  if (got < 0) return failedTo("read", path);
  std::string value(text, static_cast<size_t>(got));
  while (!value.empty() && value.back() == '\n') value.pop_back();
  return value;
}

Result<uint64_t> parseNumber(const std::string& text, Radix radix) {
  const bool prefixed = text.starts_with("0x") || text.starts_with("0X");
  const char* begin = text.data() + (prefixed ? 2 : 0);
  const char* end = text.data() + text.size();
  uint64_t number = 0;
  const int base = prefixed || radix == Radix::kHex ? 16 : 10;
  const auto [stop, error] = std::from_chars(begin, end, number, base);
  if (begin == end || stop != end || error != std::errc()) {
    return fail(ErrorCode::kCorrupt, "'%.40s' is not a number", text.c_str());
  }
  return number;
}

Result<uint64_t> Sysfs::readNumber(const std::string& path) const {
  const auto text = read(path);
  if (!text) return tl::unexpected(text.error());
  const auto number = parseNumber(*text, Radix::kByPrefix);
  if (number) return number;
  return fail(ErrorCode::kCorrupt, "%.120s: %s", path.c_str(), number.error().text());
}

Status Sysfs::write(const std::string& path, const std::string& text) const {
  const UniqueFd file(open(inRoot(path).c_str(), O_WRONLY | O_CLOEXEC));
  if (!file.valid()) return failedTo("write", path);
  ssize_t done;
  do {
    done = ::write(file.get(), text.data(), text.size());
  } while (done < 0 && errno == EINTR);
  if (done < 0) return failedTo(("write '" + text.substr(0, 40) + "' to").c_str(), path);
  return {};
}

std::vector<std::string> Sysfs::list(const std::string& path) const {
  std::vector<std::string> names;
  const std::unique_ptr<DIR, int (*)(DIR*)> folder(opendir(inRoot(path).c_str()), closedir);
  if (!folder) return names;
  while (const dirent* entry = readdir(folder.get())) {
    if (entry->d_name[0] != '.') names.emplace_back(entry->d_name);
  }
  std::sort(names.begin(), names.end());
  return names;
}

bool Sysfs::exists(const std::string& path) const {
  return access(inRoot(path).c_str(), F_OK) == 0;
}

std::string Sysfs::target(const std::string& path) const {
  char resolved[PATH_MAX];
  if (realpath(inRoot(path).c_str(), resolved) == nullptr) return "";
  std::string found(resolved);
  if (!root_.empty() && found.starts_with(root_)) found.erase(0, root_.size());
  return found;
}

std::string Sysfs::targetName(const std::string& path) const {
  const std::string found = target(path);
  return found.substr(found.rfind('/') + 1);
}

}  // namespace tidepool::cxl
