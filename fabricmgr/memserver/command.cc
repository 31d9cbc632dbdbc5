// SPDX-License-Identifier: Apache-2.0
// `fabricmgr memserver`: parses, starts the server, says where it listens, waits for signals.
// SIGHUP reads certificates and revocations again.
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
  std::string control;  // HOST:PORT for the fabric manager; empty: none
  TlsFiles tls;         // for that port
  uint64_t grace_s = 30;
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

/// The manager's port, if one is asked for, and what it shows there.
struct Control {
  std::shared_ptr<TlsInUse> tls;
  std::unique_ptr<ControlServer> server;

  uint16_t port() const { return server ? server->port() : 0; }
  void reload() const {
    if (!server) return;
    if (const Status read = tls->reload(); !read) {
      return spdlog::error("the old certificates stay in use: {}", read.error().text());
    }
    server->recheck();
    spdlog::info("certificates and revocations read again");
  }
};

Result<Control> startControl(Server& server, const Arguments& arguments) {
  if (arguments.control.empty()) return Control();
  auto tls = TlsInUse::load(arguments.tls);
  if (!tls) return tl::unexpected(tls.error());
  auto started = ControlServer::start(server, arguments.control, *tls);
  if (!started) return tl::unexpected(started.error());
  return Control{std::move(*tls), std::move(*started)};
}

/// Until a signal says that it is enough.
void untilTold(const Control& control, const sigset_t& signals) {
  for (;;) {
    int number = 0;
    sigwait(&signals, &number);
    if (number != SIGHUP || !control.server) return spdlog::info("{}: closing", strsignal(number));
    control.reload();
  }
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
  const sigset_t signals = blockSignals({SIGTERM, SIGINT, SIGHUP});
  ServerOptions options;
  options.listen = arguments.listen;
  options.size = Bytes(arguments.size);
  options.threads = arguments.threads;
  if (!arguments.control.empty()) options.lends_to = LendsTo::kByOrders;
  options.transport = arguments.transport;
  options.broken_grace = Nanoseconds(arguments.grace_s * 1'000'000'000);
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
  announce(arguments, (*server)->port(), control->port());
  notifyServiceManager("READY=1");
  untilTold(*control, signals);
  notifyServiceManager("STOPPING=1");
  if (control->server) control->server->stop();
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
  command
      ->add_option("--reconnect-grace", arguments->grace_s,
                   "Seconds that memory is kept for a broken connection")
      ->check(CLI::Range(2, 3600))
      ->capture_default_str();
  auto* control = command->add_option("--control", arguments->control,
                                      "HOST:PORT at which the fabric manager gives orders");
  TlsFiles& tls = arguments->tls;
  for (CLI::Option* file :
       {command->add_option("--cert", tls.certificate, "Its certificate for that, for its device"),
        command->add_option("--key", tls.key, "The certificate's key: PEM file"),
        command->add_option("--ca", tls.ca, "PEM file of the CA that vouches for the manager")}) {
    control->needs(file);
    file->needs(control);
  }
  command->add_option("--crl", tls.crl, "List of revoked certificates; SIGHUP reads it again")
      ->needs(control);
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
