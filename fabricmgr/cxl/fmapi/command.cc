// SPDX-License-Identifier: Apache-2.0
// `fabricmgr device discover`.
#include <fmt/format.h>

#include <cstdio>
#include <ctime>
#include <memory>
#include <vector>

#include "fabricmgr/commands.h"
#include "fabricmgr/cxl/fmapi/register_mailbox.h"
#include "fabricmgr/cxl/fmapi/show.h"
#include "fabricmgr/error_table.h"
#include "fabricmgr/process.h"
#include "runtime/base/clock.h"

namespace tidepool::cxl::fmapi {
namespace {

constexpr timespec kBetweenLooks = {0, 100'000};  // a command takes microseconds to milliseconds

Result<SwitchReport> askSwitch(const Sysfs& sysfs, const CciFunction& function) {
  auto registers = mapDeviceRegisters(sysfs, function.address);
  if (!registers) return tl::unexpected(registers.error());
  const MonotonicClock clock;
  const auto mailbox = RegisterMailbox::open(std::move(*registers), clock,
                                             [] { nanosleep(&kBetweenLooks, nullptr); });
  if (!mailbox) return tl::unexpected(mailbox.error());
  return discoverSwitch(**mailbox);
}

enum class Form : uint8_t { kText, kJson };

int discover(const Sysfs& sysfs, Form form) {
  const std::vector<CciFunction> functions = findSwitchCcis(sysfs);
  if (functions.empty()) {
    // That there are none is an answer, too.
    fmt::print(stderr,
               "fabricmgr device discover: no CXL switch takes commands from this machine (no PCI "
               "function of class 0c0b); run it where the switch's mailbox CCI is\n");
  }
  int exit_code = kDone;
  std::vector<Found> found;
  for (const CciFunction& function : functions) {
    found.push_back({function, askSwitch(sysfs, function)});
    if (found.back().report) continue;
    const Error& error = found.back().report.error();
    fmt::print(stderr, "fabricmgr device discover: {}: {}\n", function.address, error.text());
    exit_code = rowOf(error.code()).exit_code;
  }
  if (form == Form::kJson) {
    fmt::print("{}\n", switchesJson(found));
  } else {
    fmt::print("{}", switchesText(found));
  }
  return exit_code;
}

}  // namespace

void addCommand(CLI::App& app, int* exit_code) {
  auto json = std::make_shared<bool>(false);
  CLI::App* command = app.get_subcommand("device")->add_subcommand(
      "discover", "Ask this machine's CXL switches what they have");
  command->add_flag("--json", *json, "Print JSON");
  command->callback(
      [json, exit_code] { *exit_code = discover(Sysfs(), *json ? Form::kJson : Form::kText); });
}

}  // namespace tidepool::cxl::fmapi
