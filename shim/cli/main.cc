// SPDX-License-Identifier: Apache-2.0
// The `tidepool` command: finds the sub-command, hands it its words, and turns errors into one line
// on stderr and an exit code.
#include <fmt/format.h>

#include <cstdio>

#include "runtime/base/nearest.h"
#include "shim/cli/checkpoint.h"
#include "shim/cli/doctor.h"
#include "shim/cli/heat.h"
#include "shim/cli/launch.h"
#include "shim/cli/processes.h"

namespace tidepool::cli {
namespace {

constexpr int kExitUsage = 2;
constexpr int kExitFailed = 1;

const Command& requireCommand(const std::string& name) {
  if (const Command* command = findCommand(name)) return *command;
  std::vector<std::string_view> known;
  for (const Command& command : commands()) known.push_back(command.name);
  throw UsageError(fmt::format("unknown {} '{}': did you mean '{}'? `tidepool --help` lists all",
                               name.starts_with('-') ? "option" : "command", name,
                               nearestWord(name, known)));
}

/// Hidden: what the build and the packagers make from the command table.
int generate(const std::vector<std::string>& words) {
  const std::string what = words.empty() ? "" : words.front();
  if (what == "man") {
    fmt::print("{}", manPage());
  } else if (what == "bash") {
    fmt::print("{}", bashCompletion());
  } else if (what == "markdown") {
    fmt::print("{}", markdownReference());
  } else {
    throw UsageError("--generate: give man, bash or markdown");
  }
  return 0;
}

int dispatch(const Command& command, const std::vector<std::string>& words) {
  const Arguments arguments(command, words);
  if (arguments.wantsHelp()) {
    fmt::print("{}", helpText(command));
    return 0;
  }
  if (command.name == "run") return run(arguments);
  if (command.name == "stat") return stat(arguments);
  if (command.name == "ps") return ps(arguments);
  if (command.name == "top") return top(arguments);
  if (command.name == "heat") return heat(arguments);
  if (command.name == "checkpoint") return checkpoint(arguments);
  return doctor(arguments);
}

int start(std::vector<std::string> words) {
  if (words.empty()) throw UsageError("no command given: `tidepool --help` lists them");
  const std::string first = words.front();
  words.erase(words.begin());
  if (first == "--version" || first == "version") {
    fmt::print("tidepool {}\n", TIDEPOOL_VERSION);
    return 0;
  }
  if (first == "--generate") return generate(words);
  if (first == "--help" || first == "-h" || first == "help") {
    fmt::print("{}", words.empty() ? helpText() : helpText(requireCommand(words.front())));
    return 0;
  }
  return dispatch(requireCommand(first), words);
}

/// `code`, unless what was written to stdout did not all get out (a full disk, a closed pipe).
int finish(int code) {
  if (std::fflush(stdout) == 0 && std::ferror(stdout) == 0) return code;
  std::fputs("tidepool: cannot write to standard output\n", stderr);
  return code == 0 ? kExitFailed : code;
}

}  // namespace
}  // namespace tidepool::cli

int main(int argc, char** argv) {
  using namespace tidepool::cli;
  try {
    return finish(start(std::vector<std::string>(argv + (argc > 0 ? 1 : 0), argv + argc)));
  } catch (const UsageError& error) {
    fmt::print(stderr, "tidepool: {}\n", error.what());
    return kExitUsage;
  } catch (const CommandError& error) {
    fmt::print(stderr, "tidepool: {}\n", error.what());
    return error.exit_code;
  } catch (const std::exception& error) {
    if (std::ferror(stdout) != 0) return finish(kExitFailed);  // fmt names no file
    fmt::print(stderr, "tidepool: {}\n", error.what());
    return kExitFailed;
  }
}
