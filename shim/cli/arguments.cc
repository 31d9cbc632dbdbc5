// SPDX-License-Identifier: Apache-2.0
// Parsing of one command's words. See arguments.h.
#include "shim/cli/arguments.h"

#include <fmt/format.h>

#include "runtime/base/nearest.h"

namespace tidepool::cli {
namespace {

const Flag& findFlag(const Command& command, std::string_view name) {
  std::vector<std::string_view> known;
  for (const Flag& flag : command.flags) {
    if (flag.name == name) return flag;
    known.push_back(flag.name);
  }
  known.emplace_back("--help");
  throw UsageError(fmt::format("{}: unknown option '{}': did you mean '{}'?", command.name, name,
                               nearestWord(name, known)));
}

}  // namespace

Arguments::Arguments(const Command& command, const std::vector<std::string>& words) {
  const bool program = command.operand.starts_with("--");
  for (size_t i = 0; i < words.size(); ++i) {
    const bool flag = words[i].size() > 1 && words[i][0] == '-';
    if (words[i] == "--" || (program && !flag)) {
      operands_.insert(operands_.end(), words.begin() + static_cast<long>(i + (flag ? 1 : 0)),
                       words.end());
      return;
    }
    if (words[i] == "--help" || words[i] == "-h") {
      help_ = true;
      return;
    }
    if (flag) {
      i = takeFlag(command, words, i);
    } else {
      operands_.push_back(words[i]);
    }
  }
}

size_t Arguments::takeFlag(const Command& command, const std::vector<std::string>& words,
                           size_t i) {
  const std::string_view word = words[i];
  const size_t equals = word.starts_with("--") ? word.find('=') : std::string_view::npos;
  const Flag& flag = findFlag(command, word.substr(0, equals));
  if (flag.value.empty()) {
    if (equals != std::string_view::npos) {
      throw UsageError(fmt::format("{}: {} takes no value", command.name, flag.name));
    }
    given_.push_back({flag.name, ""});
    return i;
  }
  if (equals != std::string_view::npos) {
    given_.push_back({flag.name, std::string(word.substr(equals + 1))});
    return i;
  }
  if (i + 1 == words.size() || words[i + 1] == "--") {
    throw UsageError(
        fmt::format("{}: {} needs a value: {} {}", command.name, flag.name, flag.name, flag.value));
  }
  given_.push_back({flag.name, words[i + 1]});
  return i + 1;
}

bool Arguments::has(std::string_view flag) const {
  for (const Given& given : given_) {
    if (given.flag == flag) return true;
  }
  return false;
}

std::string Arguments::value(std::string_view flag, std::string_view otherwise) const {
  std::string found(otherwise);
  for (const Given& given : given_) {
    if (given.flag == flag) found = given.value;
  }
  return found;
}

std::vector<std::string> Arguments::values(std::string_view flag) const {
  std::vector<std::string> found;
  for (const Given& given : given_) {
    if (given.flag == flag) found.push_back(given.value);
  }
  return found;
}

}  // namespace tidepool::cli
