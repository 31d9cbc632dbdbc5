// SPDX-License-Identifier: Apache-2.0
// Text for people. Pure. Control characters from the server never reach the terminal.
#include "fabricmgr/cli/show.h"

#include <fmt/format.h>

#include <algorithm>
#include <sstream>
#include <vector>

namespace tidepool::cli {
namespace {

using Json = nlohmann::ordered_json;

std::string plain(std::string text) {
  for (char& c : text) {
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) c = '?';
  }
  return text;
}

std::string labelsText(const Json& labels) {
  std::string text;
  for (const auto& [key, value] : labels.items()) {
    if (!value.is_string()) return labels.dump();
    text += fmt::format("{}{}={}", text.empty() ? "" : ",", key, value.get<std::string>());
  }
  return text.empty() ? "-" : plain(text);
}

/// Of a list of extents, each device once.
std::string devicesText(const Json& extents) {
  std::vector<std::string> names;
  for (const Json& extent : extents) {
    if (!extent.is_object()) return extents.dump();
    const std::string name = plain(extent.value("device", ""));
    if (std::find(names.begin(), names.end(), name) == names.end()) names.push_back(name);
  }
  return fmt::format("{}", fmt::join(names, ","));
}

std::string textOf(const Json& value, As as) {
  if (value.is_number_unsigned() || value.is_number_integer()) {
    const uint64_t number = value.get<uint64_t>();
    if (as == As::kBytes) return bytesText(number);
    if (as == As::kLeft && number == 0) return "EXPIRED";
    if (as == As::kDuration || as == As::kLeft) return durationText(number);
    if (as == As::kNumberOrDash && number == 0) return "-";
    return std::to_string(number);
  }
  if (value.is_string()) {
    const std::string text = plain(value.get<std::string>());
    return text.empty() ? "-" : text;
  }
  if (value.is_boolean()) return value.get<bool>() ? "yes" : "no";
  if (value.is_object()) return labelsText(value);
  if (value.is_array()) return devicesText(value);
  return value.is_null() ? "-" : value.dump();
}

As formOf(const std::string& field) {
  if (field.ends_with("_bytes") || field == "bytes") return As::kBytes;
  return field.ends_with("_ms") ? As::kDuration : As::kText;
}

std::string bar(uint64_t used, uint64_t whole) {
  constexpr uint64_t kWidth = 30;
  const uint64_t full = whole == 0 ? 0 : used * kWidth / whole;
  return "[" + std::string(full, '#') + std::string(kWidth - full, '.') + "]";
}

}  // namespace

std::string bytesText(uint64_t bytes) {
  static constexpr const char* kUnits[] = {"", "K", "M", "G", "T", "P", "E"};
  size_t unit = 0;
  auto number = static_cast<double>(bytes);
  while (number >= 1024 && unit < 6) {
    number /= 1024;
    ++unit;
  }
  const bool whole = number == static_cast<double>(static_cast<uint64_t>(number));
  return whole ? fmt::format("{}{}", static_cast<uint64_t>(number), kUnits[unit])
               : fmt::format("{:.1f}{}", number, kUnits[unit]);
}

std::string durationText(uint64_t milliseconds) {
  if (milliseconds < 10'000)
    return fmt::format("{:.1f}s", static_cast<double>(milliseconds) / 1000);
  const uint64_t seconds = milliseconds / 1000;
  if (seconds < 600) return fmt::format("{}s", seconds);
  if (seconds < 36'000) return fmt::format("{}m{}s", seconds / 60, seconds % 60);
  if (seconds < 172'800) return fmt::format("{}h{}m", seconds / 3600, seconds / 60 % 60);
  return fmt::format("{}d{}h", seconds / 86'400, seconds / 3600 % 24);
}

std::string tableOf(const Json& items, std::span<const Column> all, Width width) {
  std::vector<Column> columns;
  for (const Column& column : all) {
    if (!column.wide || width == Width::kWide) columns.push_back(column);
  }
  std::vector<std::vector<std::string>> rows(1);
  for (const Column& column : columns) rows[0].emplace_back(column.title);
  for (const Json& item : items) {
    std::vector<std::string> row;
    for (const Column& column : columns) {
      const auto value = item.find(std::string(column.field));
      row.push_back(textOf(value == item.end() ? Json() : *value, column.as));
    }
    rows.push_back(std::move(row));
  }
  std::string out;
  for (const auto& row : rows) {
    std::string line;
    for (size_t i = 0; i < row.size(); ++i) {
      size_t longest = 0;
      for (const auto& other : rows) longest = std::max(longest, other[i].size());
      line += i + 1 < row.size() ? fmt::format("{:<{}}  ", row[i], longest) : row[i];
    }
    out += line + "\n";
  }
  return out;
}

std::string namesOf(const Json& items) {
  std::string out;
  for (const Json& item : items) {
    for (const char* field : {"name", "id", "sequence", "index"}) {
      if (!item.contains(field)) continue;
      out += textOf(item[field], As::kText) + "\n";
      break;
    }
  }
  return out;
}

std::string thingOf(const Json& thing) {
  std::string out;
  for (const auto& [name, value] : thing.items()) {
    if (value.is_string() && value.get_ref<const std::string&>().ends_with('\n')) {
      std::istringstream lines(value.get<std::string>());
      for (std::string line; std::getline(lines, line);) {
        out += fmt::format("{:<20} {}\n", name, plain(line));
      }
      continue;
    }
    if (!value.is_array()) {
      out += fmt::format("{:<20} {}\n", name, textOf(value, formOf(name)));
      continue;
    }
    for (const Json& item : value) {
      std::string line;
      for (const auto& [key, part] : item.items()) {
        line += fmt::format("{}{} {}", line.empty() ? "" : ", ", key, textOf(part, formOf(key)));
      }
      out += fmt::format("{:<20} {}\n", name, line);
    }
  }
  return out;
}

std::string statusOf(const Json& status) {
  const auto count = [&](const char* name) { return status.value(name, uint64_t{0}); };
  const uint64_t capacity = count("capacity_bytes");
  const uint64_t used = capacity - std::min(capacity, count("free_bytes"));
  std::string out =
      fmt::format("fabric manager {}   up {}   index {}   {} connections, {} watchers\n",
                  plain(status.value("version", "?")), durationText(count("uptime_ms")),
                  count("index"), count("connections"), count("watchers"));
  out += fmt::format("fabric {}   term {}{}\n\n", plain(status.value("fabric", "?")), count("term"),
                     count("superseded_by") == 0
                         ? ""
                         : fmt::format("   SUPERSEDED by term {}", count("superseded_by")));
  out += fmt::format("memory      {} {} of {} given out, {} free\n", bar(used, capacity),
                     bytesText(used), bytesText(capacity), bytesText(count("free_bytes")));
  out += fmt::format("pools       {}\ndevices     {}{}\nhosts       {}\n", count("pools"),
                     count("devices"),
                     count("unreachable_devices") == 0
                         ? ""
                         : fmt::format("   {} UNREACHABLE", count("unreachable_devices")),
                     count("hosts"));
  out += fmt::format("regions     {}", count("regions"));
  for (const char* state :
       {"reserved", "attached", "draining", "dirty", "scrubbing", "lost", "fenced"}) {
    if (count(state) != 0) out += fmt::format("   {} {}", count(state), state);
  }
  out += fmt::format("\noperations  {} running\n", count("operations"));
  if (count("certificates") == 0) return out;
  const uint64_t left = count("next_expiry_ms");
  out += fmt::format("certificates {}   ", count("certificates"));
  if (count("certificates_expired") != 0)
    out += fmt::format("{} EXPIRED   ", count("certificates_expired"));
  return out + fmt::format("{} {}\n", plain(status.value("next_expiry_of", "")),
                           left == 0 ? "has ended" : "ends in " + durationText(left));
}

std::string healthOf(const Json& health) {
  std::string out = plain(health.value("health", "?")) + "\n";
  for (const Json& check : health.value("checks", Json::array())) {
    out += fmt::format("{:<8} {:<20} {} {}\n", plain(check.value("severity", "")),
                       plain(check.value("code", "")), check.value("count", uint64_t{0}),
                       plain(check.value("text", "")));
  }
  return out;
}

std::string eventLine(const Json& event) {
  const std::string from = plain(event.value("from", ""));
  const std::string to = plain(event.value("to", ""));
  const std::string name = plain(event.value("subject_name", ""));
  const std::string host = plain(event.value("host", ""));
  std::string whose = name.empty() ? "" : " " + name;
  if (!host.empty() && host != name) whose += " of " + host;
  return fmt::format("{}  {}  {} {}{}  {}{}\n", event.value("index", uint64_t{0}),
                     plain(event.value("time", "")), plain(event.value("subject", "")),
                     event.value("id", uint64_t{0}), whose, plain(event.value("what", "")),
                     from.empty() && to.empty() ? "" : fmt::format("  {} -> {}", from, to));
}

}  // namespace tidepool::cli
