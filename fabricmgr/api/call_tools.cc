// SPDX-License-Identifier: Apache-2.0
// Reading headers and bodies into the manager's terms.
#include "fabricmgr/api/call_tools.h"

#include <algorithm>
#include <charconv>
#include <functional>

namespace tidepool::api {
namespace {

constexpr size_t kLongestKey = 128;
constexpr uint32_t kUsualLimit = 100;

/// The `modified` of an ETag, or of what is written by hand, without the rest of one.
bool parseTag(std::string_view text, uint64_t* modified) {
  if (text.size() <= 2 || text.front() != '"' || text.back() != '"') return false;
  text = text.substr(1, text.size() - 2);
  const size_t dash = text.find('-');
  const std::string_view rest = dash == std::string_view::npos ? "0" : text.substr(dash + 1);
  const bool hex = !rest.empty() && rest.find_first_not_of("0123456789abcdef") == rest.npos;
  return hex && parseNumber(text.substr(0, dash), modified) && *modified != 0;
}

}  // namespace

bool parseNumber(std::string_view text, uint64_t* number) {
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, *number);
  return !text.empty() && stop == end && error == std::errc();
}

void addIndex(const fabric::Manager& manager, Pairs* headers) {
  headers->emplace_back("Tidepool-Index", std::to_string(manager.index().value()));
  const auto age = manager.age();
  if (!age) return;
  const fabric::Leader leader = manager.leader();
  headers->emplace_back("Age", std::to_string(age->value() / kSecond));
  headers->emplace_back("Tidepool-Fabric", leader.fabric);
  headers->emplace_back("Tidepool-Term", std::to_string(leader.term.value()));
}

Result<fabric::Caller> callerOf(const Call& call) {
  fabric::Caller caller;
  caller.actor = call.principal.actor();
  caller.mode = call.query.flag("dry_run") ? fabric::Mode::kDryRun : fabric::Mode::kDo;
  const Request& request = call.exchange->request;
  if (const std::string* key = request.header("idempotency-key")) {
    const bool plain =
        std::all_of(key->begin(), key->end(), [](char c) { return c > 32 && c < 127; });
    if (key->empty() || key->size() > kLongestKey || !plain) {
      return fail(ErrorCode::kInvalidArgument,
                  "Idempotency-Key has to be 1 to %zu printable characters without blanks",
                  kLongestKey);
    }
    caller.key = *key;
  }
  if (const std::string* match = request.header("if-match"); match != nullptr && *match != "*") {
    uint64_t number = 0;
    if (!parseTag(*match, &number)) {
      return fail(ErrorCode::kInvalidArgument,
                  "If-Match has to be the ETag of the thing, such as \"42\", quotes included");
    }
    caller.expected = fabric::Index(number);
  }
  return caller;
}

std::string etagOf(std::string body, fabric::Index modified) {
  // No text has these, as the quotes in texts have a backslash before them. That a time is over is
  // a difference.
  for (const std::string_view field : {"\"lease_left_ms\":", "\"drain_left_ms\":"}) {
    const size_t name = body.find(field);
    if (name == std::string::npos) continue;
    const size_t number = name + field.size();
    if (body[number] == '0') continue;
    body.erase(number, body.find_first_not_of("0123456789", number) - number);
  }
  return fmt::format("\"{}-{:016x}\"", modified.value(), std::hash<std::string>()(body));
}

bool isKnown(const Call& call, const std::string& etag) {
  const std::string* given = call.exchange->request.header("if-none-match");
  if (given == nullptr) return false;
  return *given == "*" || given->find(etag) != std::string::npos;
}

Status checkMine(const Call& call, const std::string& host) {
  const Principal& principal = call.principal;
  if (principal.role != Role::kHost || principal.name == host) return {};
  return fail(ErrorCode::kPermission, "the certificate of host '%s' does not speak for %s%s%s",
              principal.name.c_str(), host.empty() ? "others" : "host '", host.c_str(),
              host.empty() ? "" : "'");
}

Result<uint64_t> numberOf(const Call& call, const char* what) {
  uint64_t number = 0;
  if (!parseNumber(call.path.front(), &number)) {
    return fail(ErrorCode::kInvalidArgument, "'%.40s' is not the number of %s",
                call.path.front().c_str(), what);
  }
  return number;
}

fabric::PageRequest pageOf(const Call& call) {
  fabric::PageRequest page;
  page.cursor = call.query.count("cursor");
  page.limit = call.query.find("limit") != nullptr
                   ? static_cast<uint32_t>(call.query.count("limit"))
                   : kUsualLimit;
  return page;
}

Result<fabric::Selector> selectorOf(const Call& call) {
  return fabric::Selector::parse(call.query.text("selector"));
}

fabric::LabelChange labelChangeOf(const Call& call) {
  fabric::LabelChange change;
  for (const auto& [key, value] : call.body.find("labels")->members) {
    const bool goes = value.kind == JsonValue::Kind::kNull;
    change[key] = goes ? std::nullopt : std::optional(value.string);
  }
  return change;
}

fabric::Constraints constraintsOf(const JsonValue& body) {
  fabric::Constraints constraints;
  const JsonValue* given = body.find("constraints");
  if (given == nullptr) return constraints;
  if (given->flag("contiguous")) constraints.contiguity = fabric::Contiguity::kContiguous;
  constraints.max_devices = static_cast<uint32_t>(given->count("max_devices"));
  if (given->text("shape") == "spread") constraints.shape = fabric::Shape::kSpread;
  for (const JsonValue& domain : given->list("avoid_domains")) {
    constraints.avoid_domains.push_back(domain.string);
  }
  return constraints;
}

Outcome changed(const Call& call, const Result<fabric::Answer>& answer, const std::string& made) {
  Outcome outcome = one(call, answer);
  if (!outcome) return outcome;
  if (answer->operation.value() != 0) {
    (*outcome)->status = 202;
    (*outcome)->headers.emplace_back("Location",
                                     fmt::format("/v1/operations/{}", answer->operation.value()));
  } else if (!made.empty() && answer->index.value() != 0) {
    (*outcome)->status = 201;
    (*outcome)->headers.emplace_back("Location", made);
  }
  return outcome;
}

}  // namespace tidepool::api
