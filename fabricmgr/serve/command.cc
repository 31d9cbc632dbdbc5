// SPDX-License-Identifier: Apache-2.0
// `fabricmgr serve`: reads the configuration, starts the daemon, waits for signals. SIGHUP reads
// certificates and revocations again.
#include <fmt/format.h>
#include <spdlog/sinks/stdout_color_sinks.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "fabricmgr/commands.h"
#include "fabricmgr/error_table.h"
#include "fabricmgr/process.h"
#include "fabricmgr/serve/daemon.h"
#include "fabricmgr/serve/succession.h"

namespace tidepool::serve {
namespace {

struct Arguments {
  std::string config = "/etc/tidepool/fabricmgr.toml";
  bool check = false;
  bool take_over = false;
  bool json = false;
};

int failed(const Error& error) {
  fmt::print(stderr, "fabricmgr serve: {}\n", error.text());
  return rowOf(error.code()).exit_code;
}

void logLine(api::Service::Level level, const std::string& line) {
  using Level = api::Service::Level;
  switch (level) {
    case Level::kDebug:
      return spdlog::debug("{}", line);
    case Level::kInfo:
      return spdlog::info("{}", line);
    case Level::kWarning:
      return spdlog::warn("{}", line);
    case Level::kError:
      return spdlog::error("{}", line);
  }
}

/// As TIDEPOOL_FABRIC wants them.
std::vector<std::string> addressesOf(const Config& config, uint16_t port) {
  std::vector<std::string> addresses;
  if (config.server.unix_socket) addresses.push_back("unix:" + config.server.unix_socket->path);
  if (config.server.tcp) {
    const std::string& given = config.server.tcp->address;
    addresses.push_back(fmt::format("https://{}:{}", given.substr(0, given.rfind(':')), port));
  }
  return addresses;
}

void announce(const std::vector<std::string>& addresses, bool json) {
  if (json) {
    const nlohmann::ordered_json line = {{"listening", addresses}, {"pid", getpid()}};
    fmt::print("{}\n", line.dump());
  } else {
    for (const std::string& address : addresses) fmt::print("listening on {}\n", address);
  }
  std::fflush(stdout);
}

/// Until a signal ends it.
template <typename Server>
int run(Result<std::unique_ptr<Server>> server, const Config& config, const Arguments& arguments,
        const sigset_t& signals) {
  if (!server) return failed(server.error());
  announce(addressesOf(config, (*server)->port()), arguments.json);
  notifyServiceManager("READY=1");
  for (;;) {
    int number = 0;
    sigwait(&signals, &number);
    if (number != SIGHUP) {
      spdlog::info("{}: closing", strsignal(number));
      notifyServiceManager("STOPPING=1");
      (*server)->stop();
      return kDone;
    }
    const Status reloaded = (*server)->reload();
    if (reloaded) {
      spdlog::info("certificates and revocations read again");
    } else {
      spdlog::error("the old certificates stay in use: {}", reloaded.error().text());
    }
  }
}

int serve(const Arguments& arguments) {
  auto config = readConfig(arguments.config);
  if (!config) return failed(config.error());
  if (!config->server.unix_socket && !config->server.tcp) {
    return failed(Error::make(ErrorCode::kInvalidArgument,
                              "%s: neither [unix] nor [tcp] names a place to listen at",
                              arguments.config.c_str()));
  }
  if (arguments.check) {
    if (config->server.tcp) {
      const auto tls = TlsContext::load(config->server.tcp->tls);
      if (!tls) return failed(tls.error());
    }
    if (config->memservers) {
      const auto tls = TlsContext::load(*config->memservers);
      if (!tls) return failed(tls.error());
    }
    fmt::print("{}: good\n", arguments.config);
    return kDone;
  }
  if (arguments.take_over) config->take_over = fabric::TakeOver::kYes;
  spdlog::set_default_logger(spdlog::stderr_color_mt("fabric"));
  spdlog::set_level(spdlog::level::from_str(config->log_level));
  raiseDescriptorLimit();
  const sigset_t signals = blockSignals({SIGTERM, SIGINT, SIGHUP});
  if (config->etcd) {
    return run(Succession::start(*config, TIDEPOOL_VERSION, logLine), *config, arguments, signals);
  }
  return run(Daemon::start(*config, TIDEPOOL_VERSION, logLine), *config, arguments, signals);
}

}  // namespace

void addCommand(CLI::App& app, int* exit_code) {
  auto arguments = std::make_shared<Arguments>();
  CLI::App* command = app.add_subcommand("serve", "Run the fabric manager");
  command->add_option("--config", arguments->config, "TOML file")->capture_default_str();
  command->add_flag("--check-config", arguments->check, "Only say whether the file is good");
  command->add_flag("--take-over", arguments->take_over,
                    "Be obeyed by devices that obey another manager of this fabric");
  command->add_flag("--json", arguments->json, "Say where it listens as a line of JSON");
  command->callback([arguments, exit_code] { *exit_code = serve(*arguments); });
}

}  // namespace tidepool::serve
