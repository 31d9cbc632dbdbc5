// SPDX-License-Identifier: Apache-2.0
// How many entries a folder has: of /proc/self/fd, this process's descriptors and one that looks.
#pragma once

#include <filesystem>
#include <iterator>
#include <string>

namespace tidepool {

inline size_t entries(const std::string& folder) {
  using Entries = std::filesystem::directory_iterator;
  return static_cast<size_t>(std::distance(Entries(folder), Entries()));
}

}  // namespace tidepool
