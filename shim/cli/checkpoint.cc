// SPDX-License-Identifier: Apache-2.0
// `tidepool checkpoint show` and `verify`. See checkpoint.h.
#include "shim/cli/checkpoint.h"

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <charconv>
#include <nlohmann/json.hpp>
#include <thread>

#include "allocator/checkpoint/verify.h"
#include "runtime/base/text_buffer.h"
#include "shim/cli/processes.h"

namespace tidepool::cli {
namespace {

using Json = nlohmann::ordered_json;

const char* kindName(SavedRows which) { return which == SavedRows::kAll ? "full" : "changes"; }

Bytes sizeOf(const Manifest& manifest) {
  Bytes sum;
  for (const ManifestTable& table : manifest.tables) {
    for (const ManifestFile& file : table.files) sum += file.size;
  }
  if (manifest.state) sum += manifest.state->size;
  return sum;
}

Json asJson(const ManifestTable& table) {
  Json files = Json::array();
  for (const ManifestFile& file : table.files) {
    files.push_back({{"name", file.name},
                     {"kind", kindName(file.which)},
                     {"bytes", file.size.value()},
                     {"rows", file.rows},
                     {"checksum", fmt::format("{:016x}", file.checksum)}});
  }
  return {{"name", table.name},
          {"rows", table.rows},
          {"capacity", table.capacity},
          {"ids", table.ids == IdKind::kDense ? "dense" : "hashed"},
          {"format", formatName(table.format)},
          {"row_bytes", table.format.rowBytes()},
          {"step", table.step},
          {"files", files}};
}

Json asJson(const CheckpointReport& report) {
  Json json = {{"number", report.number}};
  if (report.manifest) {
    json["id"] = fmt::format("{:016x}", report.manifest->id);
    json["kind"] = kindName(report.manifest->which);
    json["created"] = report.manifest->created;
    json["bytes"] = sizeOf(*report.manifest).value();
    json["state_bytes"] = report.manifest->state ? report.manifest->state->size.value() : 0;
    json["tables"] = Json::array();
    for (const ManifestTable& table : report.manifest->tables) {
      json["tables"].push_back(asJson(table));
    }
  }
  json["problems"] = report.problems;
  return json;
}

void print(const Json& json) {
  fmt::print("{}\n", json.dump(2, ' ', false, Json::error_handler_t::replace));
}

void print(const CheckpointReport& report) {
  if (!report.manifest) {
    fmt::print("checkpoint {}: {}\n", report.number, report.problems.front());
    return;
  }
  const Manifest& manifest = *report.manifest;
  fmt::print("checkpoint {}  {}  {:%Y-%m-%d %H:%M:%S} UTC  {}\n", report.number,
             kindName(manifest.which), fmt::gmtime(static_cast<time_t>(manifest.created)),
             sizeText(sizeOf(manifest)));
  for (const ManifestTable& table : manifest.tables) {
    fmt::print("  {:<24} {:>12} rows  {}  {} ids  step {}  {} file{}\n", table.name, table.rows,
               formatName(table.format), table.ids == IdKind::kDense ? "dense" : "hashed",
               table.step, table.files.size(), table.files.size() == 1 ? "" : "s");
  }
}

int show(const std::string& directory, bool json) {
  auto reports = listCheckpoints(directory);
  if (!reports) throw std::runtime_error(reports.error().text());
  Json all = Json::array();
  bool readable = true;
  for (const CheckpointReport& report : *reports) {
    readable = readable && report.manifest.has_value();
    json ? all.push_back(asJson(report)) : print(report);
  }
  if (json) print(Json({{"schema", 1}, {"directory", directory}, {"checkpoints", all}}));
  if (!json && reports->empty()) fmt::print("{} has no checkpoint\n", directory);
  return readable ? 0 : 1;
}

int verify(const std::string& directory, uint64_t number, bool json) {
  Workers workers(std::max(1u, std::thread::hardware_concurrency()));
  auto report = verifyCheckpoint(directory, workers, number);
  if (!report) throw std::runtime_error(report.error().text());
  const bool whole = report->problems.empty();
  if (json) {
    Json out = {{"schema", 1}, {"directory", directory}, {"whole", whole}};
    out["rows_read"] = report->rows;
    out["bytes_read"] = report->bytes.value();
    out.update(asJson(*report));
    print(out);
    return whole ? 0 : 1;
  }
  for (const std::string& problem : report->problems) fmt::print("fail  {}\n", problem);
  if (whole) {
    fmt::print("checkpoint {} is whole: {} rows in {} were read and checked\n", report->number,
               report->rows, sizeText(report->bytes));
  } else {
    fmt::print("checkpoint {} cannot be restored; `tidepool checkpoint show {}` lists the others\n",
               report->number, directory);
  }
  return whole ? 0 : 1;
}

uint64_t numberOf(const Arguments& arguments) {
  const std::string text = arguments.value("--number", "0");
  uint64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error == std::errc() && end == text.data() + text.size()) return number;
  throw UsageError(fmt::format("checkpoint: --number: '{}' is no number", text));
}

}  // namespace

int checkpoint(const Arguments& arguments) {
  const auto& words = arguments.operands();
  if (words.size() != 2 || (words[0] != "show" && words[0] != "verify")) {
    throw UsageError("checkpoint: say `checkpoint show DIR` or `checkpoint verify DIR`");
  }
  const bool json = arguments.has("--json");
  const uint64_t number = numberOf(arguments);
  return words[0] == "show" ? show(words[1], json) : verify(words[1], number, json);
}

}  // namespace tidepool::cli
