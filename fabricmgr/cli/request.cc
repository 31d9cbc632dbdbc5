// SPDX-License-Identifier: Apache-2.0
// Building requests: fields into the body, its constraints, or the query.
#include "fabricmgr/cli/request.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <fstream>
#include <nlohmann/json.hpp>

#include "fabricmgr/client/http_client.h"
#include "fabricmgr/size_option.h"

namespace tidepool::cli {
namespace {

using Json = nlohmann::ordered_json;

uint64_t numberOption(const std::string& flag, const std::string& text) {
  uint64_t number = 0;
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, number);
  if (text.empty() || stop != end || error != std::errc()) {
    throw UsageError(fmt::format("{}: '{}' is not a whole number from 0 on", flag, text));
  }
  return number;
}

Json fileOption(const std::string& flag, const std::string& path) {
  std::ifstream file(path);
  Json value = Json::parse(file, nullptr, false);
  if (!value.is_object()) {
    throw UsageError(fmt::format("{}: '{}' is not a file with a JSON object", flag, path));
  }
  return value;
}

/// "rack=r7" sets, "rack-" takes away.
Json labelsOption(const std::string& flag, const std::vector<std::string>& texts) {
  Json labels = Json::object();
  for (const std::string& text : texts) {
    const size_t equal = text.find('=');
    if (equal == std::string::npos && (text.size() < 2 || !text.ends_with('-'))) {
      throw UsageError(fmt::format("{}: '{}' is neither KEY=VALUE nor KEY-", flag, text));
    }
    const std::string key = text.substr(0, std::min(equal, text.size() - 1));
    if (labels.contains(key)) throw UsageError(fmt::format("{}: '{}' twice", flag, key));
    labels[key] = equal == std::string::npos ? Json() : Json(text.substr(equal + 1));
  }
  return labels;
}

Json valueOf(const Option& option, const std::vector<std::string>& texts) {
  const std::string flag(option.flag);
  const std::string& text = texts.back();
  switch (option.kind) {
    case Kind::kText:
      return text;
    case Kind::kSize:
      if (text.ends_with('%')) {
        throw UsageError(fmt::format(
            "{}: '{}' would be a share of this machine's memory: give a size, such as 64G", flag,
            text));
      }
      return sizeOption(flag, text);
    case Kind::kCount:
      return numberOption(flag, text);
    case Kind::kDuration:
      return durationOption(flag, text);
    case Kind::kFlag:
      return true;
    case Kind::kTexts:
      return texts;
    case Kind::kJsonFile:
      return fileOption(flag, text);
    case Kind::kLabels:
      return labelsOption(flag, texts);
  }
  return nullptr;
}

/// Lists go on after a number.
std::string numberBefore(const Verb& verb, const std::string& operand) {
  const std::string name(verb.operand);
  const uint64_t number = numberOption(name, operand);
  if (number == 0) throw UsageError(name + ": they count from 1");
  return std::to_string(number - 1);
}

/// One thing by its name, or many in one way.
void checkWhich(const Verb& verb, const Given& given) {
  if (verb.many_path.empty()) return;
  int ways = given.operand.empty() ? 0 : 1;
  for (const char* flag : {"--all", "--selector"}) {
    const auto found = given.options.find(flag);
    if (found == given.options.end() || found->second.empty()) continue;
    ++ways;
    // A variable that happens to be empty is not to mean all of them.
    if (found->second.back().empty()) throw UsageError("--selector: it is empty; all are --all");
  }
  if (ways != 1) {
    throw UsageError(fmt::format("say which: {}, --all or --selector, one of them", verb.operand));
  }
}

}  // namespace

uint64_t durationOption(const std::string& flag, const std::string& text) {
  static const std::map<std::string, uint64_t> kUnits = {
      {"", 1000}, {"ms", 1}, {"s", 1000}, {"m", 60'000}, {"h", 3'600'000}, {"d", 86'400'000}};
  uint64_t number = 0;
  const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  const auto unit = kUnits.find(std::string(stop, text.data() + text.size()));
  if (stop == text.data() || error != std::errc() || unit == kUnits.end() ||
      number > UINT64_MAX / unit->second) {
    throw UsageError(
        fmt::format("{}: '{}' is not a length of time, such as 90s, 10m or 2h", flag, text));
  }
  return number * unit->second;
}

BuiltRequest buildRequest(const Verb& verb, const Given& given) {
  checkWhich(verb, given);
  BuiltRequest request;
  request.path = isOfMany(verb, given) ? verb.many_path : verb.path;
  Json body = Json::object();
  std::string query;
  const auto parameter = [&](std::string_view name, const std::string& value) {
    query +=
        fmt::format("{}{}={}", query.empty() ? "?" : "&", name, client::HttpClient::escape(value));
  };
  if (const size_t place = request.path.find("{}"); place != std::string::npos) {
    request.path.replace(place, 2,
                         verb.show == Show::kAt ? numberBefore(verb, given.operand)
                                                : client::HttpClient::escape(given.operand));
  } else if (!verb.operand.empty() && !isOfMany(verb, given)) {
    body["name"] = given.operand;
  }
  for (const Option& option : verb.options) {
    const auto found = given.options.find(std::string(option.flag));
    if (found == given.options.end() || found->second.empty()) continue;
    const Json value = valueOf(option, found->second);
    const std::string field(option.field);
    if (option.place == Place::kQuery) {
      parameter(field, value.is_string() ? value.get<std::string>() : value.dump());
    } else if (option.place == Place::kConstraints) {
      body["constraints"][field] = value;
    } else {
      body[field] = value;
    }
  }
  if (given.dry_run) parameter("dry_run", "true");
  request.path += query;
  if (verb.method == "POST" || verb.method == "PATCH") request.body = body.dump();
  return request;
}

}  // namespace tidepool::cli
