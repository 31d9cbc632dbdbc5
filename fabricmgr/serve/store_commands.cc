// SPDX-License-Identifier: Apache-2.0
// `fabricmgr init|backup|restore|migrate-store`: making, saving, putting back and moving the store
// that `fabricmgr serve` has open. Single-threaded.
#include <fmt/format.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "fabricmgr/commands.h"
#include "fabricmgr/error_table.h"
#include "fabricmgr/process.h"
#include "fabricmgr/serve/config.h"
#include "fabricmgr/store/backup.h"
#include "fabricmgr/store/etcd_store.h"
#include "fabricmgr/store/sqlite_store.h"
#include "fabricmgr/store/store_copy.h"
#include "runtime/base/clock.h"

namespace tidepool::serve {
namespace {

struct Arguments {
  std::string config = "/etc/tidepool/fabricmgr.toml";
  std::string state;  // instead of the configuration's
  std::string file;   // the backup
  std::string where;  // "etcd" or "file"
  bool json = false;
};

int failed(const char* verb, const Error& error) {
  fmt::print(stderr, "fabricmgr {}: {}\n", verb, error.text());
  return rowOf(error.code()).exit_code;
}

/// In etcd, or a file.
struct Place {
  std::optional<fabric::EtcdTarget> etcd;
  std::string text;
};

Result<Place> placeOf(const std::string& text) {
  if (!fabric::isEtcdUrl(text)) return Place{std::nullopt, text};
  auto target = fabric::parseEtcdUrl(text);
  if (!target) return tl::unexpected(target.error());
  return Place{*target, target->url()};
}

Result<Place> placeOf(const Arguments& arguments) {
  if (!arguments.state.empty()) return placeOf(arguments.state);
  auto config = readConfig(arguments.config);
  if (!config) return tl::unexpected(config.error());
  return Place{config->etcd, config->etcd ? config->etcd->url() : config->state};
}

/// For what is done to files alone.
Result<std::string> fileOf(const Arguments& arguments) {
  auto place = placeOf(arguments);
  if (!place) return tl::unexpected(place.error());
  if (!place->etcd) return std::move(place->text);
  return fail(ErrorCode::kUnsupported,
              "%.120s: a store in etcd is saved with etcd's own means (`etcdctl snapshot save`)",
              place->text.c_str());
}

int init(const Arguments& arguments) {
  const auto place = placeOf(arguments);
  if (!place) return failed("init", place.error());
  const auto made =
      place->etcd ? fabric::initEtcdStore(*place->etcd) : fabric::initSqliteStore(place->text);
  if (!made) return failed("init", made.error());
  if (arguments.json) {
    const nlohmann::ordered_json line = {{"fabric", made->fabric}, {"state", place->text}};
    fmt::print("{}\n", line.dump());
  } else {
    fmt::print("fabric {} in {}\n", made->fabric, place->text);
  }
  return kDone;
}

int backUp(const Arguments& arguments) {
  const auto path = fileOf(arguments);
  if (!path) return failed("backup", path.error());
  const auto saved = fabric::backUpStore(*path, arguments.file);
  if (!saved) return failed("backup", saved.error());
  if (arguments.json) {
    const nlohmann::ordered_json line = {
        {"fabric", saved->fabric}, {"term", saved->term.value()}, {"backup", arguments.file}};
    fmt::print("{}\n", line.dump());
  } else {
    fmt::print("fabric {}, term {}, in {}\n", saved->fabric, saved->term.value(), arguments.file);
  }
  return kDone;
}

int restore(const Arguments& arguments) {
  const auto path = fileOf(arguments);
  if (!path) return failed("restore", path.error());
  const auto done = fabric::restoreStore(*path, arguments.file, WallClock().now());
  if (!done) return failed("restore", done.error());
  if (arguments.json) {
    const nlohmann::ordered_json line = {{"fabric", done->standing.fabric},
                                         {"term", done->standing.term.value()},
                                         {"state", *path},
                                         {"replaced", done->replaced}};
    fmt::print("{}\n", line.dump());
    return kDone;
  }
  fmt::print("fabric {}, term {}, in {}\n", done->standing.fabric, done->standing.term.value(),
             *path);
  if (!done->replaced.empty()) fmt::print("what was there: {}\n", done->replaced);
  return kDone;
}

int migrateStore(const Arguments& arguments) {
  const auto config = readConfig(arguments.config);
  if (!config) return failed("migrate-store", config.error());
  if (!config->etcd) {
    return failed("migrate-store",
                  Error::make(ErrorCode::kInvalidArgument,
                              "%.120s names no etcd: store = \"etcd://HOST:PORT,.../NAME\"",
                              arguments.config.c_str()));
  }
  const bool to_etcd = arguments.where == "etcd";
  const auto moved = to_etcd ? fabric::moveToEtcd(config->state, *config->etcd)
                             : fabric::moveToSqlite(*config->etcd, config->state);
  if (!moved) return failed("migrate-store", moved.error());
  const std::string place = to_etcd ? config->etcd->url() : config->state;
  const fabric::Standing& standing = moved->standing;
  if (arguments.json) {
    const nlohmann::ordered_json line = {
        {"fabric", standing.fabric},       {"term", standing.term.value()},
        {"index", moved->index.value()},   {"audit_records", moved->audit_records},
        {"audit_head", moved->audit_head}, {"state", place}};
    fmt::print("{}\n", line.dump());
  } else {
    fmt::print("fabric {}, term {}, index {}, in {}\n", standing.fabric, standing.term.value(),
               moved->index.value(), place);
    fmt::print("{} audit records, the last one's hash is {}\n", moved->audit_records,
               moved->audit_head);
  }
  return kDone;
}

CLI::App* addStoreVerb(CLI::App& app, const char* verb, const char* about, Arguments* arguments) {
  CLI::App* command = app.add_subcommand(verb, about);
  auto* config =
      command->add_option("--config", arguments->config, "TOML file that names the store");
  config->capture_default_str();
  command
      ->add_option("--state", arguments->state,
                   "The store: its file, or etcd://..., without a configuration")
      ->excludes(config);
  command->add_flag("--json", arguments->json, "Say what was done as a line of JSON");
  return command;
}

}  // namespace

void addStoreCommands(CLI::App& app, int* exit_code) {
  auto arguments = std::make_shared<Arguments>();
  CLI::App* command = addStoreVerb(app, "init", "Make the store of a new fabric", arguments.get());
  command->callback([arguments, exit_code] { *exit_code = init(*arguments); });
  auto moves = std::make_shared<Arguments>();
  command = app.add_subcommand("migrate-store", "Move the store into etcd, or back into a file");
  command->add_option("--config", moves->config, "TOML file that names both")
      ->capture_default_str();
  command->add_option("TO", moves->where, "Where it is to be")
      ->required()
      ->check(CLI::IsMember({"etcd", "file"}));
  command->add_flag("--json", moves->json, "Say what was done as a line of JSON");
  command->callback([moves, exit_code] { *exit_code = migrateStore(*moves); });
  for (const bool saves : {true, false}) {
    auto told = std::make_shared<Arguments>();
    CLI::App* verb =
        addStoreVerb(app, saves ? "backup" : "restore",
                     saves ? "Save the store into a new file, also while the manager runs"
                           : "Put a backup in the place of the store; the manager must not run",
                     told.get());
    verb->add_option("FILE", told->file, saves ? "What to make" : "The backup")->required();
    verb->callback(
        [told, saves, exit_code] { *exit_code = saves ? backUp(*told) : restore(*told); });
  }
}

}  // namespace tidepool::serve
