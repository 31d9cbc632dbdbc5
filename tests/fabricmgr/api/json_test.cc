// SPDX-License-Identifier: Apache-2.0
// Strict JSON: every kind of bad input is refused and named; what is written can be read again; no
// text makes the reader do anything but answer.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <string_view>

#include "fabricmgr/api/json_value.h"
#include "fabricmgr/api/json_writer.h"
#include "fabricmgr/api/schema.h"
#include "tests/fabricmgr/api/mangle.h"

namespace tidepool::api {
namespace {

constexpr Field kInnerFields[] = {{"max", Type::kCount, Need::kMay, "at most"}};
constexpr Schema kInner = {"Inner", "", kInnerFields};
constexpr Field kOuterFields[] = {
    {"host", Type::kText, Need::kMust, "the host's name"},
    {"size_bytes", Type::kCount, Need::kMust, "bytes"},
    {"force", Type::kFlag, Need::kMay, "do it all the same"},
    {"class", Type::kText, Need::kMay, "kind", nullptr, "cxl|remote|any"},
    {"avoid", Type::kTexts, Need::kMay, "domains"},
    {"inner", Type::kObject, Need::kMay, "more", &kInner},
    {"parts", Type::kObjects, Need::kMay, "many", &kInner}};
constexpr Schema kOuter = {"Outer", "", kOuterFields};

/// What is wrong with `text`; empty if nothing is.
std::string faultOf(const std::string& text) {
  const auto value = parseJson(text);
  if (!value) return value.error().detail;
  const auto checked = check(*value, kOuter);
  return checked ? "" : checked.error().detail;
}

TEST(StrictJson, TakesWhatTheSchemaSays) {
  const std::string text = R"({"host":"n\u00e41","size_bytes":18446744073709551615,"force":true,
    "class":"cxl","avoid":["a","b"],"inner":{"max":3},"parts":[{"max":1},{}]})";
  EXPECT_EQ(faultOf(text), "");
  const auto value = parseJson(text);
  EXPECT_EQ(value->text("host"), "nä1");
  EXPECT_EQ(value->count("size_bytes"), UINT64_MAX);
  EXPECT_TRUE(value->flag("force"));
  EXPECT_EQ(value->list("avoid").size(), 2u);
  EXPECT_EQ(value->find("inner")->count("max"), 3u);
  EXPECT_EQ(value->text("absent"), "");
  EXPECT_EQ(value->count("absent"), 0u);
}

TEST(StrictJson, RefusesByName) {
  std::string wide = "{";
  for (int i = 0; i < 100; ++i) wide += (i ? ",\"f" : "\"f") + std::to_string(i) + "\":1";
  const std::pair<std::string, const char*> cases[] = {
      {"", "not JSON"},
      {"{", "not JSON"},
      {"[]", "the body is a list"},
      {"null", "the body is null"},
      {"{}", "field 'host' is missing: the host's name"},
      {R"({"host":"a"})", "field 'size_bytes' is missing"},
      {R"({"host":"a","host":"b","size_bytes":1})", "field 'host' is given twice"},
      {R"({"host":"a","size_bytes":1,"inner":{"max":1,"max":1}})",
       "field 'inner.max' is given twice"},
      {R"({"host":"a","size_byte":1})", "'size_byte' is unknown here: did you mean 'size_bytes'?"},
      {R"({"host":"a","size_bytes":1,"inner":{"mx":1}})", "field 'inner.mx' is unknown"},
      {R"({"host":1,"size_bytes":1})", "field 'host' is a number: it has to be a text"},
      {R"({"host":"a","size_bytes":"1"})", "field 'size_bytes' is a text: it has to be a number"},
      {R"({"host":"a","size_bytes":null})", "field 'size_bytes' is null"},
      {R"({"host":"a","size_bytes":-1})", "field 'size_bytes' is -1: it has to be a whole number"},
      {R"({"host":"a","size_bytes":1.0})", "field 'size_bytes' is 1.0"},
      {R"({"host":"a","size_bytes":1e3})", "field 'size_bytes' is 1e3"},
      {R"({"host":"a","size_bytes":18446744073709551616})",
       "is 18446744073709551616: it has to be"},
      {R"({"host":"a","size_bytes":01})", "not JSON"},
      {R"({"host":"a","size_bytes":NaN})", "not JSON"},
      {R"({"host":"a","size_bytes":1,"class":"dram"})",
       "is 'dram': it has to be one of cxl|remote"},
      {R"({"host":"a","size_bytes":1,"avoid":[1]})", "field 'avoid[0]' is a number"},
      {R"({"host":"a","size_bytes":1,"avoid":{}})", "field 'avoid' is an object"},
      {R"({"host":"a","size_bytes":1,"parts":[{},{"x":1}]})", "field 'parts[1].x' is unknown"},
      {R"({"host":"a\u0000b","size_bytes":1})", "field 'host' has a control character"},
      {"{\"host\":\"\xc3\x28\",\"size_bytes\":1}", "ill-formed UTF-8"},
      {"{\"host\":\"\xed\xa0\x80\",\"size_bytes\":1}", "ill-formed UTF-8"},
      {R"({"host":"\ud800","size_bytes":1})", "not JSON"},
      {R"({"host":"a","size_bytes":1} x)", "not JSON"},
      {R"({"host":"a","size_bytes":1,})", "not JSON"},
      {"{\"host\":\"a\" /* no */}", "not JSON"},
      {std::string(100'000, '['), "nested deeper than 8"},
      {wide + "}", "one field too many"},
  };
  for (const auto& [text, says] : cases) {
    const std::string fault = faultOf(text);
    EXPECT_NE(fault.find(says), std::string::npos) << text.substr(0, 100) << "\n" << fault;
    EXPECT_EQ(fault.find("json.exception"), std::string::npos) << fault;
  }
}

TEST(StrictJson, ParametersAreHeldToTheSameTable) {
  const auto fault = [](Pairs query) {
    const auto value = readQuery(query, kOuter);
    return value ? std::string() : value.error().detail;
  };
  EXPECT_EQ(fault({{"host", "a"}, {"size_bytes", "12"}, {"force", "true"}}), "");
  EXPECT_NE(fault({{"host", "a"}, {"size_bytes", "-1"}}).find("'size_bytes' is '-1'"),
            std::string::npos);
  EXPECT_NE(fault({{"host", "a"}, {"size_bytes", "1k"}}).find("'1k'"), std::string::npos);
  EXPECT_NE(fault({{"host", "a"}, {"size_bytes", "1"}, {"force", "yes"}}).find("true or false"),
            std::string::npos);
  EXPECT_NE(fault({{"hots", "a"}}).find("did you mean 'host'"), std::string::npos);
}

TEST(StrictJson, AgreesWithAnotherReaderOnRandomTexts) {
  std::mt19937 random(11);
  const std::string good = R"({"host":"a","size_bytes":12,"avoid":["x","y"],"inner":{"max":7}})";
  for (int round = 0; round < 100'000; ++round) {
    const std::string text = mangle(good, random);
    const auto value = parseJson(text);
    // Whatever we take is JSON; we refuse more than the grammar does, never less.
    if (value) {
      EXPECT_TRUE(nlohmann::json::accept(text)) << text;
    } else {
      EXPECT_FALSE(value.error().detail.empty());
    }
  }
}

TEST(JsonWriter, WritesWhatAReaderReads) {
  JsonWriter out;
  out.beginObject().field("a", "quote \" back \\ line \n bell \x07 ä").field("n", uint64_t{7});
  out.field("t", true).beginList("l").value("x").value(2u).endList();
  out.beginList("o").beginObject().field("k", "v").endObject().beginObject().endObject().endList();
  out.beginObject("e").endObject().endObject();
  const auto read = nlohmann::json::parse(out.text());
  EXPECT_EQ(read["a"], "quote \" back \\ line \n bell \x07 ä");
  EXPECT_EQ(read["n"], 7);
  EXPECT_EQ(read["t"], true);
  EXPECT_EQ(read["l"].size(), 2u);
  EXPECT_EQ(read["o"][0]["k"], "v");
  EXPECT_TRUE(read["e"].empty());
}

/// Paths may have any bytes in them, and texts of errors may be cut anywhere.
TEST(JsonWriter, WhateverItIsGivenItWritesJson) {
  constexpr std::string_view kBytes =
      "a\xc3\xa4\xe0\xa0\xed\x9f\xf0\x90\xf4\x8f\xff\xc0\x80\xbf\xe2\"";
  std::mt19937 random(7);
  for (int round = 0; round < 20'000; ++round) {
    std::string text;
    for (uint64_t left = random() % 8; left > 0; --left) text += kBytes[random() % kBytes.size()];
    JsonWriter out;
    out.beginObject().field("a", text).endObject();
    const auto read = nlohmann::json::parse(out.text(), nullptr, false);
    ASSERT_TRUE(read.is_object()) << out.text();
    bool good = true;
    try {
      (void)nlohmann::json(text).dump();
    } catch (const nlohmann::json::exception&) {
      good = false;  // not UTF-8
    }
    EXPECT_EQ(read["a"] == text, good) << out.text();
  }
}

}  // namespace
}  // namespace tidepool::api
