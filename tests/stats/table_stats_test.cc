// SPDX-License-Identifier: Apache-2.0
// Embedding tables in a statistics page: entered and removed by many threads while others read,
// never more than there is room for, and whatever a page holds is read as plain numbers and bounded
// texts.
#include "runtime/stats/table_stats.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

namespace tidepool {
namespace {

std::vector<std::string> namesIn(const StatsPage& page) {
  std::vector<std::string> names;
  forTables(page, [&](int, const TableReading& table) { names.emplace_back(table.name); });
  return names;
}

TEST(TableStats, ATableIsThereUntilItIsRemoved) {
  const auto page = std::make_unique<StatsPage>();
  StatCounter* const users = addTable(*page, "users", "cxl:2G", 1000, Bytes(256));
  StatCounter* const items = addTable(*page, "items", "local", 50, Bytes(64));
  users[static_cast<size_t>(TableCount::kHits)] = 7;
  EXPECT_THAT(namesIn(*page), testing::ElementsAre("users", "items"));
  TableReading reading;
  ASSERT_TRUE(readTable(page->tables[0], reading));
  EXPECT_STREQ(reading.tier, "cxl:2G");
  EXPECT_EQ(reading.rows, 1000u);
  EXPECT_EQ(reading.row_bytes, 256u);
  EXPECT_EQ(reading[TableCount::kHits], 7u);
  EXPECT_EQ(reading[TableCount::kLookups], 0u);
  removeTable(*page, users);
  EXPECT_THAT(namesIn(*page), testing::ElementsAre("items"));
  removeTable(*page, items);
  EXPECT_TRUE(namesIn(*page).empty());
}

TEST(TableStats, AnEntryThatIsUsedAgainIsAnotherTable) {
  const auto page = std::make_unique<StatsPage>();
  StatCounter* const first = addTable(*page, "a rather long name", "cxl:2G", 1, Bytes(1));
  first[0] = 99;
  TableReading before, after;
  ASSERT_TRUE(readTable(page->tables[0], before));
  removeTable(*page, first);
  ASSERT_EQ(addTable(*page, "short", "", 2, Bytes(2)), first);
  ASSERT_TRUE(readTable(page->tables[0], after));
  EXPECT_NE(after.version, before.version);
  EXPECT_STREQ(after.name, "short");
  EXPECT_EQ(after[TableCount::kLookups], 0u);
}

TEST(TableStats, WhatFindsNoRoomIsCounted) {
  const auto page = std::make_unique<StatsPage>();
  std::vector<StatCounter*> counts;
  for (int i = 0; i < kMaxTables + 3; ++i) {
    counts.push_back(addTable(*page, std::to_string(i), "local", 1, Bytes(1)));
    EXPECT_EQ(counts.back() != nullptr, i < kMaxTables);
  }
  EXPECT_EQ(page->more_tables.load(), 3u);
  EXPECT_EQ(namesIn(*page).size(), static_cast<size_t>(kMaxTables));
  for (const StatCounter* const count : counts) removeTable(*page, count);
  EXPECT_EQ(page->more_tables.load(), 0u);
  EXPECT_TRUE(namesIn(*page).empty());
}

// As of a child of fork(), whose page is a new one.
TEST(TableStats, TheCountsOfAnotherPageRemoveNothing) {
  const auto parent = std::make_unique<StatsPage>(), child = std::make_unique<StatsPage>();
  StatCounter* const inherited = addTable(*parent, "parent's", "local", 1, Bytes(1));
  addTable(*child, "child's", "local", 1, Bytes(1));
  removeTable(*child, inherited);
  EXPECT_THAT(namesIn(*child), testing::ElementsAre("child's"));
}

TEST(TableStats, LongTextsAreCut) {
  const auto page = std::make_unique<StatsPage>();
  addTable(*page, std::string(500, 'n'), std::string(500, 't'), 1, Bytes(1));
  TableReading reading;
  ASSERT_TRUE(readTable(page->tables[0], reading));
  EXPECT_EQ(std::string(reading.name), std::string(sizeof reading.name - 1, 'n'));
  EXPECT_EQ(std::string(reading.tier), std::string(sizeof reading.tier - 1, 't'));
}

TEST(TableStats, AShareIsOfTheProcessesBudget) {
  const auto page = std::make_unique<StatsPage>();
  StatCounter* const counts = addTable(*page, "users", "local", 1, Bytes(4));
  counts[static_cast<size_t>(TableCount::kDramBytes)] = 10;
  const auto share = [&] {
    TableReading reading;
    EXPECT_TRUE(readTable(page->tables[0], reading));
    return budgetShare(*page, reading);
  };
  EXPECT_EQ(share(), 0) << "there is none";
  page->dram_budget_bytes = 100;
  EXPECT_EQ(share(), 0.1) << "what it has";
  counts[static_cast<size_t>(TableCount::kDramBudgetBytes)] = 25;
  EXPECT_EQ(share(), 0.25) << "what it may have";
  counts[static_cast<size_t>(TableCount::kDramBudgetBytes)] = 1000;
  EXPECT_EQ(share(), 1);
}

TEST(TableStats, NoiseIsReadAsBoundedTexts) {
  const auto entry = std::make_unique<TableStats>();
  std::mt19937 random(3);
  for (int i = 0; i < 1000; ++i) {
    auto* const bytes = reinterpret_cast<unsigned char*>(entry.get());
    for (size_t k = 0; k < sizeof *entry; ++k) bytes[k] = static_cast<unsigned char>(random() | 1);
    TableReading reading;
    EXPECT_FALSE(readTable(*entry, reading));  // odd
    entry->version = entry->version + 1;
    ASSERT_TRUE(readTable(*entry, reading));
    EXPECT_EQ(strlen(reading.name), sizeof reading.name - 1);
    EXPECT_EQ(strlen(reading.tier), sizeof reading.tier - 1);
    const double ratio = hitRatio(reading[TableCount::kHits], reading[TableCount::kLookups]);
    EXPECT_TRUE(ratio >= 0 && ratio <= 1);
  }
}

/// Each table is all of one letter and one number: a mixture would show.
TEST(TableStats, AReaderNeverSeesAMixture) {
  const auto page = std::make_unique<StatsPage>();
  constexpr int kThreads = 3, kRounds = 2000;
  std::atomic<bool> done{false};
  std::thread reader([&] {
    while (!done.load()) {
      forTables(*page, [](int, const TableReading& table) {
        const std::string name(table.name);
        EXPECT_EQ(name, std::string(40, static_cast<char>('a' + table.rows % 26)));
        EXPECT_EQ(table.tier, name);
        EXPECT_EQ(table.row_bytes, table.rows);
      });
    }
  });
  std::vector<std::thread> writers;
  for (int i = 0; i < kThreads; ++i) {
    writers.emplace_back([&page, i] {
      for (int round = 0; round < kRounds; ++round) {
        const auto number = static_cast<uint64_t>(round * kThreads + i);
        const std::string text(40, static_cast<char>('a' + number % 26));
        removeTable(*page, addTable(*page, text, text, number, Bytes(number)));
      }
    });
  }
  for (std::thread& writer : writers) writer.join();
  done = true;
  reader.join();
  EXPECT_TRUE(namesIn(*page).empty());
}

}  // namespace
}  // namespace tidepool
