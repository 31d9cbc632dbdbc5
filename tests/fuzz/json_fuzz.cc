// SPDX-License-Identifier: Apache-2.0
// JSON from outside, held against every schema of the interface. What is taken can be written, and
// read again as the same.
#include <algorithm>

#include "fabricmgr/api/json_value.h"
#include "fabricmgr/api/json_writer.h"
#include "fabricmgr/api/schemas.h"
#include "tests/fuzz/fuzz.h"

namespace tidepool::fuzz {
namespace {

using api::JsonValue;
using Kind = JsonValue::Kind;

bool same(const JsonValue& left, const JsonValue& right) {
  return left.kind == right.kind && left.boolean == right.boolean && left.number == right.number &&
         left.string == right.string &&
         std::equal(left.items.begin(), left.items.end(), right.items.begin(), right.items.end(),
                    same) &&
         std::equal(left.members.begin(), left.members.end(), right.members.begin(),
                    right.members.end(), [](const auto& one, const auto& other) {
                      return one.name == other.name && same(one.value, other.value);
                    });
}

/// False for what the writer has no call for: lists in lists, null.
bool put(api::JsonWriter& out, const JsonValue& value, const std::string* name) {
  if (value.kind == Kind::kNull || (value.kind == Kind::kArray && name == nullptr)) return false;
  if (value.kind == Kind::kArray) {
    out.beginList(*name);
    for (const JsonValue& item : value.items) {
      if (!put(out, item, nullptr)) return false;
    }
    out.endList();
    return true;
  }
  if (name != nullptr) out.key(*name);
  if (value.kind == Kind::kBoolean) return out.value(value.boolean), true;
  if (value.kind == Kind::kNumber) return out.value(value.number), true;
  if (value.kind == Kind::kString) return out.value(value.string), true;
  if (name != nullptr) return false;  // beginObject(name) writes the name itself
  out.beginObject();
  for (const auto& [key, member] : value.members) {
    if (!put(out, member, &key)) return false;
  }
  out.endObject();
  return true;
}

}  // namespace

std::vector<std::string> seeds() {
  return {
      R"({"name":"a","class":"cxl"})",
      R"({"host":"n\u00e41","size_bytes":18446744073709551615,"force":true,"wait":false})",
      R"({"host":"a","size_bytes":2097152,"constraints":{"max_devices":2,"avoid_domains":["x"]}})",
      R"({"regions":[{"region":1,"epoch":2,"bytes":3},{}],"left_bytes":0})",
      "[[[[[[[[null]]]]]]]]",
      "\"\\ud83d\\ude00 \xc3\xa4\"",
  };
}

void tryInput(std::string_view input) {
  const auto value = api::parseJson(input);
  if (!value) {
    TP_CHECK(!value.error().detail.empty());
    return;
  }
  for (const api::Schema* schema : api::allSchemas()) {
    const auto good = api::check(*value, *schema);
    if (!good) TP_CHECK(!good.error().detail.empty());
  }
  api::JsonWriter out;
  if (!put(out, *value, nullptr)) return;
  const auto again = api::parseJson(out.text());
  TP_CHECK(again.has_value() && same(*value, *again));
}

}  // namespace tidepool::fuzz
