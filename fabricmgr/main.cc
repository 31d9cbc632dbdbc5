// SPDX-License-Identifier: Apache-2.0
// The `fabricmgr` program: chooses the command. Single-threaded; exit codes are the design's.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <exception>

#include "fabricmgr/memserver/command.h"

#ifndef TIDEPOOL_VERSION
#error "TIDEPOOL_VERSION comes from the build"
#endif

int main(int argc, char** argv) {
  using namespace tidepool;
  int exit_code = memserver::kDone;
  try {
    CLI::App app("Tidepool's fabric manager: pooled memory for the hosts of a rack", "fabricmgr");
    app.set_version_flag("--version", "fabricmgr " TIDEPOOL_VERSION);
    app.require_subcommand(1);
    memserver::addCommand(app, &exit_code);
    const auto named = [&](const CLI::App* command) { return command->get_name() == argv[1]; };
    if (argc > 1 && argv[1][0] != '-' && app.get_subcommands(named).empty()) {
      fmt::print(stderr, "fabricmgr: unknown command '{}'\nTry `fabricmgr --help`.\n", argv[1]);
      return memserver::kUsage;
    }
    try {
      app.parse(argc, argv);
    } catch (const CLI::Success& success) {  // --help, --version
      return app.exit(success);
    } catch (const CLI::ParseError& error) {
      fmt::print(stderr, "fabricmgr: {}\nTry `fabricmgr --help`.\n", error.what());
      return memserver::kUsage;
    }
  } catch (const std::exception& error) {
    fmt::print(stderr, "fabricmgr: {}\n", error.what());
    return memserver::kFailed;
  }
  return exit_code;
}
