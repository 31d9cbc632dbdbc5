// SPDX-License-Identifier: Apache-2.0
// The JSON and the table of a statistics page: stable keys, right values, and any bytes at all in a
// page still give JSON that parses and text that cannot steer a terminal.
#include "runtime/stats/stats_json.h"
#include "runtime/base/page_ways.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <vector>

#include "runtime/stats/stats_region.h"
#include "runtime/stats/table_stats.h"
#include "tests/stats/stats_tier.h"

namespace tidepool {
namespace {

using nlohmann::json;
using testing::HasSubstr;

std::string jsonText(const StatsPage& page, Nanoseconds now = Nanoseconds(0)) {
  std::vector<char> memory(kStatsJsonCapacity);
  TextBuffer out(memory);
  writeStatsJson(page, now, out);
  EXPECT_FALSE(out.overflowed());
  return std::string(out.view());
}

std::string tableText(const StatsPage& page, Nanoseconds now = Nanoseconds(0)) {
  std::vector<char> memory(kStatsTableCapacity);
  TextBuffer out(memory);
  writeStatsTable(page, now, out);
  EXPECT_FALSE(out.overflowed());
  return std::string(out.view());
}

std::unique_ptr<StatsPage> samplePage() {
  auto page = std::make_unique<StatsPage>();
  page->schema = kStatsSchema;
  page->pid = 42;
  strcpy(page->program, "trainer");
  strcpy(page->mode, "managed");
  page->started_nanoseconds = 1'000'000'000;
  page->dram_budget_bytes = 256 * kMiB;
  page->dram_used_bytes = 200 * kMiB;
  page->managed_bytes = kGiB;
  page->metadata_bytes = 2 * kMiB;
  page->promotions = 11;
  page->promoted_bytes = 11 * kPageSize;
  page->demotions = 13;
  page->demoted_bytes = 13 * kPageSize;
  page->wasted_migrations = 3;
  page->faults_missing = 100;
  page->faults_write_protect = 7;
  page->sampling_cpu_nanoseconds = 10'000'000;
  page->moving_cpu_nanoseconds = 20'000'000;
  for (int i = 0; i < 99; ++i) page->fault_latency.record(Nanoseconds(8'000));
  page->fault_latency.record(Nanoseconds(100'000));
  TierStats& tier = addStatsTier(*page, "cxl:2G", "direct");
  tier.capacity_bytes = 2 * kGiB;
  tier.used_bytes = kGiB;
  tier.reads_bytes = 5;
  tier.writes_bytes = 6;
  tier.emulated = 1;
  SampleStats* source = addStatsSource(*page, "write-tracking");
  source->count = 1234;
  source->cpu_nanoseconds = 9'000'000;
  StatCounter* const table = addTable(*page, "users", "cxl:2G", 5000, Bytes(256));
  table[static_cast<size_t>(TableCount::kLookups)] = 1000;
  table[static_cast<size_t>(TableCount::kHits)] = 875;
  table[static_cast<size_t>(TableCount::kDramBytes)] = 31 * kMiB;
  table[static_cast<size_t>(TableCount::kDramBudgetBytes)] = 32 * kMiB;
  return page;
}

TEST(StatsJson, HasTheDocumentedKeysAndValues) {
  const auto page = samplePage();
  addStatsError(*page, "memory server %s went away", "10.0.0.7:7777");
  const json stats = json::parse(jsonText(*page, Nanoseconds(3'000'000'000)));
  EXPECT_EQ(stats["schema"], kStatsSchema);
  EXPECT_EQ(stats["pid"], 42);
  EXPECT_EQ(stats["dram_budget_bytes"], 256 * kMiB);
  EXPECT_EQ(stats["dram_used_bytes"], 200 * kMiB);
  EXPECT_EQ(stats["managed_bytes"], kGiB);
  EXPECT_EQ(stats["metadata_bytes"], 2 * kMiB);
  EXPECT_EQ(stats["tiers"], json::parse(R"([{"name":"cxl:2G","kind":"direct",
      "capacity_bytes":2147483648,"used_bytes":1073741824,"reads_bytes":5,"writes_bytes":6,
      "emulated":true}])"));
  EXPECT_EQ(stats["tables"], json::parse(R"([{"name":"users","tier":"cxl:2G","rows":5000,
      "row_bytes":256,"lookups":1000,"hits":875,"hit_ratio":0.875,"dram_bytes":32505856,
      "dram_budget_bytes":33554432,"dram_budget_share":0.125}])"));
  EXPECT_EQ(stats["more_tables"], 0);
  EXPECT_EQ(stats["promotions"], 11);
  EXPECT_EQ(stats["promoted_bytes"], 11 * kPageSize);
  EXPECT_EQ(stats["demotions"], 13);
  EXPECT_EQ(stats["demoted_bytes"], 13 * kPageSize);
  EXPECT_EQ(stats["wasted_migrations"], 3);
  EXPECT_EQ(stats["faults"]["missing"], 100);
  EXPECT_EQ(stats["faults"]["write_protect"], 7);
  EXPECT_NEAR(stats["faults"]["p50_us"].get<double>(), 8.0, 2.1);
  EXPECT_NEAR(stats["faults"]["p99_us"].get<double>(), 8.0, 2.1);
  EXPECT_EQ(stats["samples"][0]["source"], "write-tracking");
  EXPECT_EQ(stats["samples"][0]["count"], 1234);
  EXPECT_DOUBLE_EQ(stats["samples"][0]["cpu_seconds"].get<double>(), 0.009);
  EXPECT_DOUBLE_EQ(stats["sampling_cpu_ratio"].get<double>(), 0.005);
  EXPECT_DOUBLE_EQ(stats["moving_cpu_seconds"].get<double>(), 0.02);
  EXPECT_DOUBLE_EQ(stats["elapsed_seconds"].get<double>(), 2.0);
  EXPECT_EQ(stats["errors"], json::parse(R"(["memory server 10.0.0.7:7777 went away"])"));
}

TEST(StatsJson, ATierWithSeveralWaysSaysByWhichItsPagesGoAndWhy) {
  const auto page = samplePage();
  TierStats& tier = addStatsTier(*page, "remote:10.0.0.7:7777", "fetch");
  const auto shown = [&] { return json::parse(jsonText(*page))["tiers"]; };
  EXPECT_FALSE(shown()[1].contains("transport"));  // nothing is known yet
  tier.reconnections = 3;
  tier.page_ways = static_cast<uint64_t>(PageWays::kVerbs);
  EXPECT_EQ(shown()[1]["transport"], "verbs");
  EXPECT_EQ(shown()[1]["reconnections"], 3);
  EXPECT_FALSE(shown()[1].contains("transport_note"));
  tier.page_ways = static_cast<uint64_t>(PageWays::kTcp);
  strcpy(tier.note, "the cable \"broke\"");
  EXPECT_FALSE(shown()[1].contains("transport_note"));  // half written, for all that is known
  tier.noted = 1;
  EXPECT_EQ(shown()[1]["transport"], "tcp");
  EXPECT_EQ(shown()[1]["transport_note"], "the cable \"broke\"");
  EXPECT_FALSE(shown()[0].contains("transport"));
}

TEST(StatsJson, AMirrorSaysWhereItsCopiesAreAndWhichIsLost) {
  const auto page = samplePage();
  TierStats& tier = addStatsTier(*page, "mirror:10.0.0.7:7777+10.0.0.8:7777", "fetch");
  strcpy(tier.servers[0], "10.0.0.7:7777");
  strcpy(tier.servers[1], "10.0.0.8:7777");
  const auto shown = [&](int at) { return json::parse(jsonText(*page))["tiers"][at]; };
  EXPECT_FALSE(shown(0).contains("copies"));
  EXPECT_EQ(shown(1)["copies"], json::parse(R"([{"server":"10.0.0.7:7777","state":"live"},
      {"server":"10.0.0.8:7777","state":"live"}])"));
  EXPECT_THAT(tableText(*page), HasSubstr("  copy on 10.0.0.8:7777\n"));
  tier.server_states[1] = packServer(ServerRole::kLost, ErrorCode::kTimedOut);
  EXPECT_EQ(shown(1)["copies"], json::parse(R"([{"server":"10.0.0.7:7777","state":"live"},
      {"server":"10.0.0.8:7777","state":"lost","why":"timed-out"}])"));
  EXPECT_THAT(tableText(*page), HasSubstr("  copy on 10.0.0.8:7777: lost, timed-out\n"));
  strcpy(tier.servers[2], "10.0.0.9:7777");
  tier.server_states[2] = packServer(ServerRole::kFilling, ErrorCode{});
  tier.server_states[1] = packServer(ServerRole::kSpare, ErrorCode{});
  tier.copied_pages = 7;
  tier.pages_to_copy = 20;
  EXPECT_EQ(shown(1)["copies"], json::parse(R"([{"server":"10.0.0.7:7777","state":"live"},
      {"server":"10.0.0.8:7777","state":"spare"},
      {"server":"10.0.0.9:7777","state":"filling","copied_pages":7,"pages_to_copy":20}])"));
  EXPECT_THAT(tableText(*page), HasSubstr("  spare: 10.0.0.8:7777\n"));
  EXPECT_THAT(tableText(*page), HasSubstr("  copy on 10.0.0.9:7777: being made, 7 of 20 pages\n"));
}

TEST(StatsJson, AMirrorSaysWhichServerGaveWhatDoesNotVerify) {
  const auto page = samplePage();
  TierStats& tier = addStatsTier(*page, "mirror:10.0.0.7:7777+10.0.0.8:7777", "fetch");
  strcpy(tier.servers[0], "10.0.0.7:7777");
  strcpy(tier.servers[1], "10.0.0.8:7777");
  tier.unverified_reads[1] = 5;
  tier.mended_pages[1] = 3;
  EXPECT_EQ(json::parse(jsonText(*page))["tiers"][1]["copies"],
            json::parse(R"([{"server":"10.0.0.7:7777","state":"live"},{"server":"10.0.0.8:7777",
      "state":"live","unverified_reads":5,"mended_pages":3}])"));
  EXPECT_THAT(tableText(*page),
              HasSubstr("  copy on 10.0.0.7:7777\n  copy on 10.0.0.8:7777; 5 reads did not verify, "
                        "3 pages mended\n"));
}

TEST(StatsJson, AnEmptyPageHasEveryKeyToo) {
  const auto page = std::make_unique<StatsPage>();
  const json stats = json::parse(jsonText(*page));
  const json full = json::parse(jsonText(*samplePage(), Nanoseconds(3'000'000'000)));
  for (const auto& [key, value] : full.items()) EXPECT_TRUE(stats.contains(key)) << key;
  EXPECT_TRUE(stats["tiers"].empty());
  EXPECT_EQ(stats["sampling_cpu_ratio"], 0.0);
}

// What scripts rely on: a key that goes, or changes its name, breaks them.
TEST(StatsJson, TheKeysAreTheseAndNoOthers) {
  const json stats = json::parse(jsonText(*samplePage()));
  const auto keysOf = [](const json& object) {
    std::vector<std::string> keys;
    for (const auto& [key, value] : object.items()) keys.push_back(key);
    return keys;
  };
  EXPECT_THAT(keysOf(stats),
              testing::UnorderedElementsAre(
                  "schema", "pid", "program", "mode", "elapsed_seconds", "dram_budget_bytes",
                  "dram_share_bytes", "dram_used_bytes", "managed_bytes", "managed_local_bytes",
                  "unmanaged_bytes", "metadata_bytes", "tiers", "tables", "more_tables",
                  "promotions", "promoted_bytes", "promotions_held_by_pins", "demotions",
                  "demoted_bytes", "sampled_local_pages", "sampled_far_pages", "strayed_pages",
                  "returned_pages", "wasted_migrations", "clean_evictions", "zero_pages", "rescues",
                  "prefetched_pages", "prefetch_hits", "foretold_pages", "foretold_used",
                  "compressed_pages", "compressed_bytes", "compressed_hits",
                  "compressed_written_back", "lost_pages", "direct_suspensions", "direct_suspended",
                  "faults", "samples", "sampling_cpu_seconds", "sampling_cpu_ratio",
                  "moving_cpu_seconds", "service_cpu_seconds", "error_count", "errors"));
  EXPECT_THAT(keysOf(stats["tiers"][0]),
              testing::UnorderedElementsAre("name", "kind", "capacity_bytes", "used_bytes",
                                            "reads_bytes", "writes_bytes", "emulated"));
  EXPECT_THAT(keysOf(stats["tables"][0]),
              testing::UnorderedElementsAre("name", "tier", "rows", "row_bytes", "lookups", "hits",
                                            "hit_ratio", "dram_bytes", "dram_budget_bytes",
                                            "dram_budget_share"));
  EXPECT_THAT(keysOf(stats["faults"]),
              testing::UnorderedElementsAre("missing", "write_protect", "p50_us", "p99_us"));
  EXPECT_THAT(keysOf(stats["samples"][0]),
              testing::UnorderedElementsAre("source", "count", "cpu_seconds"));
}

TEST(StatsJson, KeepsTheNewestErrorsInOrder) {
  const auto page = samplePage();
  for (int i = 0; i < 40; ++i) addStatsError(*page, "error %d", i);
  const json stats = json::parse(jsonText(*page));
  EXPECT_EQ(stats["error_count"], 40);
  ASSERT_EQ(stats["errors"].size(), static_cast<size_t>(kMaxErrors));
  EXPECT_EQ(stats["errors"].front(), "error 24");
  EXPECT_EQ(stats["errors"].back(), "error 39");
}

TEST(StatsJson, StringsComeBackAsTheyWere) {
  EXPECT_TRUE(rc::check("any bytes parse; ASCII is kept", [](std::string text) {
    std::vector<char> memory(text.size() * 6 + 16);
    TextBuffer out(memory);
    appendJsonString(out, text);
    const std::string back = json::parse(out.view()).get<std::string>();
    const bool ascii = std::all_of(text.begin(), text.end(), [](char c) { return c >= 0; });
    if (ascii) RC_ASSERT(back == text);
  }));
  std::vector<char> memory(256);
  TextBuffer out(memory);
  appendJsonString(out, "\xc3\xa9\xe2\x82\xac\xf0\x9f\x8c\x8a");
  EXPECT_EQ(json::parse(out.view()), "\xc3\xa9\xe2\x82\xac\xf0\x9f\x8c\x8a");
  for (const char* bad :
       {"\xc0\x80", "\xed\xa0\x80", "\xf4\x90\x80\x80", "\xe2\x82", "\x80", "\xff"}) {
    std::vector<char> other(256);
    TextBuffer text(other);
    appendJsonString(text, bad);
    EXPECT_THAT(json::parse(text.view()).get<std::string>(), HasSubstr("\xef\xbf\xbd"));
  }
}

/// A page of random bytes: what a hostile process may show us.
std::unique_ptr<StatsPage> noisePage(uint32_t seed) {
  auto page = std::make_unique<StatsPage>();
  std::mt19937 random(seed);
  auto* bytes = reinterpret_cast<unsigned char*>(page.get());
  for (size_t i = 0; i < sizeof *page; ++i) bytes[i] = static_cast<unsigned char>(random());
  return page;
}

TEST(StatsJson, HostilePagesStillParseAndFit) {
  for (uint32_t seed = 0; seed < 200; ++seed) {
    const auto page = noisePage(seed);
    const json stats = json::parse(jsonText(*page, Nanoseconds(UINT64_MAX)));
    EXPECT_LE(stats["tiers"].size(), static_cast<size_t>(kMaxTiers));
    for (const char character : tableText(*page, Nanoseconds(UINT64_MAX))) {
      const auto byte = static_cast<unsigned char>(character);
      ASSERT_TRUE(byte == '\n' || (byte >= 0x20 && byte != 0x7f));
    }
  }
  // The worst for the buffer: every text full, every byte an escape.
  auto page = std::make_unique<StatsPage>();
  memset(static_cast<void*>(page.get()), 1, sizeof *page);
  for (TableStats& table : page->tables) table.version = UINT64_MAX - 1;
  const json stats = json::parse(jsonText(*page, Nanoseconds(UINT64_MAX)));
  EXPECT_EQ(stats["tables"].size(), static_cast<size_t>(kMaxTables));
  memset(static_cast<void*>(page.get()), 0xfe, sizeof *page);  // the widest numbers
  EXPECT_EQ(json::parse(jsonText(*page))["tables"].size(), static_cast<size_t>(kMaxTables));
  tableText(*page);
}

TEST(StatsTable, ShowsWhatPeopleAskFirst) {
  const auto page = samplePage();
  addStatsError(*page, "line one\x1b[2J");
  const std::string table = tableText(*page, Nanoseconds(3'000'000'000));
  EXPECT_THAT(table, HasSubstr("trainer, process 42, managed, up 2.0 s"));
  EXPECT_THAT(table, HasSubstr("200M of a budget of 256M"));
  EXPECT_THAT(table, HasSubstr("cxl:2G"));
  EXPECT_THAT(table, HasSubstr("emulated"));
  EXPECT_THAT(table, HasSubstr("11 (44.0K)   demoted 13 (52.0K)   wasted 3"));
  EXPECT_THAT(table, HasSubstr("0.50 % of a core; write-tracking 1234"));
  EXPECT_THAT(table, HasSubstr("faults        100 missing, 7 write-protect; p50 "));
  EXPECT_THAT(table, testing::Not(testing::AnyOf(HasSubstr("{"), HasSubstr("lost"))));
  EXPECT_THAT(table, HasSubstr("line one?[2J"));
}

TEST(StatsTable, ListsEmbeddingTables) {
  const auto page = samplePage();
  EXPECT_THAT(
      tableText(*page),
      testing::ContainsRegex("users +cxl:2G +5000 +256 +87.5 % +31.0M +32.0M +12.5 %\n\npromoted"));
  for (int i = 0; i < kMaxTables + 1; ++i) addTable(*page, "evil\x1b[2J", "local", 1, Bytes(1));
  const std::string table = tableText(*page);
  EXPECT_THAT(table, HasSubstr("and 2 tables more\n"));
  EXPECT_THAT(table, testing::ContainsRegex("evil\\?\\[2J +local +1 +1 +- +0 +none +0.0 %\n"));
  page->dram_budget_bytes = 0;
  EXPECT_THAT(tableText(*page), testing::ContainsRegex("users .* +32.0M +-\n"));
  EXPECT_THAT(tableText(StatsPage{}), testing::Not(HasSubstr("table")));
}

TEST(StatsTable, SaysHowWellPagesCompress) {
  const auto page = samplePage();
  page->compressed_pages = 0;
  page->compressed_bytes = 0;
  page->compressed_hits = 5;
  page->compressed_written_back = 3;
  EXPECT_THAT(tableText(*page),
              HasSubstr("compressed    0 pages in 0; brought in 5, written back 3\n"));
  page->compressed_pages = 100;
  page->compressed_bytes = 40 * kPageSize;
  EXPECT_THAT(tableText(*page),
              HasSubstr("compressed    100 pages in 160K, 2.5 to 1; brought in 5"));
}

TEST(StatsTable, SaysWhenThereIsNoBudget) {
  const auto page = std::make_unique<StatsPage>();
  EXPECT_THAT(tableText(*page), HasSubstr("no budget"));
}

}  // namespace
}  // namespace tidepool
