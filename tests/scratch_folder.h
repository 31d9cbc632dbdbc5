// SPDX-License-Identifier: Apache-2.0
// A folder of a test's own that goes with the object, and all that is in it.
#pragma once

#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

#include "runtime/base/check.h"

namespace tidepool {

class ScratchFolder {
 public:
  explicit ScratchFolder(const std::string& parent = std::filesystem::temp_directory_path())
      : path_(parent + "/tidepool-test-XXXXXX") {
    TP_CHECK(mkdtemp(path_.data()) != nullptr);
  }
  ~ScratchFolder() { std::filesystem::remove_all(path_); }
  ScratchFolder(const ScratchFolder&) = delete;
  ScratchFolder& operator=(const ScratchFolder&) = delete;
  /// A parent in memory if there is one, for tests that sync often. Programs may not run there.
  static std::string inMemory() { return access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp"; }

  const std::string& path() const { return path_; }
  std::string operator/(const std::string& name) const { return path_ + "/" + name; }
  bool isEmpty() const { return std::filesystem::is_empty(path_); }
  /// Makes a file. Returns its path.
  std::string write(const std::string& name, const std::string& text,
                    std::filesystem::perms rights) const {
    const std::string path = *this / name;
    std::ofstream(path) << text;
    std::filesystem::permissions(path, rights);
    return path;
  }

 private:
  std::string path_;
};

}  // namespace tidepool
