// SPDX-License-Identifier: Apache-2.0
// Sizes, durations and far tier specs: accepted forms, hostile text, and error lines that say what
// to write instead.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <string>

#include "runtime/options.h"
#include "tests/tier/far_specs.h"

namespace tidepool {
namespace {

using testing::HasSubstr;

TEST(ParseSize, AcceptsTheDocumentedForms) {
  const std::pair<const char*, uint64_t> cases[] = {{"1", 1},
                                                    {"4096", 4096},
                                                    {"64K", 64 * kKiB},
                                                    {"256M", 256 * kMiB},
                                                    {"2G", 2 * kGiB},
                                                    {"1T", kTiB},
                                                    {"1.5G", 3 * kGiB / 2},
                                                    {"2g", 2 * kGiB},
                                                    {"2GB", 2 * kGiB},
                                                    {"2GiB", 2 * kGiB},
                                                    {"0.5K", 512},
                                                    {"3P", 3072 * kTiB},
                                                    {"7B", 7},
                                                    {"1.000000001G", kGiB + 1}};
  for (const auto& [text, bytes] : cases) {
    const auto size = parseSize(text);
    ASSERT_TRUE(size) << text << ": " << size.error().text();
    EXPECT_EQ(size->value(), bytes) << text;
  }
}

TEST(ParseSize, RejectsEverythingElseNamingTheText) {
  for (const char* text : {"",
                           "G",
                           "-1",
                           "+1",
                           " 1",
                           "1 ",
                           "1 G",
                           "1..5G",
                           ".5G",
                           "1.G",
                           "0x10",
                           "1e9",
                           "12Q",
                           "2GiBs",
                           "25%",
                           "1,5G",
                           "nan",
                           "inf",
                           "10000000000000000000000",
                           "1.0000000001G",
                           "2Gb/s"}) {
    const auto size = parseSize(text);
    ASSERT_FALSE(size) << text;
    EXPECT_EQ(size.error().code(), ErrorCode::kInvalidArgument) << text;
    EXPECT_THAT(size.error().text(), HasSubstr(std::string("'") + text + "'"));
    EXPECT_THAT(size.error().text(), HasSubstr("256M, 2G"));
  }
}

TEST(ParseSize, RejectsZeroAndOverflow) {
  for (const char* text : {"0", "0G", "0.0M", "0.0000001K"}) {
    const auto size = parseSize(text);
    ASSERT_FALSE(size) << text;
    EXPECT_THAT(size.error().text(), HasSubstr("more than zero"));
  }
  for (const char* text : {"8192P", "99999999999999T", "999999999999999999P"}) {
    const auto size = parseSize(text);
    ASSERT_FALSE(size) << text;
    EXPECT_THAT(size.error().text(), HasSubstr("too large"));
  }
  EXPECT_TRUE(parseSize("8191P"));
}

TEST(ParseSize, TakesSharesOfAWhole) {
  EXPECT_EQ(parseSize("25%", Bytes(400))->value(), 100u);
  EXPECT_EQ(parseSize("12.5%", Bytes(kGiB))->value(), kGiB / 8);
  EXPECT_EQ(parseSize("100%", Bytes(UINT64_C(1) << 62))->value(), UINT64_C(1) << 62);
  EXPECT_FALSE(parseSize("101%", Bytes(400)));
  EXPECT_FALSE(parseSize("100.0001%", Bytes(400)));
  EXPECT_FALSE(parseSize("0%", Bytes(400)));
  EXPECT_FALSE(parseSize("%", Bytes(400)));
}

TEST(ParseSize, ReadsAnyByteCountExactly) {
  EXPECT_TRUE(rc::check("plain bytes", [](uint64_t value) {
    const uint64_t bytes = value % 999'999'999'999'999'999u + 1;
    RC_ASSERT(parseSize(std::to_string(bytes))->value() == bytes);
  }));
  EXPECT_TRUE(rc::check("arbitrary text never crashes, and is never zero", [](std::string text) {
    const auto size = parseSize(text, Bytes(kGiB));
    RC_ASSERT(!size || size->value() > 0);
    parseFarSpec(text);
    parseDuration(text);
  }));
}

TEST(ParseDuration, AcceptsUnitsAndRejectsTheRest) {
  EXPECT_EQ(parseDuration("500ms")->value(), 500'000'000u);
  EXPECT_EQ(parseDuration("5s")->value(), 5'000'000'000u);
  EXPECT_EQ(parseDuration("5")->value(), 5'000'000'000u);
  EXPECT_EQ(parseDuration("0.25s")->value(), 250'000'000u);
  EXPECT_EQ(parseDuration("2m")->value(), 120'000'000'000u);
  EXPECT_EQ(parseDuration("7us")->value(), 7'000u);
  EXPECT_EQ(parseDuration("9ns")->value(), 9u);
  for (const char* text : {"", "0", "0s", "-1s", "5 s", "61m", "5h", "s", "99999999999999999m"}) {
    const auto time = parseDuration(text);
    ASSERT_FALSE(time) << text;
    EXPECT_THAT(time.error().text(), HasSubstr("500ms, 5s"));
  }
}

TEST(ParseFarSpec, ReadsWhatEachKindStatesAndPrintsItSo) {
  for (const FarKind* kind : farKinds()) {
    for (const bool all : {false, true}) {
      const std::string text = specOf(kind->form, plainValue, [&] { return all; });
      const auto spec = parseFarSpec(text);
      ASSERT_TRUE(spec) << text << ": " << spec.error().text();
      EXPECT_EQ(spec->kind, kind) << text;
      char printed[192];
      ASSERT_TRUE(renderFarSpec(*spec, printed)) << text;
      const auto again = parseFarSpec(printed);
      ASSERT_TRUE(again) << printed;
      char as_before[192];
      ASSERT_TRUE(renderFarSpec(*again, as_before));
      EXPECT_STREQ(as_before, printed);
      EXPECT_EQ(again->size, spec->size);
    }
  }
}

TEST(ParseFarSpec, RefusesAnyKindThatIsCutOrSaysTooMuch) {
  for (const FarKind* kind : farKinds()) {
    const std::string text = specOf(kind->form, plainValue, [] { return true; });
    EXPECT_FALSE(parseFarSpec(std::string(kind->name) + ":")) << kind->name;
    EXPECT_FALSE(parseFarSpec(text + '\0')) << text;
    std::string capitals(kind->name);
    capitals[0] = static_cast<char>(toupper(capitals[0]));
    EXPECT_FALSE(parseFarSpec(capitals + text.substr(kind->name.size()))) << text;
    if (kind->form.find("SIZE") == std::string_view::npos) continue;
    EXPECT_FALSE(parseFarSpec(text + ":nonsense")) << text;
  }
}

TEST(ParseFarSpec, AcceptsTheFormsOfEachKind) {
  EXPECT_EQ(parseFarSpec("cxl:2G")->size.value(), 2 * kGiB);
  EXPECT_EQ(parseFarSpec("cxl:2G")->kind, farKind("cxl"));
  EXPECT_EQ(parseFarSpec("cxl:100%")->size, machineMemory());
  EXPECT_STREQ(parseFarSpec("dax:/dev/dax0.0")->target, "/dev/dax0.0");
  EXPECT_STREQ(parseFarSpec("dax:/odd:name,with\\all")->target, "/odd:name,with\\all");
  EXPECT_EQ(parseFarSpec("numa:3")->node, 3u);
  EXPECT_EQ(parseFarSpec("auto")->kind, farKind("auto"));
  EXPECT_EQ(parseFarSpec("fabric")->kind, farKind("fabric"));
  EXPECT_EQ(parseFarSpec("fabric:4G")->size.value(), 4 * kGiB);
  const auto sized = parseFarSpec("remote:10.0.0.7:7777:8G");
  EXPECT_STREQ(sized->target, "10.0.0.7:7777");
  EXPECT_EQ(sized->size.value(), 8 * kGiB);
  const auto six = parseFarSpec("remote:[fe80::1]:7777");
  EXPECT_STREQ(six->target, "[fe80::1]:7777");
  EXPECT_EQ(six->size.value(), 0u);
  EXPECT_EQ(six->transport, Transport::kAuto);
  const auto verbs = parseFarSpec("remote:[fe80::1]:7777:transport:verbs");
  EXPECT_EQ(verbs->transport, Transport::kVerbs);
  EXPECT_EQ(verbs->size.value(), 0u);
  for (const char* both : {"remote:h:1:2G:transport:tcp", "remote:h:1:transport:tcp:2G"}) {
    EXPECT_EQ(parseFarSpec(both)->transport, Transport::kTcp) << both;
    EXPECT_EQ(parseFarSpec(both)->size.value(), 2 * kGiB) << both;
  }
  EXPECT_EQ(parseFarSpec("remote:h:1:transport:auto")->transport, Transport::kAuto);
  const auto mirror = parseFarSpec("mirror:[fe80::1]:7777+10.0.0.8:7778:8G:transport:tcp");
  EXPECT_EQ(mirror->kind, farKind("mirror"));
  EXPECT_STREQ(mirror->target, "[fe80::1]:7777+10.0.0.8:7778");
  EXPECT_EQ(mirror->size.value(), 8 * kGiB);
  EXPECT_EQ(mirror->transport, Transport::kTcp);
  const auto spares = parseFarSpec("mirror:a:1+b:2+[::1]:3+d:4+e:5+f:6+g:7+h:8:2G");
  EXPECT_STREQ(spares->target, "a:1+b:2+[::1]:3+d:4+e:5+f:6+g:7+h:8");
  EXPECT_EQ(spares->size.value(), 2 * kGiB);
}

TEST(ParseFarSpec, RejectsWithTheFormOrTheListOfKinds) {
  const std::string long_path = "dax:/" + std::string(200, 'x');
  for (const std::string& text : {std::string(),
                                  std::string("cxl"),
                                  std::string("cxl:"),
                                  std::string("dax:"),
                                  std::string("dax:relative"),
                                  std::string("auto:"),
                                  std::string("auto:1"),
                                  std::string("numa:"),
                                  std::string("numa:-1"),
                                  std::string("numa:1x"),
                                  std::string("numa:1024"),
                                  std::string("remote:"),
                                  std::string("remote:host"),
                                  std::string("remote:host:0"),
                                  std::string("remote:host:65536"),
                                  std::string("remote::7777"),
                                  std::string("remote:[]:7777"),
                                  std::string("remote:[::1]7777"),
                                  std::string("remote:h:1:transport"),
                                  std::string("remote:h:1:transport:"),
                                  std::string("remote:h:1:transport:pigeon"),
                                  std::string("remote:h:1:transport:tcp:transport:tcp"),
                                  std::string("remote:h:1:2G:2G"),
                                  std::string("mirror:"),
                                  std::string("mirror:h:1"),
                                  std::string("mirror:h:1:2G"),
                                  std::string("mirror:h:1+"),
                                  std::string("mirror:h:1+h"),
                                  std::string("mirror:h:1+h:0"),
                                  std::string("mirror:h+h:1"),
                                  std::string("mirror:h:1:2G+g:1"),
                                  std::string("mirror:h:1+g:1+"),
                                  std::string("mirror:h:1+g:1+i"),
                                  std::string("mirror:a:1+b:1+c:1+d:1+e:1+f:1+g:1+h:1+i:1"),
                                  std::string("mirror:h:1+g:1:2G:2G"),
                                  std::string("remote:h:1+g:1"),
                                  std::string("tape:1G"),
                                  std::string("CXL:1G"),
                                  std::string("dax:/a\0b", 8),
                                  long_path}) {
    const auto spec = parseFarSpec(text);
    ASSERT_FALSE(spec) << text;
    const FarKind* const meant = farKind(text.substr(0, text.find(':')));
    for (const FarKind* kind : farKinds()) {
      if (meant != nullptr && kind != meant) continue;
      const std::string_view advice = meant != nullptr ? kind->form : kind->name;
      EXPECT_THAT(spec.error().text(), HasSubstr(std::string(advice))) << text;
    }
  }
  EXPECT_FALSE(parseFarSpec("cxl:0"));
  EXPECT_FALSE(parseFarSpec("fabric:"));
  EXPECT_FALSE(parseFarSpec("remote:host:7777:"));
  EXPECT_FALSE(parseFarSpec("remote:host:7777:transport:tcp:"));
}

}  // namespace
}  // namespace tidepool
