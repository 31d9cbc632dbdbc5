// SPDX-License-Identifier: Apache-2.0
// `fabricmgr cxl list|health|events|create|use|drain|destroy|sanitize`.
#include <fmt/format.h>

#include <cstdio>
#include <ctime>
#include <memory>
#include <string>

#include "fabricmgr/commands.h"
#include "fabricmgr/cxl/describe.h"
#include "fabricmgr/cxl/host.h"
#include "fabricmgr/error_table.h"
#include "fabricmgr/process.h"
#include "runtime/base/clock.h"

namespace tidepool::cxl {
namespace {

constexpr uint64_t kSecond = 1'000'000'000;
constexpr timespec kBetweenLooks = {0, 200'000'000};  // at events: nobody waits for them

struct Arguments {
  std::string memdev;
  std::string mode = "device";
  unsigned timeout_seconds = 120;
  bool json = false;
  bool dry_run = false;

  Nanoseconds patience() const { return Nanoseconds(timeout_seconds * kSecond); }
};

int failed(const Error& error) {
  fmt::print(stderr, "fabricmgr cxl: {}\n", error.text());
  return rowOf(error.code()).exit_code;
}

int list(const Host& host, const Arguments& arguments) {
  auto inventory = host.look();
  if (!inventory) {
    // No CXL is an answer, too: an empty list, and a line that says why.
    if (inventory.error().code() != ErrorCode::kUnsupported) return failed(inventory.error());
    fmt::print(stderr, "fabricmgr cxl: {}\n", inventory.error().text());
    inventory = Inventory();
  }
  if (arguments.json) {
    fmt::print("{}\n", inventoryJson(host.sysfs(), *inventory));
  } else {
    fmt::print("{}", inventoryTable(host.sysfs(), *inventory));
  }
  return kDone;
}

/// How the device is now, after `done` was tried.
int conclude(const Host& host, const Arguments& arguments, const Status& done) {
  if (!done) return failed(done.error());
  const auto inventory = host.look();
  if (!inventory) return failed(inventory.error());
  const auto memdev = inventory->memdev(arguments.memdev);
  if (!memdev) return failed(memdev.error());
  if (arguments.json) {
    fmt::print("{}\n", memdevJson(host.sysfs(), *inventory, **memdev));
    return kDone;
  }
  std::string line =
      fmt::format("{}: {}", (*memdev)->name, stateOf(host.sysfs(), *inventory, **memdev));
  if (const auto dax = host.daxOf((*memdev)->name)) line += fmt::format(", {}", dax->name);
  fmt::print("{}\n", line);
  return kDone;
}

Mode modeOf(const Arguments& arguments) {
  return arguments.mode == "device" ? Mode::kDevice : Mode::kSystemRam;
}

Status create(const Host& host, const Arguments& arguments) {
  TP_TRY(host.create(arguments.memdev));
  return host.use(arguments.memdev, modeOf(arguments));
}

Status use(const Host& host, const Arguments& arguments) {
  return host.use(arguments.memdev, modeOf(arguments));
}

Status drain(const Host& host, const Arguments& arguments) {
  Bytes told;
  return host.drain(arguments.memdev, arguments.patience(), [&told](Bytes done, Bytes total) {
    if (done == told) return;
    told = done;
    fmt::print(stderr, "{} of {} MiB offline\n", done.value() / kMiB, total.value() / kMiB);
  });
}

Status destroy(const Host& host, const Arguments& arguments) {
  return host.destroy(arguments.memdev);
}

Status sanitize(const Host& host, const Arguments& arguments) {
  uint64_t told = 0;
  return host.sanitize(arguments.memdev, arguments.patience(), [&told](Nanoseconds elapsed) {
    const uint64_t seconds = elapsed.value() / kSecond;
    if (seconds == told) return;
    told = seconds;
    fmt::print(stderr, "sanitizing for {} s\n", seconds);
  });
}

int health(const Host& host, const Arguments& arguments) {
  const auto inventory = host.look();
  if (!inventory) return failed(inventory.error());
  const auto memdev = inventory->memdev(arguments.memdev);
  if (!memdev) return failed(memdev.error());
  const auto health = readHealth((*memdev)->name);
  const auto poison = readPoison(host.sysfs(), *inventory, **memdev);
  if (arguments.json) {
    fmt::print("{}\n", healthJson(**memdev, health, poison));
  } else {
    fmt::print("{}", healthText(**memdev, health, poison));
  }
  return kDone;
}

int events(const Host& host, const Arguments& arguments) {
  const auto reader = TraceReader::open(host.sysfs(), "");
  if (!reader) return failed(reader.error());
  const MonotonicClock clock;
  const Nanoseconds until = clock.now() + arguments.patience();
  while (clock.now() < until) {
    (*reader)->drain([&](const TraceEvent& event) {
      const auto inventory = host.look();
      const std::string region = inventory ? regionOfEvent(*inventory, event) : "";
      fmt::print("{}\n", eventJson(event, region));
      std::fflush(stdout);
    });
    nanosleep(&kBetweenLooks, nullptr);
  }
  return kDone;
}

enum class Takes : uint8_t { kNothing, kMode, kTimeout };

using Step = Status (*)(const Host& host, const Arguments& arguments);

void addStep(CLI::App& parent, const char* name, const char* about, Takes takes, Step step,
             int* exit_code) {
  auto arguments = std::make_shared<Arguments>();
  CLI::App* command = parent.add_subcommand(name, about);
  command->add_option("MEMDEV", arguments->memdev, "Its name (mem0) or serial number (0x101)")
      ->required();
  if (takes == Takes::kMode) {
    command->add_option("--mode", arguments->mode, "What it is used as; device if absent")
        ->check(CLI::IsMember({"device", "system-ram"}));
  }
  if (takes == Takes::kTimeout) {
    command->add_option("--timeout", arguments->timeout_seconds,
                        "Seconds to wait for it; 120 if absent");
  }
  command->add_flag("--dry-run", arguments->dry_run, "Show how the device is, change nothing");
  command->add_flag("--json", arguments->json, "Show the device as JSON afterwards");
  command->callback([arguments, step, exit_code] {
    const Host host;
    *exit_code = conclude(host, *arguments, arguments->dry_run ? Status() : step(host, *arguments));
  });
}

}  // namespace

void addCommand(CLI::App& app, int* exit_code) {
  CLI::App* cxl = app.add_subcommand("cxl", "CXL memory of this machine (be root)");
  cxl->require_subcommand(1);
  auto arguments = std::make_shared<Arguments>();
  CLI::App* lister = cxl->add_subcommand("list", "List this machine's CXL memory devices");
  lister->add_flag("--json", arguments->json, "Print JSON, with windows, regions and decoders");
  lister->callback([arguments, exit_code] { *exit_code = list(Host(), *arguments); });
  auto asked = std::make_shared<Arguments>();
  CLI::App* healthier = cxl->add_subcommand("health", "Show a device's health and poisoned places");
  healthier->add_option("MEMDEV", asked->memdev, "Its name (mem0) or serial number (0x101)")
      ->required();
  healthier->add_flag("--json", asked->json, "Print JSON");
  healthier->callback([asked, exit_code] { *exit_code = health(Host(), *asked); });
  auto watched = std::make_shared<Arguments>();
  CLI::App* watcher =
      cxl->add_subcommand("events", "Print events of devices as they come, a JSON object a line");
  watcher->add_option("--seconds", watched->timeout_seconds, "For how long; 120 if absent");
  watcher->callback([watched, exit_code] { *exit_code = events(Host(), *watched); });
  addStep(*cxl, "create", "Make a region of all of a device's volatile memory", Takes::kMode,
          create, exit_code);
  addStep(*cxl, "use", "Use a device's region as /dev/daxN.M or as the kernel's memory",
          Takes::kMode, use, exit_code);
  addStep(*cxl, "drain", "Move the kernel's pages off a device's region", Takes::kTimeout, drain,
          exit_code);
  addStep(*cxl, "destroy", "Remove a device's region; what is in use is refused", Takes::kNothing,
          destroy, exit_code);
  addStep(*cxl, "sanitize", "Have a device overwrite all it holds", Takes::kTimeout, sanitize,
          exit_code);
}

}  // namespace tidepool::cxl
