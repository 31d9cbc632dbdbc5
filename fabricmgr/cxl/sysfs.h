// SPDX-License-Identifier: Apache-2.0
// The kernel's files about devices (sysfs, procfs, tracefs): reading and writing attributes. All
// paths are below a root, so that tests show a tree of their own. Holds no state; thread-safe.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "runtime/base/result.h"

namespace tidepool::cxl {

class Sysfs {
 public:
  /// `root` stands for "/"; empty on a real system.
  explicit Sysfs(std::string root = "") : root_(std::move(root)) {}
  virtual ~Sysfs() = default;
  Sysfs(const Sysfs&) = delete;
  Sysfs& operator=(const Sysfs&) = delete;

  // Errors of all: kNotFound, kPermission, kRefused (the kernel says it is busy), kUnreachable (the
  // device is gone), kUnsupported, kNoSpace, kInvalidArgument (the kernel does not take the value),
  // kIo. Texts name the attribute.
  /// An attribute's text without the newline at its end; what is longer than a page is cut.
  Result<std::string> read(const std::string& path) const;
  /// Decimal, or hexadecimal with 0x. Errors also: kCorrupt.
  Result<uint64_t> readNumber(const std::string& path) const;
  /// In one system call, as attributes want it. Tests do here what the kernel would.
  virtual Status write(const std::string& path, const std::string& text) const;

  /// The names in a folder, sorted; none if there is no such folder.
  std::vector<std::string> list(const std::string& path) const;
  bool exists(const std::string& path) const;
  /// Where a path leads in the end, below the root; empty if nowhere.
  std::string target(const std::string& path) const;
  /// The last name of target(): of a `driver` link, the driver.
  std::string targetName(const std::string& path) const;
  std::string inRoot(const std::string& path) const { return root_ + path; }

 private:
  std::string root_;
};

/// What an errno of the kernel's attributes means, as said above.
ErrorCode codeOfErrno(int error);

/// "0x10" or "16"; with kHex, "10" is sixteen, too. Errors: kCorrupt.
enum class Radix : uint8_t { kByPrefix, kHex };
Result<uint64_t> parseNumber(const std::string& text, Radix radix);

}  // namespace tidepool::cxl
