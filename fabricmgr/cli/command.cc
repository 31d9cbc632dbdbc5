// SPDX-License-Identifier: Apache-2.0
// The table of verbs as CLI11 commands.
#include <fmt/format.h>

#include <cstdlib>
#include <memory>
#include <string>

#include "fabricmgr/cli/audit_export.h"
#include "fabricmgr/cli/run.h"
#include "fabricmgr/commands.h"
#include "fabricmgr/error_table.h"
#include "fabricmgr/key_file.h"
#include "fabricmgr/process.h"

namespace tidepool::cli {
namespace {

/// What one command line was told. Shared by the callbacks.
struct Told {
  Settings settings;
  Given given;
  std::string timeout;
};

std::string fromEnvironment(const char* name, const std::string& otherwise) {
  const char* value = std::getenv(name);
  return value == nullptr || *value == '\0' ? otherwise : value;
}

void addSettings(CLI::App& command, Told& told, Show show) {
  client::Target& target = told.settings.target;
  command
      .add_option("--fabric", target.address,
                  "unix:PATH or https://HOST:PORT of the manager; several: A,B,C")
      ->group("Connection");
  command.add_option("--ca", target.ca, "Whom to believe: PEM file")->group("Connection");
  command.add_option("--cert", target.certificate, "Who you are: PEM file")->group("Connection");
  command.add_option("--key", target.key, "Its key: PEM file")->group("Connection");
  command.add_flag("--json", told.settings.json, "Print the server's JSON");
  if (show == Show::kTable) {
    command
        .add_option("-o,--output", told.settings.output,
                    "wide (all columns), json, or name (names only)")
        ->check(CLI::IsMember({"wide", "json", "name"}))
        ->type_name("VALUE");
  }
  if (show == Show::kWait || show == Show::kChange) {
    command.add_option("--timeout", told.timeout, "How long to wait for it, such as 90s; for ever");
  }
  if (show != Show::kChange && show != Show::kWait && show != Show::kHealth) {
    command
        .add_flag("--stale", target.stale, "Of any manager, also one that stands by: says how old")
        ->group("Connection");
  }
  if (show != Show::kChange) return;
  command.add_flag("--dry-run", told.given.dry_run, "Check everything, change nothing");
  command.add_option("--idempotency-key", told.settings.key,
                     "The same key with the same request is carried out once");
  command.add_option("--if-match", told.settings.if_match,
                     "Refuse if the thing has changed since this index (its `modified`)");
  command.add_flag("--no-wait", told.settings.no_wait, "Do not wait for what goes on");
}

void addOption(CLI::App& command, Told& told, const Option& option) {
  const std::string flag(option.flag);
  std::vector<std::string>& texts = told.given.options[flag];
  if (option.kind == Kind::kFlag) {
    command.add_flag_callback(
        flag, [&texts] { texts.emplace_back("true"); }, std::string(option.about));
    return;
  }
  std::string about(option.about);
  if (!option.choices.empty()) about += fmt::format(": {}", option.choices);
  const std::string names =
      option.short_flag.empty() ? flag : fmt::format("{},{}", option.short_flag, flag);
  CLI::Option* added = command.add_option(names, texts, about);
  // CLI11 would take several words for one flag, and so swallow the operand.
  added->type_size(1)->allow_extra_args(false);
  if (option.kind != Kind::kTexts && option.kind != Kind::kLabels) {
    added->expected(1)->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
  }
  if (option.must) added->required();
}

/// Runs one command; what is thrown on the way is bad usage.
int guarded(Told& told, const auto& run) {
  if (const Status good = checkKeyFile(told.settings.target.key); !good) {
    return complain(good.error().text(), rowOf(good.error().code()).exit_code);
  }
  try {
    if (!told.timeout.empty()) {
      told.settings.timeout_ms = durationOption("--timeout", told.timeout);
    }
    return run();
  } catch (const UsageError& error) {
    return complain(error.what(), kUsage);
  } catch (const std::invalid_argument& error) {
    return complain(error.what(), kUsage);
  }
}

std::shared_ptr<Told> newTold() {
  auto told = std::make_shared<Told>();
  client::Target& target = told->settings.target;
  target.address = fromEnvironment("TIDEPOOL_FABRIC", target.address);
  target.ca = fromEnvironment("TIDEPOOL_FABRIC_CA", "");
  target.certificate = fromEnvironment("TIDEPOOL_FABRIC_CERT", "");
  target.key = fromEnvironment("TIDEPOOL_FABRIC_KEY", "");
  return told;
}

void addVerb(CLI::App& parent, const Verb& verb, int* exit_code) {
  auto told = newTold();
  CLI::App* command = parent.add_subcommand(std::string(verb.verb), std::string(verb.about));
  if (!verb.operand.empty()) {
    command->add_option(std::string(verb.operand), told->given.operand, "Which one")
        ->required(verb.many_path.empty());
  }
  for (const Option& option : verb.options) addOption(*command, *told, option);
  addSettings(*command, *told, verb.show);
  command->callback([told, &verb, exit_code] {
    told->settings.json = told->settings.json || told->settings.output == "json";
    *exit_code = guarded(*told, [&] { return runVerb(verb, told->given, told->settings); });
  });
}

void addWatch(CLI::App& app, int* exit_code) {
  struct Watched {
    std::string host;
    uint64_t since = 0;
  };
  auto told = newTold();
  auto watched = std::make_shared<Watched>();
  CLI::App* command = app.add_subcommand("watch", "Print what changes, as it changes");
  command->add_option("--host", watched->host, "Only what concerns this host");
  CLI::Option* since =
      command->add_option("--since", watched->since, "Begin after this index; with what comes now");
  addSettings(*command, *told, Show::kOne);
  command->callback([told, watched, since, exit_code] {
    *exit_code = guarded(*told, [&] {
      return runWatch(watched->host, watched->since, since->empty(), told->settings);
    });
  });
}

void addExport(CLI::App& audit, int* exit_code) {
  auto told = newTold();
  auto wish = std::make_shared<ExportWish>();
  CLI::App* command = audit.add_subcommand("export", "Write records out, with what they changed");
  command->add_option("--since", wish->since,
                      "After this sequence, or from this time in UTC on: 2026-05-01T12:00:00Z");
  command->add_option("--format", wish->format, "jsonl (a line each) or csv (RFC 4180)")
      ->check(CLI::IsMember({"jsonl", "csv"}))
      ->type_name("VALUE");
  command->add_option("--out", wish->out, "A new file, made whole or not at all; stdout if absent");
  addSettings(*command, *told, Show::kOne);
  command->get_option("--json")->description("With --out: say what was written as JSON");
  command->callback([told, wish, exit_code] {
    *exit_code = guarded(*told, [&] { return runExport(*wish, told->settings); });
  });
}

}  // namespace

void addCommands(CLI::App& app, int* exit_code) {
  CLI::App* noun = nullptr;
  for (const Verb& verb : verbs()) {
    if (verb.noun.empty()) {
      addVerb(app, verb, exit_code);
      continue;
    }
    if (noun == nullptr || noun->get_name() != verb.noun) {
      noun = app.add_subcommand(std::string(verb.noun), std::string(aboutNoun(verb.noun)));
      noun->require_subcommand(1);
    }
    addVerb(*noun, verb, exit_code);
  }
  addExport(*app.get_subcommand("audit"), exit_code);
  addWatch(app, exit_code);
}

}  // namespace tidepool::cli
