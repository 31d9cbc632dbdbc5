// SPDX-License-Identifier: Apache-2.0
// The one description of the `tidepool` command: its words, flags, environment and exit codes. The
// parser, --help, the man page, the bash completion and docs/cli-reference.md all come from it.
#pragma once

#include <span>
#include <string>
#include <string_view>

namespace tidepool::cli {

struct Flag {
  std::string_view name;   // with its dashes
  std::string_view value;  // what it takes; empty for a switch
  std::string_view help;   // one sentence or two, plain text
  bool repeatable = false;
};

struct Command {
  std::string_view name;
  std::string_view operand;  // "PID", "-- PROG ARGS..." or nothing
  std::string_view summary;  // one line
  std::string_view description;
  std::span<const Flag> flags;
};

/// A name and what it means: environment variables, exit codes, option keys.
struct Entry {
  std::string_view name;
  std::string_view help;
};

struct Example {
  std::string_view what;
  std::string_view line;
};

inline constexpr std::string_view kSummary = "run programs with tiered and pooled memory";

std::span<const Command> commands();
std::span<const Entry> environment();
std::span<const Entry> exitCodes();
/// Every key of --conf and TIDEPOOL_CONF; a test compares it with optionKeys().
std::span<const Entry> confKeys();
std::span<const Entry> farSpecs();
std::span<const Example> examples();
const Command* findCommand(std::string_view name);

/// Renderings of the table.
std::string helpText();
std::string helpText(const Command& command);
std::string manPage();
std::string bashCompletion();
std::string markdownReference();

}  // namespace tidepool::cli
