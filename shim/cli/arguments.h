// SPDX-License-Identifier: Apache-2.0
// The command line against the table in commands.h: flags with values, operands, and everything
// after `--` untouched. Plain values; a mistake is a UsageError, which ends the command with 2.
#pragma once

#include <stdexcept>
#include <string>
#include <vector>

#include "shim/cli/commands.h"

namespace tidepool::cli {

/// What the user typed cannot be right. One line, without the "tidepool: " before it.
struct UsageError : std::runtime_error {
  using runtime_error::runtime_error;
};

class Arguments {
 public:
  /// `words` is what follows the command's name. For a command whose operand starts with "--", the
  /// first operand ends the flags: what follows belongs to PROG.
  Arguments(const Command& command, const std::vector<std::string>& words);

  /// True if --help stood among the flags; nothing after it was looked at.
  bool wantsHelp() const { return help_; }
  bool has(std::string_view flag) const;
  /// The last value given, or `otherwise`.
  std::string value(std::string_view flag, std::string_view otherwise) const;
  std::vector<std::string> values(std::string_view flag) const;
  const std::vector<std::string>& operands() const { return operands_; }

 private:
  struct Given {
    std::string_view flag;
    std::string value;
  };
  /// Takes the flag at words[i], and its value; returns the index of the last word taken.
  size_t takeFlag(const Command& command, const std::vector<std::string>& words, size_t i);

  bool help_ = false;
  std::vector<Given> given_;
  std::vector<std::string> operands_;
};

}  // namespace tidepool::cli
