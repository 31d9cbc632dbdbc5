// SPDX-License-Identifier: Apache-2.0
// From a verb and the words that were given to the request that it is. Pure, but for files that an
// option names.
#pragma once

#include <map>
#include <stdexcept>
#include <string>
#include <vector>

#include "fabricmgr/cli/verbs.h"

namespace tidepool::cli {

/// What the command line had: texts by flag, as often as they were given.
struct Given {
  std::string operand;
  std::map<std::string, std::vector<std::string>> options;
  bool dry_run = false;
};

struct BuiltRequest {
  std::string path;  // with its query
  std::string body;  // JSON; empty: there is none
};

/// Bad words on the command line: exit 2.
struct UsageError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// Whether the change is of many things at once: no operand was given where there need not be one.
inline bool isOfMany(const Verb& verb, const Given& given) {
  return !verb.many_path.empty() && given.operand.empty();
}
/// Throws UsageError.
BuiltRequest buildRequest(const Verb& verb, const Given& given);
/// "90s", "10m", "2h", "1500ms", "30": milliseconds. Throws UsageError.
uint64_t durationOption(const std::string& flag, const std::string& text);

}  // namespace tidepool::cli
