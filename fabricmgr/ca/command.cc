// SPDX-License-Identifier: Apache-2.0
// `fabricmgr ca init|issue|sign|renew|revoke|list`.
#include <fmt/format.h>

#include <ctime>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "fabricmgr/ca/authority.h"
#include "fabricmgr/commands.h"
#include "fabricmgr/error_table.h"
#include "fabricmgr/process.h"

namespace tidepool::ca {
namespace {

constexpr int64_t kDay = 24 * 3600;

struct Arguments {
  std::string folder = "tidepool-ca";
  std::string out;
  std::string which;
  std::string file;  // a certificate, or a request for one
  Issue issue;
  int64_t root_days = 3650;
  int64_t days = 365;
  bool json = false;
};

int failed(const Error& error) {
  fmt::print(stderr, "fabricmgr ca: {}\n", error.text());
  return rowOf(error.code()).exit_code;
}

int init(const Arguments& arguments) {
  const auto authority = Authority::init(arguments.folder, arguments.root_days * kDay);
  if (!authority) return failed(authority.error());
  fmt::print("{}\n{}\n", authority->certificatePath(), authority->crlPath());
  return kDone;
}

int issue(Arguments arguments) {
  const auto authority = Authority::open(arguments.folder);
  if (!authority) return failed(authority.error());
  arguments.issue.valid_seconds = arguments.days * kDay;
  const auto issued =
      authority->issue(arguments.issue, arguments.out.empty() ? arguments.folder : arguments.out);
  if (!issued) return failed(issued.error());
  fmt::print("{}\n{}\n", issued->certificate, issued->key);
  return kDone;
}

int sign(Arguments arguments) {
  const auto authority = Authority::open(arguments.folder);
  if (!authority) return failed(authority.error());
  arguments.issue.valid_seconds = arguments.days * kDay;
  const auto issued = authority->sign(arguments.issue, arguments.file,
                                      arguments.out.empty() ? arguments.folder : arguments.out);
  if (!issued) return failed(issued.error());
  fmt::print("{}\n", issued->certificate);
  return kDone;
}

int renew(const Arguments& arguments) {
  const auto authority = Authority::open(arguments.folder);
  if (!authority) return failed(authority.error());
  const auto issued = authority->renew(arguments.file, arguments.days * kDay);
  if (!issued) return failed(issued.error());
  fmt::print("{}\n", issued->certificate);
  return kDone;
}

int revoke(const Arguments& arguments) {
  const auto authority = Authority::open(arguments.folder);
  if (!authority) return failed(authority.error());
  const auto count = authority->revoke(arguments.which);
  if (!count) return failed(count.error());
  fmt::print("{}\n", authority->crlPath());
  fmt::print(stderr, "{}; servers learn of it by the new list and SIGHUP\n",
             *count == 0 ? "revoked already" : fmt::format("{} revoked", *count));
  return kDone;
}

/// Whole days until a time as "2027-01-31T00:00:00Z"; below 0: it is over.
int64_t daysLeft(const std::string& until) {
  std::tm parts = {};
  if (strptime(until.c_str(), "%Y-%m-%dT%H:%M:%SZ", &parts) == nullptr) return 0;
  const int64_t seconds = timegm(&parts) - std::time(nullptr);
  return seconds >= 0 ? seconds / kDay : (seconds - kDay + 1) / kDay;
}

nlohmann::ordered_json jsonOf(const Entry& one) {
  return {{"serial", one.serial},   {"kind", one.kind},
          {"name", one.name},       {"until", one.not_after},
          {"revoked", one.revoked}, {"days_left", daysLeft(one.not_after)}};
}

void printEntry(const char* state, const Entry& entry) {
  const int64_t left = daysLeft(entry.not_after);
  fmt::print("{:<9}{:<34}{:<22}{:<9}{}:{}\n", left < 0 && !entry.revoked ? "expired" : state,
             entry.serial, entry.not_after, left < 0 ? "over" : fmt::format("{}d", left),
             entry.kind, entry.name);
}

int list(const Arguments& arguments) {
  const auto authority = Authority::open(arguments.folder);
  if (!authority) return failed(authority.error());
  const auto entries = authority->list();
  if (!entries) return failed(entries.error());
  const auto own = authority->own();
  if (!own) return failed(own.error());
  if (arguments.json) {
    nlohmann::ordered_json json = {{"items", nlohmann::ordered_json::array()},
                                   {"own", nlohmann::ordered_json::array()}};
    for (const Entry& one : *entries) json["items"].push_back(jsonOf(one));
    for (const Entry& one : *own) json["own"].push_back(jsonOf(one));
    fmt::print("{}\n", json.dump());
    return kDone;
  }
  fmt::print("{:<9}{:<34}{:<22}{:<9}{}\n", "STATE", "SERIAL", "UNTIL", "LEFT", "WHO");
  for (const Entry& one : *own) printEntry("own", one);
  for (const Entry& one : *entries) printEntry(one.revoked ? "revoked" : "good", one);
  return kDone;
}

}  // namespace

void addCommand(CLI::App& app, int* exit_code) {
  auto arguments = std::make_shared<Arguments>();
  CLI::App* ca = app.add_subcommand("ca", "A small certificate authority for labs");
  ca->require_subcommand(1);
  const auto add = [&](const char* name, const char* about, int (*run)(const Arguments&)) {
    CLI::App* command = ca->add_subcommand(name, about);
    command->add_option("--dir", arguments->folder, "Folder of the authority")
        ->capture_default_str();
    command->callback([arguments, exit_code, run] { *exit_code = run(*arguments); });
    return command;
  };
  CLI::App* init_command =
      add("init", "Make a root certificate and an empty list of revoked ones", init);
  init_command->add_option("--days", arguments->root_days, "How long the root is good")
      ->check(CLI::Range(1, 36500))
      ->capture_default_str();
  CLI::App* issue_command = add("issue", "Make a certificate and its key",
                                [](const Arguments& given) { return issue(given); });
  CLI::App* sign_command = add("sign", "Make a certificate for a key that stays where it is",
                               [](const Arguments& given) { return sign(given); });
  sign_command
      ->add_option("REQUEST", arguments->file,
                   "File with a certificate request (PKCS#10, PEM), as `openssl req -new` makes it")
      ->required();
  for (CLI::App* command : {issue_command, sign_command}) {
    command
        ->add_option("KIND", arguments->issue.kind,
                     "server, viewer, operator, host, admin, manager, memserver")
        ->required();
    command->add_option("NAME", arguments->issue.name, "Whose it is; a memory server's: the device")
        ->required();
    command->add_option("--host", arguments->issue.hosts,
                        "Of a server: a DNS name or address it is reached by (repeat it)");
    command->add_option("--out", arguments->out, "Where to write it; the authority's folder");
  }
  CLI::App* renew_command =
      add("renew", "Replace a certificate by one for the same key that ends later", renew);
  renew_command->add_option("CERTIFICATE", arguments->file, "Its file")->required();
  for (CLI::App* command : {issue_command, sign_command, renew_command}) {
    command->add_option("--days", arguments->days, "How long it is good")
        ->check(CLI::Range(1, 36500))
        ->capture_default_str();
  }
  CLI::App* revoke_command = add("revoke", "Put a certificate on the list of revoked ones", revoke);
  revoke_command->add_option("WHICH", arguments->which, "Its serial number, or KIND:NAME")
      ->required();
  add("list", "What was issued, and what is revoked", list)
      ->add_flag("--json", arguments->json, "Print JSON");
}

}  // namespace tidepool::ca
