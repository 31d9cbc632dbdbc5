// SPDX-License-Identifier: Apache-2.0
// TIDEPOOL_CONF: every key, unknown keys, escapes, and the round trip of any options through text.
#include "runtime/options.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <string>
#include <vector>

#include "tests/tier/far_specs.h"

namespace tidepool {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

std::vector<std::string>& warnings() {
  static std::vector<std::string> lines;
  return lines;
}
void collect(const char* line) { warnings().emplace_back(line); }

std::string render(const Options& options) {
  char text[kConfTextCapacity];
  const Status status = renderOptions(options, text);
  return status ? text : status.error().text();
}

TEST(Options, WhenToStartIsReadFromWhatDoesNotParse) {
  const StartOptions found = parseStartOptions("far:nowhere,dram:33554432,dram:25%,start:now,x");
  EXPECT_EQ(found.start, StartWhen::kNow);
  EXPECT_EQ(found.dram, Bytes(32 * kMiB));
  EXPECT_FALSE(found.strict);
  EXPECT_EQ(parseStartOptions("dram:64M,start:soon").dram, Bytes());
  EXPECT_EQ(parseStartOptions("start:now,start:auto").start, StartWhen::kAuto);
  EXPECT_TRUE(parseStartOptions("far:nowhere,stats_file:/x\\,y").stats);
  EXPECT_FALSE(parseStartOptions("agent:/stats_file:x\\,stats_file:y,stats_file:").stats);
}

TEST(Options, StrictIsReadAsEverythingElseIs) {
  for (const char* yes :
       {"strict:true", "strict:yes", "strict:on", "strict:1",
        "nonsense,dram:lots,strict:on,far:", "strict:off, strict:1", "strict:yes,strict:perhaps"}) {
    EXPECT_TRUE(parseStartOptions(yes).strict) << yes;
  }
  for (const char* no : {"", "strict", "strict:false", "strict:off", "strict:perhaps",
                         "strict:true,strict:no", "stats_file:a\\,strict:true", "notstrict:true"}) {
    EXPECT_FALSE(parseStartOptions(no).strict) << no;
  }
  const std::string item(8000, 'x');
  EXPECT_TRUE(parseStartOptions(item + ",strict:on").strict);
  EXPECT_TRUE(parseStartOptions("strict:on," + item).strict);
}

TEST(ParseOptions, AnEmptyTextGivesTheDefaults) {
  for (const char* text : {"", ",", " ,\t,", ",,,"}) {
    const auto options = parseOptions(text, nullptr);
    ASSERT_TRUE(options) << text;
    EXPECT_EQ(render(*options), "");
    EXPECT_EQ(options->dram.value(), 0u);
    EXPECT_EQ(options->space.value(), 4 * kTiB);
  }
}

TEST(ParseOptions, ReadsEveryKey) {
  const auto options = parseOptions(
      "dram:256M,far:cxl:2G,far:remote:127.0.0.1:7777:1G,strict:true,sampling:off,"
      "sampling_cpu:2.5%, migration_rate:200M,uffd_move:no,prefetch:0,foretell:off,"
      "compress:off,seal:on,space:1T,remote_timeout:500ms,remote_reconnect:2m,"
      "stats_file:/tmp/a\\,b.json,agent:/run/a.sock",
      nullptr);
  ASSERT_TRUE(options) << options.error().text();
  EXPECT_EQ(options->dram.value(), 256 * kMiB);
  ASSERT_EQ(options->far_count, 2u);
  EXPECT_EQ(options->far[0].size.value(), 2 * kGiB);
  EXPECT_STREQ(options->far[1].target, "127.0.0.1:7777");
  EXPECT_TRUE(options->strict);
  EXPECT_FALSE(options->sampling);
  EXPECT_DOUBLE_EQ(options->sampling_cpu, 0.025);
  EXPECT_DOUBLE_EQ(options->migration_rate, 200.0 * kMiB);
  EXPECT_FALSE(options->uffd_move);
  EXPECT_FALSE(options->prefetch);
  EXPECT_FALSE(options->foretell);
  EXPECT_FALSE(options->compress);
  EXPECT_TRUE(options->seal);
  EXPECT_EQ(options->space.value(), kTiB);
  EXPECT_EQ(options->remote_timeout.value(), 500'000'000u);
  EXPECT_EQ(options->remote_reconnect.value(), 120'000'000'000u);
  EXPECT_STREQ(options->stats_file, "/tmp/a,b.json");
  EXPECT_STREQ(options->agent, "/run/a.sock");
}

TEST(ParseOptions, AnUnknownKeyIsOneWarningWithTheNearest) {
  warnings().clear();
  const auto options = parseOptions("drm:64M,strict:true,farr", collect);
  ASSERT_TRUE(options);
  EXPECT_TRUE(options->strict);
  EXPECT_THAT(warnings(), ElementsAre("unknown option 'drm': did you mean 'dram'?",
                                      "unknown option 'farr': did you mean 'far'?"));
  EXPECT_TRUE(parseOptions("drm:64M", nullptr));
}

TEST(ParseOptions, BadValuesSayWhatToWrite) {
  const std::pair<const char*, const char*> cases[] = {
      {"strict", "write strict:VALUE"},
      {"strict:maybe", "write true or false"},
      {"dram:0", "more than zero"},
      {"dram:512", "at least 1M"},
      {"dram:99999T", "more than this machine has"},
      {"dram:101%", "at most 100%"},
      {"sampling_cpu:0", "share of one core"},
      {"sampling_cpu:1.01", "share of one core"},
      {"sampling_cpu:nan", "share of one core"},
      {"sampling_cpu:1%%", "share of one core"},
      {"migration_rate:fast", "256M, 2G"},
      {"space:1M", "64M to 64T"},
      {"space:65T", "64M to 64T"},
      {"remote_timeout:never", "500ms, 5s"},
      {"remote_reconnect:never", "500ms, 5s"},
      {"far:tape", "cxl, dax"},
      {"stats_file:", "needs a path"},
      {"agent:", "needs the path"},
      {"far:cxl:1G,far:cxl:1G,far:cxl:1G,far:cxl:1G,far:cxl:1G,far:cxl:1G,far:cxl:1G,far:cxl:1G,"
       "far:cxl:1G",
       "more than 8 far tiers"}};
  for (const auto& [text, advice] : cases) {
    const auto options = parseOptions(text, nullptr);
    ASSERT_FALSE(options) << text;
    EXPECT_EQ(options.error().code(), ErrorCode::kInvalidArgument);
    EXPECT_THAT(options.error().text(), HasSubstr(advice)) << text;
  }
  EXPECT_FALSE(parseOptions("stats_file:/" + std::string(300, 'x'), nullptr));
  EXPECT_FALSE(parseOptions("stats_file:/" + std::string(9000, 'x'), nullptr));
}

TEST(ParseOptions, TheBudgetErrorSaysHowMuchThereIs) {
  Options options;
  const Status status = setOption(options, "dram", "5000T");
  ASSERT_FALSE(status);
  EXPECT_THAT(status.error().text(),
              testing::ContainsRegex("has \\([0-9.]+[MGT] of local memory\\)"));
  EXPECT_TRUE(setOption(options, "dram", "100%"));
  EXPECT_EQ(options.dram, localMemory());
}

TEST(RenderOptions, TooSmallABufferIsAnErrorNotACut) {
  Options options;
  options.strict = true;
  char text[8];
  EXPECT_EQ(renderOptions(options, text).error().code(), ErrorCode::kNoSpace);
}

rc::Gen<std::string> pathText(size_t most) {
  return rc::gen::map(rc::gen::container<std::string>(rc::gen::oneOf(
                          rc::gen::element(',', '\\', ':', ' ', '/'), rc::gen::nonZero<char>())),
                      [=](std::string text) { return ("/" + text).substr(0, most); });
}

std::string arbitraryValue(std::string_view word) {
  if (word == "SIZE") return std::to_string(*rc::gen::inRange<uint64_t>(1, kTiB));
  if (word == "PATH") return *pathText(127);
  if (word == "NODE") return std::to_string(*rc::gen::inRange(0u, 1024u));
  if (word == "HOST") return *rc::gen::element<std::string>("[::1]", "10.0.0.7", "host");
  if (word == "PORT") return std::to_string(*rc::gen::inRange(1, 65536));
  if (word == "WHICH") return *rc::gen::element<std::string>("auto", "tcp", "verbs");
  return plainValue(word);
}

FarSpec arbitrarySpec() {
  const FarKind& kind = **rc::gen::elementOf(farKinds());
  const auto spec =
      parseFarSpec(specOf(kind.form, arbitraryValue, [] { return *rc::gen::arbitrary<bool>(); }));
  RC_ASSERT(spec.has_value());
  return *spec;
}

Options arbitraryOptions() {
  Options options;
  options.dram = Bytes(*rc::gen::inRange<uint64_t>(kMiB, localMemory().value()));
  options.far_count = *rc::gen::inRange<size_t>(0, Options::kMaxFar + 1);
  for (size_t i = 0; i < options.far_count; ++i) options.far[i] = arbitrarySpec();
  options.strict = *rc::gen::arbitrary<bool>();
  options.sampling = *rc::gen::arbitrary<bool>();
  options.sampling_pmu = *rc::gen::arbitrary<bool>();
  options.sampling_cpu = *rc::gen::inRange(1, 1'000'000) / 1e6;
  options.migration_rate = static_cast<double>(*rc::gen::inRange<uint64_t>(0, kTiB));
  options.uffd_move = *rc::gen::arbitrary<bool>();
  options.prefetch = *rc::gen::arbitrary<bool>();
  options.foretell = *rc::gen::arbitrary<bool>();
  options.compress = *rc::gen::arbitrary<bool>();
  options.seal = *rc::gen::arbitrary<bool>();
  options.space = Bytes(*rc::gen::inRange<uint64_t>(32, 1 << 20) * kGranuleSize);
  options.remote_timeout = Nanoseconds(*rc::gen::inRange<uint64_t>(1, 3'600'000'000'000));
  options.remote_reconnect = Nanoseconds(*rc::gen::inRange<uint64_t>(0, 3'600'000'000'000));
  strcpy(options.stats_file, (*pathText(255)).c_str());
  options.budget_scope = *rc::gen::element(BudgetScope::kProcess, BudgetScope::kManaged);
  options.pins = *rc::gen::element(Pins::kAsk, Pins::kNever);
  return options;
}

TEST(RenderOptions, AnyOptionsComeBackFromTheirText) {
  EXPECT_TRUE(rc::check("render then parse", [] {
    const Options options = arbitraryOptions();
    const std::string text = render(options);
    const auto back = parseOptions(text, collect);
    RC_ASSERT(back.has_value());
    RC_ASSERT(render(*back) == text);
    RC_ASSERT(back->dram == options.dram);
    RC_ASSERT(back->far_count == options.far_count);
    for (size_t i = 0; i < options.far_count; ++i) {
      RC_ASSERT(back->far[i].kind == options.far[i].kind);
      RC_ASSERT(back->far[i].size == options.far[i].size);
      RC_ASSERT(back->far[i].node == options.far[i].node);
      RC_ASSERT(std::string(back->far[i].target) == options.far[i].target);
      RC_ASSERT(back->far[i].transport == options.far[i].transport);
    }
    RC_ASSERT(back->strict == options.strict);
    RC_ASSERT(back->sampling == options.sampling);
    RC_ASSERT(back->sampling_pmu == options.sampling_pmu);
    RC_ASSERT(back->sampling_cpu == options.sampling_cpu);
    RC_ASSERT(back->migration_rate == options.migration_rate);
    RC_ASSERT(back->uffd_move == options.uffd_move);
    RC_ASSERT(back->prefetch == options.prefetch);
    RC_ASSERT(back->foretell == options.foretell);
    RC_ASSERT(back->compress == options.compress);
    RC_ASSERT(back->seal == options.seal);
    RC_ASSERT(back->space == options.space);
    RC_ASSERT(back->remote_timeout == options.remote_timeout);
    RC_ASSERT(back->remote_reconnect == options.remote_reconnect);
    RC_ASSERT(std::string(back->stats_file) == options.stats_file);
    RC_ASSERT(back->budget_scope == options.budget_scope);
    RC_ASSERT(back->pins == options.pins);
  }));
}

TEST(ParseOptions, ArbitraryTextNeverCrashes) {
  EXPECT_TRUE(rc::check([](const std::string& text) { parseOptions(text, collect); }));
  EXPECT_TRUE(rc::check([](const std::string& value) {
    for (const std::string_view key : optionKeys()) {
      Options options;
      setOption(options, key, value);
    }
  }));
}

}  // namespace
}  // namespace tidepool
