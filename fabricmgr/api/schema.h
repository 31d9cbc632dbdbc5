// SPDX-License-Identifier: Apache-2.0
// What the objects of the interface consist of: one table for the check of what comes in, for the
// OpenAPI document, and for the test that holds answers against it. Constants; thread-safe.
#pragma once

#include <span>
#include <string_view>

#include "fabricmgr/api/http_message.h"
#include "fabricmgr/api/json_value.h"
#include "fabricmgr/api/json_writer.h"

namespace tidepool::api {

/// kLabels: an object of texts; kLabelChange: of texts, or null for those to remove.
enum class Type : uint8_t {
  kText,
  kCount,
  kFlag,
  kTexts,
  kObject,
  kObjects,
  kLabels,
  kLabelChange
};
enum class Need : uint8_t { kMust, kMay };

struct Schema;

struct Field {
  std::string_view name;
  Type type = Type::kText;
  Need need = Need::kMay;
  std::string_view about;         // with the unit, and what absence means
  const Schema* of = nullptr;     // of kObject, kObjects
  std::string_view choices = {};  // of kText: "a|b|c"; empty: anything
  uint64_t most = UINT64_MAX;     // of kCount
  uint64_t least = 0;             // of kCount
};

struct Schema {
  std::string_view name;
  std::string_view about;
  std::span<const Field> fields;
};

/// Nothing, or the first thing that is wrong: an unknown field, a wrong type, a missing one.
tl::expected<void, InputFault> check(const JsonValue& value, const Schema& schema);
/// Parameters are texts; numbers and flags among them are read as such.
tl::expected<JsonValue, InputFault> readQuery(const Pairs& query, const Schema& schema);
/// Whether fields beyond those of the schema are refused, or may come to be there.
enum class Others : uint8_t { kRefused, kPossible };
/// As JSON Schema (2020-12), as OpenAPI 3.1 has it.
void writeSchema(JsonWriter& out, const Schema& schema, Others others);
void writeFieldType(JsonWriter& out, const Field& field);

}  // namespace tidepool::api
