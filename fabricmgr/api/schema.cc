// SPDX-License-Identifier: Apache-2.0
// Checking values against schemas, and writing schemas down. Pure.
#include "fabricmgr/api/schema.h"

#include <fmt/format.h>

#include <charconv>

#include "runtime/base/nearest.h"

namespace tidepool::api {
namespace {

using Kind = JsonValue::Kind;
using Checked = tl::expected<void, InputFault>;

tl::unexpected<InputFault> wrong(std::string field, std::string_view why) {
  std::string detail =
      field.empty() ? fmt::format("the body {}", why) : fmt::format("field '{}' {}", field, why);
  return tl::unexpected(InputFault{std::move(field), std::move(detail)});
}

Kind kindOf(Type type) {
  switch (type) {
    case Type::kText:
      return Kind::kString;
    case Type::kCount:
      return Kind::kNumber;
    case Type::kFlag:
      return Kind::kBoolean;
    case Type::kObject:
    case Type::kLabels:
    case Type::kLabelChange:
      return Kind::kObject;
    default:
      return Kind::kArray;
  }
}

bool isAmong(std::string_view text, std::string_view choices) {
  for (;;) {
    const size_t bar = choices.find('|');
    if (text == choices.substr(0, bar)) return true;
    if (bar == std::string_view::npos) return false;
    choices.remove_prefix(bar + 1);
  }
}

Checked checkAt(const JsonValue& value, const Schema& schema, const std::string& path);

Checked checkField(const JsonValue& value, const Field& field, const std::string& path) {
  if (value.kind != kindOf(field.type)) {
    return wrong(path, fmt::format("is {}: it has to be {}", nameOf(value.kind),
                                   nameOf(kindOf(field.type))));
  }
  if (!field.choices.empty() && !isAmong(value.string, field.choices)) {
    return wrong(path, fmt::format("is '{}': it has to be one of {}", value.string.substr(0, 80),
                                   field.choices));
  }
  if (value.number > field.most) {
    return wrong(path, fmt::format("is {}: it has to be at most {}", value.number, field.most));
  }
  if (field.type == Type::kCount && value.number < field.least) {
    return wrong(path, fmt::format("is {}: it has to be at least {}", value.number, field.least));
  }
  if (field.type == Type::kObject) return checkAt(value, *field.of, path);
  for (const auto& [name, member] : value.members) {  // of labels
    if (member.kind == Kind::kString || member.kind == Kind::kNull) continue;
    return wrong(fmt::format("{}.{}", path, name.substr(0, 80)),
                 fmt::format("is {}: it has to be {}, or null to take it away", nameOf(member.kind),
                             nameOf(Kind::kString)));
  }
  for (size_t i = 0; i < value.items.size(); ++i) {
    const std::string at = fmt::format("{}[{}]", path, i);
    const Kind expected = field.type == Type::kTexts ? Kind::kString : Kind::kObject;
    if (value.items[i].kind != expected) {
      return wrong(
          at, fmt::format("is {}: it has to be {}", nameOf(value.items[i].kind), nameOf(expected)));
    }
    if (field.type != Type::kObjects) continue;
    if (auto checked = checkAt(value.items[i], *field.of, at); !checked) return checked;
  }
  return {};
}

Checked checkAt(const JsonValue& value, const Schema& schema, const std::string& path) {
  const auto at = [&](std::string_view name) {
    return path.empty() ? std::string(name) : fmt::format("{}.{}", path, name);
  };
  if (value.kind != Kind::kObject) {
    return wrong(path, fmt::format("is {}: it has to be an object", nameOf(value.kind)));
  }
  for (const auto& [name, member] : value.members) {
    const Field* known = nullptr;
    std::vector<std::string_view> names;
    for (const Field& field : schema.fields) {
      names.push_back(field.name);
      if (field.name == name) known = &field;
    }
    if (known == nullptr) {
      return wrong(at(name.substr(0, 80)), names.empty()
                                               ? std::string("is unknown here: nothing is expected")
                                               : fmt::format("is unknown here: did you mean '{}'?",
                                                             nearestWord(name, names)));
    }
    if (auto checked = checkField(member, *known, at(name)); !checked) return checked;
  }
  for (const Field& field : schema.fields) {
    if (field.need == Need::kMust && value.find(field.name) == nullptr) {
      return wrong(at(field.name), fmt::format("is missing: {}", field.about));
    }
  }
  return {};
}

tl::expected<JsonValue, InputFault> readParameter(const std::string& text, const Field& field) {
  JsonValue value;
  value.kind = kindOf(field.type);
  if (field.type == Type::kText) {
    value.string = text;
    return value;
  }
  if (field.type == Type::kFlag && (text == "true" || text == "false")) {
    value.boolean = text == "true";
    return value;
  }
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value.number);
  if (field.type == Type::kCount && !text.empty() && end == text.data() + text.size() &&
      error == std::errc()) {
    return value;
  }
  return wrong(
      std::string(field.name),
      fmt::format("is '{}': it has to be {}", text.substr(0, 80),
                  field.type == Type::kFlag ? "true or false" : "a whole number from 0 to 2^64-1"));
}

}  // namespace

Checked check(const JsonValue& value, const Schema& schema) { return checkAt(value, schema, ""); }

tl::expected<JsonValue, InputFault> readQuery(const Pairs& query, const Schema& schema) {
  JsonValue object;
  object.kind = Kind::kObject;
  for (const auto& [name, text] : query) {
    JsonValue value;
    value.kind = Kind::kString;  // unknown ones are found by the check below
    for (const Field& field : schema.fields) {
      if (field.name != name) continue;
      auto read = readParameter(text, field);
      if (!read) return tl::unexpected(read.error());
      value = std::move(*read);
    }
    object.members.push_back({name, std::move(value)});
  }
  if (auto checked = check(object, schema); !checked) return tl::unexpected(checked.error());
  return object;
}

void writeFieldType(JsonWriter& out, const Field& field) {
  const auto reference = [&] {
    out.field("$ref", fmt::format("#/components/schemas/{}", field.of->name));
  };
  switch (field.type) {
    case Type::kText:
      out.field("type", "string");
      break;
    case Type::kCount:
      out.field("type", "integer").field("minimum", field.least);
      if (field.most != UINT64_MAX) out.field("maximum", field.most);
      break;
    case Type::kFlag:
      out.field("type", "boolean");
      break;
    case Type::kObject:
      reference();
      break;
    case Type::kTexts:
      out.field("type", "array").beginObject("items").field("type", "string").endObject();
      break;
    case Type::kLabels:
      out.field("type", "object").beginObject("additionalProperties").field("type", "string");
      out.endObject();
      break;
    case Type::kLabelChange:
      out.field("type", "object").beginObject("additionalProperties").beginList("type");
      out.value("string").value("null").endList().endObject();
      break;
    case Type::kObjects:
      out.field("type", "array").beginObject("items");
      reference();
      out.endObject();
  }
  if (field.choices.empty()) return;
  out.beginList("enum");
  for (std::string_view rest = field.choices; !rest.empty();) {
    const std::string_view one = rest.substr(0, rest.find('|'));
    out.value(one);
    rest.remove_prefix(std::min(rest.size(), one.size() + 1));
  }
  out.endList();
}

void writeSchema(JsonWriter& out, const Schema& schema, Others others) {
  out.field("type", "object").field("description", schema.about).beginObject("properties");
  for (const Field& field : schema.fields) {
    out.beginObject(field.name);
    writeFieldType(out, field);
    out.field("description", field.about).endObject();
  }
  out.endObject().beginList("required");
  for (const Field& field : schema.fields) {
    if (field.need == Need::kMust) out.value(field.name);
  }
  out.endList().field("additionalProperties", others == Others::kPossible);
}

}  // namespace tidepool::api
