// SPDX-License-Identifier: Apache-2.0
#include "fabricmgr/model/sealed_lines.h"

#include <fmt/format.h>

#include <algorithm>

namespace tidepool::fabric {
namespace {

constexpr size_t kSum = 17;  // sixteen digits and a space

/// FNV-1a.
uint64_t checksum(std::string_view text) {
  uint64_t sum = 0xcbf29ce484222325;
  for (const char c : text) sum = (sum ^ static_cast<uint8_t>(c)) * 0x100000001b3;
  return sum;
}

}  // namespace

std::string sealedLine(std::string_view line) {
  return fmt::format("{:016x} {}\n", checksum(line), line);
}

Status readSealedLines(std::string_view text, const std::string& path, const char* advice,
                       const std::function<bool(std::string_view)>& take) {
  for (size_t number = 1;; ++number) {
    const size_t end = text.find('\n');
    if (end == std::string_view::npos) return {};
    const std::string_view whole = text.substr(0, end + 1);
    const std::string_view line = text.substr(std::min(kSum, end), end - std::min(kSum, end));
    if (line.empty() || sealedLine(line) != whole) {
      return fail(ErrorCode::kCorrupt, "%.80s: line %zu is damaged; nothing was changed. %s",
                  path.c_str(), number, advice);
    }
    if (!take(line)) {
      return fail(ErrorCode::kCorrupt, "%.120s: cannot make sense of '%.*s'", path.c_str(),
                  static_cast<int>(std::min<size_t>(line.size(), 80)), line.data());
    }
    text.remove_prefix(end + 1);
  }
}

}  // namespace tidepool::fabric
