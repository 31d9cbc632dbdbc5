// SPDX-License-Identifier: Apache-2.0
// Man page, bash completion and Markdown reference of the program, made from the very commands that
// parse its command line. Pure.
#pragma once

#include <CLI/CLI.hpp>
#include <string>

namespace tidepool::cli {

std::string manPage(const CLI::App& app);
std::string bashCompletion(const CLI::App& app);
std::string markdownReference(const CLI::App& app);

}  // namespace tidepool::cli
