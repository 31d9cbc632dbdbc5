// SPDX-License-Identifier: Apache-2.0
// The `fabricmgr` program: chooses the command. Single-threaded; exit codes are the design's.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <exception>
#include <string>
#include <string_view>
#include <vector>

#include "fabricmgr/api/openapi.h"
#include "fabricmgr/cli/documents.h"
#include "fabricmgr/commands.h"
#include "fabricmgr/process.h"
#include "runtime/base/nearest.h"

#ifndef TIDEPOOL_VERSION
#error "TIDEPOOL_VERSION comes from the build"
#endif

namespace {

using namespace tidepool;

/// Hidden: what the build and the documents are made with.
int generate(const CLI::App& app, std::string_view what) {
  if (what == "man") {
    fmt::print("{}", cli::manPage(app));
  } else if (what == "bash") {
    fmt::print("{}", cli::bashCompletion(app));
  } else if (what == "markdown") {
    fmt::print("{}", cli::markdownReference(app));
  } else if (what == "openapi") {
    fmt::print("{}", api::openApiDocument(TIDEPOOL_VERSION));
  } else {
    fmt::print(stderr, "fabricmgr: --generate: give man, bash, markdown or openapi\n");
    return kUsage;
  }
  return kDone;
}

/// What to say of the first word that is no command where it stands; empty if there is none.
std::string unknownCommand(const CLI::App& app, int argc, char** argv) {
  const CLI::App* at = &app;
  std::string words;  // before it
  for (int i = 1; i < argc && argv[i][0] != '-'; ++i) {
    const auto named = [&](const CLI::App* command) { return command->get_name() == argv[i]; };
    const auto any = [](const CLI::App* command) { return !command->get_name().empty(); };
    const auto found = at->get_subcommands(named);
    if (found.empty()) {
      std::vector<std::string_view> known;
      for (const CLI::App* command : at->get_subcommands(any)) known.push_back(command->get_name());
      return fmt::format(
          "unknown command '{0}{1}': did you mean '{0}{2}'?\nTry `fabricmgr {0}--help`.", words,
          argv[i], nearestWord(argv[i], known));
    }
    words += std::string(argv[i]) + " ";
    at = found.front();
    if (at->get_subcommands(any).empty()) break;
  }
  return "";
}

}  // namespace

int main(int argc, char** argv) {
  int exit_code = kDone;
  try {
    CLI::App app("Tidepool's fabric manager: pooled memory for the hosts of a rack", "fabricmgr");
    app.set_version_flag("--version", "fabricmgr " TIDEPOOL_VERSION);
    app.require_subcommand(1);
    serve::addCommand(app, &exit_code);
    serve::addStoreCommands(app, &exit_code);
    agent::addCommand(app, &exit_code);
    memserver::addCommand(app, &exit_code);
    ca::addCommand(app, &exit_code);
    cxl::addCommand(app, &exit_code);
    cli::addCommands(app, &exit_code);
    cxl::fmapi::addCommand(app, &exit_code);
    if (argc == 3 && std::string_view(argv[1]) == "--generate") return generate(app, argv[2]);
    if (const std::string unknown = unknownCommand(app, argc, argv); !unknown.empty()) {
      fmt::print(stderr, "fabricmgr: {}\n", unknown);
      return kUsage;
    }
    try {
      app.parse(argc, argv);
    } catch (const CLI::Success& success) {  // --help, --version
      return app.exit(success);
    } catch (const CLI::ParseError& error) {
      fmt::print(stderr, "fabricmgr: {}\nTry `fabricmgr --help`.\n", error.what());
      return kUsage;
    }
  } catch (const std::exception& error) {
    fmt::print(stderr, "fabricmgr: {}\n", error.what());
    return kFailed;
  }
  return exit_code;
}
