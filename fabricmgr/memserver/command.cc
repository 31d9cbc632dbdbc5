// SPDX-License-Identifier: Apache-2.0
// `fabricmgr memserver`: parses, starts the server, says where it listens, waits for a signal.
#include <fmt/format.h>
#include <spdlog/sinks/stdout_color_sinks.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>

#include "fabricmgr/commands.h"
#include "fabricmgr/memserver/control_server.h"
#include "fabricmgr/memserver/server.h"
#include "fabricmgr/process.h"
#include "fabricmgr/size_option.h"

namespace tidepool::memserver {
namespace {

struct Arguments {
  std::string listen;
  std::string size_text;
  uint64_t size = 0;  // bytes, parsed from size_text
  unsigned threads = std::clamp(std::thread::hardware_concurrency(), 1u, 4u);
  std::string control;   // HOST:PORT for the fabric manager; empty: none
  std::string key_file;  // its key
  Transport transport = Transport::kAuto;
  bool json = false;
};

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

/// Whether clients may use RDMA: a line if they cannot. Errors: kUnsupported if they should.
Status checkRdma(const Server& server, const Arguments& arguments) {
  if (arguments.transport == Transport::kTcp) return {};
  if (server.noRdma().empty()) {
    spdlog::info("clients may use RDMA");
    return {};
  }
  if (arguments.transport == Transport::kVerbs) {
    return fail(ErrorCode::kUnsupported, "--transport verbs: %s", server.noRdma().c_str());
  }
  spdlog::info("clients use TCP: {}", server.noRdma());
  return {};
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
  const uint64_t machine = machineBytes();
  if (arguments.size > machine) {
    spdlog::warn(
        "--size is {} bytes but this machine has {}: clients may be lost to the kernel's "
        "out-of-memory killer",
        arguments.size, machine);
  }
  raiseDescriptorLimit();
  const sigset_t signals = blockSignals({SIGTERM, SIGINT});
  ServerOptions options;
  options.listen = arguments.listen;
  options.size = Bytes(arguments.size);
  options.threads = arguments.threads;
  if (!arguments.control.empty()) options.lends_to = LendsTo::kByOrders;
  options.transport = arguments.transport;
  auto server = Server::start(options);
  if (!server) {
    fmt::print(stderr, "fabricmgr memserver: {}\n", server.error().text());
    return server.error().code() == ErrorCode::kInvalidArgument && server.error().osError() == 0
               ? kUsage
               : kFailed;
  }
  if (const Status rdma = checkRdma(**server, arguments); !rdma) {
    fmt::print(stderr, "fabricmgr memserver: {}\n", rdma.error().text());
    return kFailed;
  }
  const auto control = startControl(**server, arguments);
  if (!control) {
    fmt::print(stderr, "fabricmgr memserver: {}\n", control.error().text());
    return kFailed;
  }
  announce(arguments, (*server)->port(), *control == nullptr ? 0 : (*control)->port());
  notifyServiceManager("READY=1");
  int signal_number = 0;
  sigwait(&signals, &signal_number);
  spdlog::info("{}: closing", strsignal(signal_number));
  notifyServiceManager("STOPPING=1");
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
  const std::map<std::string, Transport> transports = {
      {"auto", Transport::kAuto}, {"tcp", Transport::kTcp}, {"verbs", Transport::kVerbs}};
  command
      ->add_option("--transport", arguments->transport,
                   "How clients reach pages: auto (by RDMA too, if there is a device), tcp, verbs")
      // Its own description would be of numbers that nobody gives.
      ->transform(CLI::CheckedTransformer(transports).description(""))
      ->type_name("auto|tcp|verbs");
  command->add_flag("--json", arguments->json, "Say where it listens as a line of JSON");
  command->callback([arguments, exit_code] {
    arguments->size = sizeOption("--size", arguments->size_text);
    *exit_code = serve(*arguments);
  });
}

}  // namespace tidepool::memserver
