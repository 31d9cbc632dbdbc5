// SPDX-License-Identifier: Apache-2.0
// Tables that share a budget never hold more than that, and what each has follows what it gains.
#include "allocator/table/shared_budget.h"

#include "tests/table/raw_rows.h"
#include "tests/table/watched_table.h"

namespace tidepool {
namespace {

/// Tables that share.
class Shared : public testing::TestWithParam<Place> {
 protected:
  std::unique_ptr<EmbeddingTable> make(SharedBudget& budget, const TableOptions& options) {
    auto backing = places_.backingStore(options);
    EXPECT_TRUE(backing) << backing.error().text();
    auto table = budget.createTable(options, std::move(*backing), workers_);
    EXPECT_TRUE(table) << table.error().text();
    return std::move(*table);
  }
  Places places_{GetParam()};
  Workers workers_{2, 0};
};

TEST_P(Shared, NeverHoldMoreThanTheBudgetAndLoseNoRow) {
  const Bytes whole(1200 * kKiB);
  SharedBudget budget(whole);
  std::vector<std::unique_ptr<Watched>> tables;
  for (const char* name : {"a", "b", "c", "d"}) {
    const TableOptions options =
        optionsFor(name, 4000, name[0] == 'c' ? IdKind::kHashed : IdKind::kDense);
    tables.push_back(std::make_unique<Watched>(options, make(budget, options)));
  }
  std::mt19937_64 random(21);
  for (int step = 0; step < 300; ++step) {
    // The favourite changes, so that shares have to move.
    const size_t favourite = static_cast<size_t>(step / 60) % tables.size();
    Watched& one = *tables[random() % 4 == 0 ? random() % tables.size() : favourite];
    one.act(workers_, random, random());
    if (HasFatalFailure()) return;
    if (step % 10 == 0) budget.rebalance();
    if (step == 150) {
      ASSERT_TRUE(budget.setBudget(Bytes(1100 * kKiB)) || !tables[0]->ahead.empty());
    }
    if (step == 200) {
      ASSERT_TRUE(budget.setBudget(whole));
    }
    Bytes sum;
    for (const auto& table : tables) {
      ASSERT_LE(table->table->counts().dram, table->table->dram());
      sum += table->table->dram();
    }
    ASSERT_LE(sum, budget.budget()) << "step " << step;
  }
  EXPECT_GT(budget.moves(), tables.size()) << "shares moved";
  for (const auto& table : tables) {
    while (!table->ahead.empty()) table->useOldest(workers_);
    table->expectAllRows();
  }
  tables.pop_back();
  budget.rebalance();
  EXPECT_LE(budget.held(), whole);
}

TEST_P(Shared, OfTheLeastIsEnoughForCheckpointsOfAll) {
  const TableOptions options = optionsFor("one", 30'000);
  const Bytes least = SharedBudget::leastShare(options, kindOf(GetParam()));
  SharedBudget budget(least * 3);
  std::vector<std::unique_ptr<EmbeddingTable>> tables;
  for (int i = 0; i < 3; ++i) tables.push_back(make(budget, options));
  for (const auto& table : tables) EXPECT_EQ(rawRowsOf(table.get()).size(), options.rows);
  budget.rebalance();
  for (const auto& table : tables) EXPECT_LE(table->counts().dram, table->dram());
  EXPECT_LE(budget.held(), budget.budget());
  auto backing = places_.backingStore(options);
  const auto refused = budget.createTable(options, std::move(*backing), workers_);
  ASSERT_FALSE(refused);
  EXPECT_NE(strstr(refused.error().text(), std::to_string((least * 4).value()).c_str()), nullptr)
      << refused.error().text();
}

TEST_P(Shared, ThatDoNotFitAreRefused) {
  SharedBudget budget(Bytes(400 * kKiB));
  std::vector<std::unique_ptr<EmbeddingTable>> tables;
  Status refused;
  while (refused && tables.size() < 20) {
    const TableOptions options = optionsFor("one", 3000);
    auto table = budget.createTable(options, std::move(*places_.backingStore(options)), workers_);
    if (table) {
      tables.push_back(std::move(*table));
    } else {
      refused = tl::unexpected(table.error());
    }
    EXPECT_LE(budget.held(), budget.budget());
  }
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code(), ErrorCode::kNoSpace) << refused.error().text();
  const Status smaller = budget.setBudget(Bytes(100 * kKiB));
  ASSERT_FALSE(smaller);
  EXPECT_EQ(smaller.error().code(), ErrorCode::kNoSpace);
  EXPECT_EQ(budget.budget(), Bytes(400 * kKiB));
  tables.pop_back();
  const TableOptions options = optionsFor("another", 3000);
  tables.push_back(make(budget, options));
}

/// Look-ups of rows below `hot`, in nine of ten cases, or of any row.
std::vector<int64_t> skewed(std::mt19937_64& random, size_t count, uint64_t hot, uint64_t rows) {
  std::vector<int64_t> ids(count);
  for (int64_t& id : ids) {
    id = static_cast<int64_t>(random() % 10 == 0 ? random() % rows : random() % hot);
  }
  return ids;
}

TEST_P(Shared, FollowWhatATableGains) {
  constexpr uint64_t kRows = 40'000, kHot = 2000;
  const TableOptions options = optionsFor("one", kRows);
  const Bytes kCurve = LiveCurve::memoryFor(Bytes(kRows * options.format.stride()));
  ASSERT_GT(kCurve, Bytes());
  const auto slotsOf = [&](EmbeddingTable& table) {
    return (table.dram() - kCurve).value() / (options.format.stride() + 24);
  };
  SharedBudget budget(DramPlan::forSlots(options, kindOf(GetParam()), 9000) + kCurve * 3);
  auto skew = make(budget, options), uniform = make(budget, options), idle = make(budget, options);
  EXPECT_EQ(skew->dram(), idle->dram()) << "evenly, as long as nothing is known";
  std::mt19937_64 random(5);
  const auto look = [&](EmbeddingTable& table, uint64_t hot, size_t batches) {
    for (size_t i = 0; i < batches; ++i) {
      const std::vector<int64_t> ids = skewed(random, 4096, hot, kRows);
      const std::vector<int64_t> offsets{0, 4096};
      std::vector<float> out(options.format.dim);
      const EmbeddingTable::BagCall call{&table, {ids, offsets}, out.data(), out.size()};
      ASSERT_TRUE(EmbeddingTable::bags({&call, 1}, workers_));
    }
  };
  for (int round = 0; round < 40; ++round) {
    look(*skew, kHot, 4);
    look(*uniform, kRows, 4);
  }
  // The hot rows of one, which are worth most; what remains is worth more to the other.
  EXPECT_GT(slotsOf(*skew), kHot * 9 / 10);
  EXPECT_LT(slotsOf(*skew), 2 * kHot);
  EXPECT_GT(slotsOf(*uniform), 4500u);
  EXPECT_LT(slotsOf(*idle), 700u);
  const TableCounts before = skew->counts();
  const uint64_t moves = budget.moves();
  for (int round = 0; round < 40; ++round) {
    look(*skew, kHot, 4);
    look(*uniform, kRows, 4);
  }
  const TableCounts after = skew->counts();
  EXPECT_GT(static_cast<double>(after.hits - before.hits),
            0.85 * static_cast<double>(after.lookups - before.lookups));
  EXPECT_LE(budget.moves(), moves + 6) << "shares that are right stay";
  // Who wakes up gets what it is worth.
  for (int round = 0; round < 40; ++round) {
    look(*idle, kHot, 4);
    look(*uniform, kRows, 4);
  }
  EXPECT_GT(slotsOf(*idle), kHot * 9 / 10);
  EXPECT_LT(slotsOf(*skew), 1200u);
}

TEST_P(Shared, HitsThatABudgetWouldGiveAreForetoldAndNothingMoves) {
  constexpr uint64_t kRows = 40'000, kHot = 3000;
  const TableOptions options = optionsFor("one", kRows);
  const TierKind kind = kindOf(GetParam());
  const Bytes curve = LiveCurve::memoryFor(Bytes(kRows * options.format.stride()));
  const auto holding = [&](uint64_t slots) {
    return DramPlan::forSlots(options, kind, slots) + curve;
  };
  const Bytes other = SharedBudget::leastShare(options, kind) * 3;
  const Bytes small = holding(kHot / 4) + other, large = holding(kHot * 2) + other;
  SharedBudget budget(small);
  auto hot = make(budget, options), idle = make(budget, options);
  EXPECT_TRUE(budget.hitsAt(std::vector{small, large}).empty()) << "nothing is known";
  std::mt19937_64 random(5);
  const auto hitRatio = [&] {
    const TableCounts before = hot->counts();
    for (int batch = 0; batch < 60; ++batch) {
      const std::vector<int64_t> ids = skewed(random, 4096, kHot, kRows), offsets{0, 4096};
      std::vector<float> out(options.format.dim);
      const EmbeddingTable::BagCall call{hot.get(), {ids, offsets}, out.data(), out.size()};
      EXPECT_TRUE(EmbeddingTable::bags({&call, 1}, workers_));
    }
    const TableCounts after = hot->counts();
    return static_cast<double>(after.hits - before.hits) /
           static_cast<double>(after.lookups - before.lookups);
  };
  hitRatio();
  const Bytes share = hot->dram(), held = budget.held();
  const uint64_t moves = budget.moves();
  const std::vector<double> hits = budget.hitsAt(std::vector{small, large});
  ASSERT_EQ(hits.size(), 2u);
  EXPECT_LT(hits[0], hits[1]);
  EXPECT_EQ(budget.hitsAt(std::vector{large, small, small}),
            (std::vector{hits[1], hits[0], hits[0]}));
  EXPECT_EQ(hot->dram(), share);
  EXPECT_EQ(budget.held(), held);
  EXPECT_EQ(budget.moves(), moves);
  EXPECT_EQ(budget.budget(), small);
  ASSERT_TRUE(budget.setBudget(large));
  hitRatio();
  // Of the tables, not of one call: a row that comes twice in a batch is one that hits.
  EXPECT_NEAR(hitRatio(), hits[1], GetParam() == Place::kDirect ? 0.06 : 0.1);
}

TEST_P(Shared, ItsOwnerIsAskedBetweenCalls) {
  const TableOptions options = optionsFor("one", 40'000);
  const Bytes whole{2 * kMiB};
  SharedBudget budget(whole);
  uint64_t asked = 0, lookups = 0;
  budget.setOwner(32, [&](uint64_t since) {
    ++asked;
    lookups += since;
    EXPECT_EQ(budget.hitsAt(std::vector{whole}).size(), 1u);
    EXPECT_TRUE(budget.setBudget(asked % 2 == 1 ? whole / 2 : whole));
  });
  auto first = make(budget, options), second = make(budget, options);
  std::mt19937_64 random(5);
  for (int batch = 0; batch < 64; ++batch) {
    const std::vector<int64_t> ids = skewed(random, 4096, 2000, 40'000), offsets{0, 4096};
    std::vector<float> out(options.format.dim);
    const EmbeddingTable::BagCall call{first.get(), {ids, offsets}, out.data(), out.size()};
    ASSERT_TRUE(EmbeddingTable::bags({&call, 1}, workers_));
    ASSERT_LE(first->dram() + second->dram(), budget.budget());
  }
  EXPECT_EQ(asked, 4u);
  EXPECT_EQ(lookups, 64 * 4096u);
  const RowLink::Effort effort = budget.effort();
  if (GetParam() == Place::kDirect) {
    EXPECT_EQ(effort.rows, 0u);
    return;
  }
  EXPECT_GE(effort.rows, first->counts().fetched);
  EXPECT_GT(effort.waited, Nanoseconds());
}

TEST(SharedByMany, IsDividedAnewNowAndThenWhileTheyAreMade) {
  constexpr size_t kTables = 600;
  Places places(Place::kDirect, Bytes(2 * kGiB));
  Workers workers(1);
  const TableOptions options = optionsFor("one", 800);
  const Bytes most = DramPlan::forSlots(options, TierKind::kDirect, 800);
  const Bytes whole = most * (kTables / 2);
  SharedBudget budget(whole);
  std::vector<std::unique_ptr<EmbeddingTable>> tables;
  for (size_t i = 0; i < kTables; ++i) {
    auto backing = places.backingStore(options);
    ASSERT_TRUE(backing) << backing.error().text();
    auto table = budget.createTable(options, std::move(*backing), workers);
    ASSERT_TRUE(table) << table.error().text();
    tables.push_back(std::move(*table));
    ASSERT_LE(budget.held(), whole);
  }
  EXPECT_LT(budget.moves(), 60 * kTables) << "not the square of the tables";
  const auto shared_evenly = [&] {
    const std::vector<int64_t> ids{5}, offsets{0, 1};
    std::vector<float> out(options.format.dim);
    const EmbeddingTable::BagCall call{
        tables.front().get(), {ids, offsets}, out.data(), out.size()};
    ASSERT_TRUE(EmbeddingTable::bags({&call, 1}, workers));
    // All of the one that was used, and of what is left as much for each.
    const Bytes share = std::min(most, (whole - most) / (tables.size() - 1));
    for (const auto& table : tables) {
      const Bytes wanted = table == tables.front() ? most : share;
      ASSERT_LE(table->dram(), wanted + Bytes(1));
      ASSERT_GE(table->dram() + Bytes(1), wanted);
    }
  };
  shared_evenly();
  const uint64_t moves = budget.moves();
  while (tables.size() > kTables / 4) tables.pop_back();
  EXPECT_EQ(budget.moves(), moves);
  shared_evenly();
}

TEST_P(Shared, OfASmallTableIsAllOfIt) {
  const TableOptions large = optionsFor("large", 40'000), small = optionsFor("small", 500);
  SharedBudget budget(Bytes{kMiB});
  auto first = make(budget, large), second = make(budget, small);
  std::mt19937_64 random(6);
  for (int round = 0; round < 80; ++round) {
    for (EmbeddingTable* table : {first.get(), second.get()}) {
      const std::vector<int64_t> ids = skewed(random, 2048, 400, table->options().rows);
      const std::vector<int64_t> offsets{0, 2048};
      std::vector<float> out(large.format.dim);
      const EmbeddingTable::BagCall call{table, {ids, offsets}, out.data(), out.size()};
      ASSERT_TRUE(EmbeddingTable::bags({&call, 1}, workers_));
    }
  }
  EXPECT_EQ(second->dram(), DramPlan::forSlots(small, kindOf(GetParam()), 500));
  EXPECT_GT(first->dram(), Bytes(kMiB * 9 / 10 - 50 * kKiB));
}

INSTANTIATE_TEST_SUITE_P(All, Shared, testing::Values(Place::kDirect, Place::kRemote),
                         [](const auto& one) { return std::string(placeName(one.param)); });

}  // namespace
}  // namespace tidepool
