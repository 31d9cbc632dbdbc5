// SPDX-License-Identifier: Apache-2.0
// `fabricmgr agent`: parses, starts the agent, says where it listens, waits for a signal. With
// --status it asks an agent that is running instead.
#include <fmt/format.h>
#include <grp.h>
#include <pwd.h>
#include <spdlog/sinks/stdout_color_sinks.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <vector>

#include "fabricmgr/agent/agent.h"
#include "fabricmgr/commands.h"
#include "fabricmgr/error_table.h"
#include "fabricmgr/process.h"
#include "runtime/transport/agent_client.h"

namespace tidepool::agent {
namespace {

struct Arguments {
  Options options;
  unsigned lease_seconds = 0;
  std::vector<std::string> users, groups;
  bool status = false;
  bool forget = false;
  bool json = false;
};

int failed(const Error& error) {
  fmt::print(stderr, "fabricmgr agent: {}\n", error.text());
  return rowOf(error.code()).exit_code;
}

/// A number, or a name that `lookUp` turns into one.
template <typename LookUp>
Result<uint32_t> idOf(const std::string& name, const char* kind, LookUp lookUp) {
  uint32_t number = 0;
  const char* end = name.data() + name.size();
  if (std::from_chars(name.data(), end, number).ptr == end && !name.empty()) return number;
  if (lookUp(name.c_str(), &number)) return number;
  return fail(ErrorCode::kInvalidArgument, "there is no %s '%.60s'", kind, name.c_str());
}

bool findUser(const char* name, uint32_t* number) {
  const passwd* entry = getpwnam(name);
  if (entry != nullptr) *number = entry->pw_uid;
  return entry != nullptr;
}

bool findGroup(const char* name, uint32_t* number) {
  const group* entry = getgrnam(name);
  if (entry != nullptr) *number = entry->gr_gid;
  return entry != nullptr;
}

Status readAllowed(const Arguments& arguments, Allowed* allowed) {
  for (const std::string& name : arguments.users) {
    const auto id = idOf(name, "user", findUser);
    if (!id) return tl::unexpected(id.error());
    allowed->users.push_back(*id);
  }
  for (const std::string& name : arguments.groups) {
    const auto id = idOf(name, "group", findGroup);
    if (!id) return tl::unexpected(id.error());
    allowed->groups.push_back(*id);
  }
  // Whoever runs the agent, and root, could have its memory anyway.
  allowed->users.push_back(0);
  allowed->users.push_back(geteuid());
  return {};
}

void announce(const Arguments& arguments) {
  const std::string address = "unix:" + arguments.options.socket;
  if (arguments.json) {
    const nlohmann::ordered_json line = {
        {"listening", address}, {"host", arguments.options.host}, {"pid", getpid()}};
    fmt::print("{}\n", line.dump());
  } else {
    fmt::print("listening on {}\n", address);
  }
  std::fflush(stdout);
}

void logLine(LogLevel level, const std::string& line) {
  if (level == LogLevel::kInfo) return spdlog::info("{}", line);
  spdlog::warn("{}", line);
}

int serve(Arguments& arguments) {
  arguments.options.lease = Nanoseconds(arguments.lease_seconds * 1'000'000'000ull);
  if (arguments.options.host.empty()) {
    char name[64] = {};
    (void)gethostname(name, sizeof name - 1);
    arguments.options.host = std::string(name).substr(0, std::string(name).find('.'));
  }
  if (const Status read = readAllowed(arguments, &arguments.options.allowed); !read) {
    return failed(read.error());
  }
  spdlog::set_default_logger(spdlog::stderr_color_mt("agent"));
  raiseDescriptorLimit();
  const sigset_t signals = blockSignals({SIGTERM, SIGINT});
  auto agent = Agent::start(arguments.options, logLine);
  if (!agent) return failed(agent.error());
  announce(arguments);
  std::thread waiter([&] {
    int number = 0;
    sigwait(&signals, &number);
    spdlog::info("{}: closing; programs keep what they have", strsignal(number));
    (*agent)->stop();
  });
  (*agent)->run();
  waiter.join();
  return kDone;
}

int forgetFabric(const Arguments& arguments) {
  const auto journal = Journal::open(arguments.options.journal);
  if (!journal) return failed(journal.error());
  const std::string before = (*journal)->fabric().id;
  if (const Status forgotten = (*journal)->forgetFabric(); !forgotten) {
    return failed(forgotten.error());
  }
  fmt::print("{}\n", before.empty()
                         ? "this host belonged to no fabric"
                         : fmt::format("this host does not belong to fabric {} any more", before));
  return kDone;
}

/// Waits for the answer to the request with this tag.
Status awaitAnswer(AgentClient& client, uint64_t tag, AgentNotice* notice) {
  constexpr Nanoseconds kPatience(10'000'000'000);
  do {
    TP_TRY(client.wait(notice, kPatience));
    if (notice->kind == agent_wire::NoticeKind::kRefused) {
      return fail(notice->error, "%s", notice->text);
    }
  } while (notice->tag != tag);
  return {};
}

int showStatus(const Arguments& arguments) {
  auto client = AgentClient::connect(arguments.options.socket.c_str());
  if (!client) {
    (void)failed(client.error());
    return client.error().code() == ErrorCode::kUnreachable
               ? static_cast<int>(kUnreachablePeer)
               : rowOf(client.error().code()).exit_code;
  }
  AgentNotice notice;
  Status answered = (*client)->askStatus(1);
  if (answered) answered = awaitAnswer(**client, 1, &notice);
  if (!answered) return failed(answered.error());
  const auto status = nlohmann::ordered_json::parse(notice.text, nullptr, false);
  if (!status.is_object()) {
    return failed(Error::make(ErrorCode::kCorrupt, "the agent's answer is not JSON"));
  }
  if (arguments.json) {
    fmt::print("{}\n", notice.text);
  } else {
    for (const auto& [name, value] : status.items()) {
      fmt::print("{:<16}{}\n", name, value.is_string() ? value.get<std::string>() : value.dump());
    }
  }
  return status.value("health", "error") == "error" ? kFailed : kDone;
}

void fromEnvironment(const char* name, std::string* into) {
  const char* value = std::getenv(name);
  if (value != nullptr && *value != '\0') *into = value;
}

}  // namespace

void addCommand(CLI::App& app, int* exit_code) {
  auto arguments = std::make_shared<Arguments>();
  Options& options = arguments->options;
  options.socket = agent_wire::kDefaultSocket;
  options.journal = "/run/tidepool/agent.journal";
  fromEnvironment("TIDEPOOL_FABRIC", &options.manager.address);
  fromEnvironment("TIDEPOOL_FABRIC_CA", &options.manager.ca);
  fromEnvironment("TIDEPOOL_FABRIC_CERT", &options.manager.certificate);
  fromEnvironment("TIDEPOOL_FABRIC_KEY", &options.manager.key);
  CLI::App* command =
      app.add_subcommand("agent", "Bring a host's regions to its programs (or show --status)");
  command->add_option("--host", options.host,
                      "This host, as its certificate names it; the machine's name if absent");
  command->add_option("--domain", options.domain, "Its failure domain");
  command
      ->add_option("--lease", arguments->lease_seconds,
                   "Seconds that a new host keeps its regions without a heartbeat; 30 if absent")
      ->check(CLI::Range(1u, 86'400u));
  command->add_option("--socket", options.socket, "Where programs find the agent");
  command->add_option("--journal", options.journal,
                      "Who has what; best where a start of the machine leaves nothing");
  command
      ->add_option("--allow-user", arguments->users,
                   "Who may have memory, besides root and the agent's user (repeat it)")
      ->type_size(1)
      ->allow_extra_args(false);
  command->add_option("--allow-group", arguments->groups, "Likewise, a group (repeat it)")
      ->type_size(1)
      ->allow_extra_args(false);
  command->add_flag("--allow-all", options.allowed.everybody, "Everybody may have memory");
  command->add_option("--fabric", options.manager.address,
                      "unix:PATH or https://HOST:PORT of the manager; several: A,B,C");
  command->add_option("--ca", options.manager.ca, "Whom to believe: PEM file");
  command->add_option("--cert", options.manager.certificate, "Who this host is: PEM file");
  command->add_option("--key", options.manager.key, "Its key: PEM file");
  command->add_flag("--status", arguments->status, "Ask the agent that is running how it is");
  command->add_flag("--forget-fabric", arguments->forget,
                    "Only forget which fabric this host belongs to: the next one that answers");
  command->add_flag("--json", arguments->json, "Say where it listens, or --status, as JSON");
  command->callback([arguments, exit_code] {
    *exit_code = arguments->forget   ? forgetFabric(*arguments)
                 : arguments->status ? showStatus(*arguments)
                                     : serve(*arguments);
  });
}

}  // namespace tidepool::agent
