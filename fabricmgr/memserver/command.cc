// SPDX-License-Identifier: Apache-2.0
// `fabricmgr memserver`: parses, starts the server, says where it listens, waits for a signal.
#include "fabricmgr/memserver/command.h"

#include <fmt/format.h>
#include <spdlog/sinks/stdout_color_sinks.h>
#include <spdlog/spdlog.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>

#include "fabricmgr/memserver/control_server.h"
#include "fabricmgr/memserver/server.h"

namespace tidepool::memserver {
namespace {

struct Arguments {
  std::string listen;
  std::string size_text;
  uint64_t size = 0;  // bytes, parsed from size_text
  unsigned threads = std::clamp(std::thread::hardware_concurrency(), 1u, 4u);
  std::string control;   // HOST:PORT for the fabric manager; empty: none
  std::string key_file;  // its key
  bool json = false;
};

uint64_t machineBytes() {
  return static_cast<uint64_t>(sysconf(_SC_PHYS_PAGES)) *
         static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
}

/// "64K", "512M", "1.5G", "2T", plain bytes, or "25%" of the machine. Throws what CLI11 reports.
uint64_t sizeOf(const std::string& text) {
  double number = 0;
  char unit[4] = {};
  int used = 0;
  const int fields = sscanf(text.c_str(), "%lf%3[a-zA-Z%]%n", &number, unit, &used);
  const std::string suffix = CLI::detail::to_lower(unit);
  static const std::map<std::string, double> kUnits = {
      {"", 1},        {"b", 1},        {"k", 1024.0},
      {"kb", 1024.0}, {"kib", 1024.0}, {"m", 0x1p20},
      {"mb", 0x1p20}, {"mib", 0x1p20}, {"g", 0x1p30},
      {"gb", 0x1p30}, {"gib", 0x1p30}, {"t", 0x1p40},
      {"tb", 0x1p40}, {"tib", 0x1p40}, {"%", static_cast<double>(machineBytes()) / 100}};
  const auto scale = kUnits.find(suffix);
  const bool whole = fields == 1 ? text.find_first_not_of("0123456789.") == std::string::npos
                                 : static_cast<size_t>(used) == text.size();
  const double bytes = scale == kUnits.end() ? -1 : number * scale->second;
  if (fields < 1 || !whole || !(bytes >= static_cast<double>(kPageSize)) || bytes > 0x1p56) {
    throw CLI::ValidationError(
        "--size", "'" + text + "' is not a size of at least 4K: such as 512M, 64G, 1.5T or 25%");
  }
  return static_cast<uint64_t>(bytes);
}

/// One descriptor a connection: the default soft limit is far below what the kernel allows.
void raiseDescriptorLimit() {
  rlimit limit;
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = limit.rlim_max;
  (void)setrlimit(RLIMIT_NOFILE, &limit);
}

/// Blocks SIGTERM and SIGINT in this and all later threads; sigwait() then takes them.
sigset_t blockSignals() {
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGTERM);
  sigaddset(&signals, SIGINT);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  signal(SIGPIPE, SIG_IGN);
  return signals;
}

void announce(const Arguments& arguments, uint16_t port, uint16_t control_port) {
  const std::string host = arguments.listen.substr(0, arguments.listen.rfind(':'));
  const std::string address = fmt::format("{}:{}", host, port);
  if (arguments.json) {
    nlohmann::ordered_json line = {{"listening", address},
                                   {"host", host},
                                   {"port", port},
                                   {"size_bytes", arguments.size},
                                   {"threads", arguments.threads},
                                   {"pid", getpid()}};
    if (control_port != 0) line["control_port"] = control_port;
    fmt::print("{}\n", line.dump());
  } else {
    fmt::print("listening on {}\n", address);
    if (control_port != 0) fmt::print("control port {}\n", control_port);
  }
  std::fflush(stdout);
}

/// The manager's port, if one is asked for.
Result<std::unique_ptr<ControlServer>> startControl(Server& server, const Arguments& arguments) {
  if (arguments.control.empty()) return std::unique_ptr<ControlServer>();
  const auto key = fabric::control::readKey(arguments.key_file);
  if (!key) return tl::unexpected(key.error());
  return ControlServer::start(server, arguments.control, *key);
}

int serve(const Arguments& arguments) {
  spdlog::set_default_logger(spdlog::stderr_color_mt("memserver"));
  const uint64_t machine =
      static_cast<uint64_t>(sysconf(_SC_PHYS_PAGES)) * static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
  if (arguments.size > machine) {
    spdlog::warn(
        "--size is {} bytes but this machine has {}: clients may be lost to the kernel's "
        "out-of-memory killer",
        arguments.size, machine);
  }
  raiseDescriptorLimit();
  const sigset_t signals = blockSignals();
  ServerOptions options;
  options.listen = arguments.listen;
  options.size = Bytes(arguments.size);
  options.threads = arguments.threads;
  auto server = Server::start(options);
  if (!server) {
    fmt::print(stderr, "fabricmgr memserver: {}\n", server.error().text());
    return server.error().code() == ErrorCode::kInvalidArgument && server.error().osError() == 0
               ? kUsage
               : kFailed;
  }
  const auto control = startControl(**server, arguments);
  if (!control) {
    fmt::print(stderr, "fabricmgr memserver: {}\n", control.error().text());
    return kFailed;
  }
  announce(arguments, (*server)->port(), *control == nullptr ? 0 : (*control)->port());
  int signal_number = 0;
  sigwait(&signals, &signal_number);
  spdlog::info("{}: closing", strsignal(signal_number));
  if (*control != nullptr) (*control)->stop();
  (*server)->stop();
  return kDone;
}

}  // namespace

void addCommand(CLI::App& app, int* exit_code) {
  auto arguments = std::make_shared<Arguments>();
  CLI::App* command =
      app.add_subcommand("memserver", "Lend this machine's memory to Tidepool clients");
  command->add_option("--listen", arguments->listen, "HOST:PORT to listen on; port 0 takes any")
      ->required();
  command
      ->add_option("--size", arguments->size_text,
                   "Memory to lend at most, such as 512M, 64G or 25% of the machine's")
      ->required();
  command->add_option("--threads", arguments->threads, "Threads that serve connections")
      ->check(CLI::Range(1u, 256u))
      ->capture_default_str();
  auto* control = command->add_option("--control", arguments->control,
                                      "HOST:PORT at which the fabric manager gives orders");
  auto* key = command->add_option("--key", arguments->key_file,
                                  "File with the key that the fabric manager has, too");
  control->needs(key);
  key->needs(control);
  command->add_flag("--json", arguments->json, "Say where it listens as a line of JSON");
  command->callback([arguments, exit_code] {
    arguments->size = sizeOf(arguments->size_text);
    *exit_code = serve(*arguments);
  });
}

}  // namespace tidepool::memserver
