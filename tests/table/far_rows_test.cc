// SPDX-License-Identifier: Apache-2.0
// What the comparison with the model does not show: rows of announced batches stay, a budget that
// is too small is said once, lost rows are an error, several tables go in one call, and arguments
// that are wrong change nothing.
#include <gtest/gtest.h>

#include <cstring>
#include <numeric>
#include <thread>

#include "tests/table/raw_rows.h"
#include "tests/table/table_fixture.h"
#include "tests/table/table_model.h"

namespace tidepool {
namespace {

constexpr uint32_t kDim = 16;

TableOptions optionsFor(RowNumber rows, RowNumber in_dram, IdKind ids = IdKind::kDense) {
  TableOptions options;
  options.name = "items";
  options.rows = rows;
  options.format = {ElementType::kFloat32, Optimizer::kAdagrad, kDim};
  options.ids = ids;
  options.initializer = {Initializer::Kind::kUniform, 0.5f, 1.0f, 3};  // no row is all zeros
  options.dram = DramPlan::forSlots(options, TierKind::kFetch, in_dram);
  return options;
}

std::vector<int64_t> range(int64_t first, int64_t count) {
  std::vector<int64_t> ids(static_cast<size_t>(count));
  std::iota(ids.begin(), ids.end(), first);
  return ids;
}

/// One bag of all ids.
Status bagOf(EmbeddingTable& table, Workers& workers, const std::vector<int64_t>& ids,
             std::vector<float>& out) {
  const int64_t offsets[] = {0, static_cast<int64_t>(ids.size())};
  out.assign(kDim, -1);
  const EmbeddingTable::BagCall call{&table, {ids, offsets}, out.data(), kDim};
  return EmbeddingTable::bags({&call, 1}, workers);
}

class FarRows : public testing::Test {
 protected:
  Workers workers_{2, 0};
  std::vector<float> out_;
};

TEST_F(FarRows, OfAnnouncedBatchesStayUntilItIsFinished) {
  Places places(Place::kRemote);
  auto table = places.table(optionsFor(20'000, 1000), workers_);
  const std::vector<int64_t> announced = range(0, 400);
  auto number = table->prefetch(announced);
  ASSERT_TRUE(number) << number.error().text();
  EXPECT_EQ(table->counts().prefetched, 400u);
  // Rows that are used more often by far, and more of them than there are slots.
  const auto churn = [&](int rounds) {
    for (int round = 0; round < rounds; ++round) {
      for (int64_t part = 0; part < 8; ++part) {
        ASSERT_TRUE(bagOf(*table, workers_, range(1000 + 200 * part, 200), out_));
      }
    }
  };
  churn(40);
  const uint64_t before = table->counts().fetched;
  ASSERT_TRUE(bagOf(*table, workers_, announced, out_));
  EXPECT_EQ(table->counts().fetched, before) << "they were to stay";
  table->finished(*number);
  churn(40);
  const uint64_t after = table->counts().fetched;
  ASSERT_TRUE(bagOf(*table, workers_, announced, out_));
  EXPECT_GT(table->counts().fetched, after) << "nothing holds them any more";
}

TEST_F(FarRows, ThatDoNotFitTheBudgetAreSaidOnceAndFetchedLater) {
  Places places(Place::kRemote);
  const TableOptions options = optionsFor(5000, 100);
  auto table = places.table(options, workers_);
  TableModel model(options);
  testing::internal::CaptureStderr();
  ASSERT_TRUE(table->prefetch(range(0, 300)));
  ASSERT_TRUE(table->prefetch(range(300, 300)));
  const std::string said = testing::internal::GetCapturedStderr();
  EXPECT_EQ(std::count(said.begin(), said.end(), '\n'), 1) << said;
  EXPECT_NE(said.find("items"), std::string::npos) << said;
  EXPECT_NE(said.find("give the table"), std::string::npos) << said;
  const std::vector<int64_t> ids = range(0, 300);
  const int64_t offsets[] = {0, 300};
  std::vector<float> wanted(kDim);
  model.bag({ids, offsets}, wanted.data());
  ASSERT_TRUE(bagOf(*table, workers_, ids, out_));
  EXPECT_EQ(out_, wanted);
  EXPECT_GT(table->counts().fetched, 0u);
}

TEST_F(FarRows, FitTheBudgetThatWasNamedAlsoWhenTheTableHasBeenSaved) {
  Places places(Place::kRemote, Bytes(256 * kMiB));
  // So many rows that what a checkpoint needs is more than what was announced.
  TableOptions options = optionsFor(2'000'000, 100);
  options.initializer.kind = Initializer::Kind::kZero;
  std::string said;
  {
    auto table = places.table(options, workers_);
    testing::internal::CaptureStderr();
    ASSERT_TRUE(table->prefetch(range(0, 60'000)));
    said = testing::internal::GetCapturedStderr();
  }
  const size_t at = said.find("give the table ");
  ASSERT_NE(at, std::string::npos) << said;
  options.dram = Bytes(std::stoull(said.substr(at + strlen("give the table "))) * kKiB);
  auto table = places.table(options, workers_);
  (void)rawRowsOf(table.get());
  testing::internal::CaptureStderr();
  ASSERT_TRUE(table->prefetch(range(0, 60'000)));
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "");
}

// Their slots may be given up while their rows are still under way.
TEST_F(FarRows, OfBatchesFinishedBeforeTheyCameMakeRoomForOthers) {
  Places places(Place::kRemote);
  const TableOptions options = optionsFor(20'000, 300);
  auto table = places.table(options, workers_);
  TableModel model(options);
  for (int64_t turn = 0; turn < 40; ++turn) {
    std::vector<int64_t> ids = range(turn * 450, 250);
    ids.insert(ids.end(), ids.begin(), ids.begin() + 100);  // some twice
    const auto number = table->prefetch(ids);
    ASSERT_TRUE(number) << number.error().text();
    table->finished(*number);
    if (turn % 8 != 7) continue;
    const int64_t offsets[] = {0, static_cast<int64_t>(ids.size())};
    std::vector<float> wanted(kDim);
    model.bag({ids, offsets}, wanted.data());
    ASSERT_TRUE(bagOf(*table, workers_, ids, out_));
    ASSERT_EQ(out_, wanted) << "turn " << turn;
  }
}

// What a look-up has fetched serves the step behind it, whatever rows that is of and whatever came
// between.
TEST_F(FarRows, ThatALookUpFetchedServeTheStepBehindIt) {
  Places places(Place::kRemote);
  const TableOptions options = optionsFor(100'000, 10'000);
  auto table = places.table(options, workers_);
  TableModel model(options);
  std::mt19937_64 random(11);
  uint64_t by_look_ups = 0, by_steps = 0;
  for (int turn = 0; turn < 60; ++turn) {
    const RandomBatch looked_up(random, 100'000, 20, 20, kDim),
        other(random, 100'000, 20, 20, kDim);
    const RandomBatch& stepped = turn % 3 == 2 ? other : looked_up;
    std::vector<float> got(20 * kDim), wanted(20 * kDim);
    const Batch batch = looked_up.view(Pooling::kSum, false);
    const EmbeddingTable::BagCall bag{table.get(), batch, got.data(), kDim};
    const uint64_t before = table->counts().fetched;
    ASSERT_TRUE(EmbeddingTable::bags({&bag, 1}, workers_));
    model.bag(batch, wanted.data());
    ASSERT_EQ(got, wanted) << "turn " << turn;
    const uint64_t fetched = table->counts().fetched;
    if (turn % 5 == 4) {
      const auto number = table->prefetch(other.ids);
      ASSERT_TRUE(number);
      table->finished(*number);
    }
    if (turn % 7 == 6) {
      ASSERT_TRUE(table->setDram(options.dram - Bytes(random() % 1000)));
    }
    const Batch step = stepped.view(Pooling::kSum, false);
    const EmbeddingTable::UpdateCall update{table.get(), step, stepped.gradients.data(), kDim};
    ASSERT_TRUE(EmbeddingTable::updates({&update, 1}, workers_));
    model.update(step, stepped.gradients.data());
    if (turn % 3 == 2 || turn % 5 == 4 || turn % 7 == 6) continue;
    by_look_ups += fetched - before;
    by_steps += table->counts().fetched - fetched;
  }
  EXPECT_LT(by_steps * 4, by_look_ups) << "but for rows that left for others, it needs nothing";
}

TEST_F(FarRows, HaveTheMemoryOfThoseReadAheadWhenNoneIsAnnouncedAnyMore) {
  Places places(Place::kRemote);
  auto table = places.table(optionsFor(20'000, 8000), workers_);
  const auto fetchedOfHotRows = [&] {  // of which there are as many as slots, but for a few
    uint64_t before = 0;
    for (int round = 0; round < 40; ++round) {
      before = table->counts().fetched;
      for (int64_t part = 0; part < 38; ++part) {
        EXPECT_TRUE(bagOf(*table, workers_, range(200 * part, 200), out_));
      }
    }
    return table->counts().fetched - before;
  };
  const uint64_t before = fetchedOfHotRows();
  ASSERT_TRUE(table->prefetch(range(0, 200)));
  const uint64_t beside = fetchedOfHotRows();
  EXPECT_GT(beside, before + 500);
  ASSERT_TRUE(table->stopPrefetch());
  EXPECT_LT(fetchedOfHotRows(), beside / 2);
}

TEST_F(FarRows, ReadInPlaceNeedNoReadingAhead) {
  Places places(Place::kDirect);
  auto table = places.table(optionsFor(5000, 100), workers_);
  ASSERT_TRUE(table->prefetch(range(0, 300)));
  EXPECT_EQ(table->counts().prefetched, 0u);
}

TEST_F(FarRows, AreAnErrorWhenTheyAreLostAndTheTableStaysGivenUp) {
  Places places(Place::kRemote);
  auto table = places.table(optionsFor(20'000, 200), workers_);
  const std::vector<float> written(20'000 * kDim, 0.5f);
  ASSERT_TRUE(table->writeRows(range(0, 20'000), written.data()));
  ASSERT_TRUE(bagOf(*table, workers_, range(0, 100), out_));
  places.stopServer();
  const Status lost = bagOf(*table, workers_, range(10'000, 1000), out_);
  ASSERT_FALSE(lost);
  EXPECT_TRUE(lost.error().code() == ErrorCode::kUnreachable ||
              lost.error().code() == ErrorCode::kLost)
      << lost.error().text();
  EXPECT_NE(strstr(lost.error().text(), "items"), nullptr) << lost.error().text();
  // Also of rows that are in DRAM: what was changed there has no home to go to any more.
  EXPECT_FALSE(bagOf(*table, workers_, range(0, 100), out_));
  EXPECT_FALSE(table->prefetch(range(0, 10)));
  std::vector<float> rows(kDim);
  const int64_t id = 5;
  EXPECT_FALSE(table->readRows({&id, 1}, rows.data()));
  EXPECT_FALSE(table->writeRows({&id, 1}, rows.data()));
}

TEST_F(FarRows, OfSeveralTablesGoInOneCall) {
  Places direct(Place::kDirect), remote(Place::kRemote), local(Place::kLocal);
  const TableOptions dense = optionsFor(3000, 150);
  const TableOptions hashed = optionsFor(3000, 150, IdKind::kHashed);
  std::vector<std::unique_ptr<EmbeddingTable>> tables;
  std::vector<TableModel> models;
  for (Places* places : {&direct, &remote, &local}) {
    for (const TableOptions& options : {dense, hashed}) {
      tables.push_back(places->table(options, workers_));
      models.emplace_back(options);
    }
  }
  std::mt19937_64 random(5);
  for (int step = 0; step < 8; ++step) {
    // Two parts for every table: a table may occur more than once in a call.
    std::vector<RandomBatch> batches;
    for (size_t i = 0; i < 2 * tables.size(); ++i) batches.emplace_back(random, 3000, 20, 30, kDim);
    std::vector<std::vector<float>> got(batches.size(), std::vector<float>(20 * kDim, -1));
    std::vector<EmbeddingTable::BagCall> bags;
    std::vector<EmbeddingTable::UpdateCall> updates;
    for (size_t i = 0; i < batches.size(); ++i) {
      EmbeddingTable* const table = tables[i % tables.size()].get();
      const Batch view = batches[i].view(Pooling::kSum, true);
      bags.push_back({table, view, got[i].data(), kDim});
      updates.push_back({table, view, batches[i].gradients.data(), kDim});
    }
    ASSERT_TRUE(EmbeddingTable::bags(bags, workers_));
    ASSERT_TRUE(EmbeddingTable::updates(updates, workers_));
    for (size_t i = 0; i < batches.size(); ++i) {
      std::vector<float> wanted(20 * kDim);
      models[i % models.size()].bag(bags[i].batch, wanted.data());
      ASSERT_EQ(got[i], wanted) << "step " << step << ", call " << i;
    }
    for (size_t i = 0; i < batches.size(); ++i) {
      models[i % models.size()].update(updates[i].batch, updates[i].gradients);
    }
  }
}

// Each call needs several tables and the workers: never in another order than the other's.
TEST_F(FarRows, AreAnnouncedByOneThreadAndLookedUpByAnother) {
  Places places(Place::kRemote);
  const TableOptions options = optionsFor(3000, 400);
  std::vector<std::unique_ptr<EmbeddingTable>> tables;
  for (int i = 0; i < 3; ++i) tables.push_back(places.table(options, workers_));
  TableModel model(options);
  std::thread announcing([&] {
    for (int64_t turn = 0; turn < 300; ++turn) {
      const std::vector<int64_t> ids = range(turn * 7 % 2900, 100);
      std::vector<BatchNumber> numbers(tables.size());
      std::vector<EmbeddingTable::PrefetchCall> calls;
      for (size_t i = 0; i < tables.size(); ++i)
        calls.push_back({tables[i].get(), ids, &numbers[i]});
      const Status status = EmbeddingTable::prefetches(calls, workers_);
      EXPECT_TRUE(status) << status.error().text();
      if (!status) return;
      for (size_t i = 0; i < tables.size(); ++i) tables[i]->finished(numbers[i]);
    }
  });
  for (int64_t turn = 0; turn < 300; ++turn) {
    const std::vector<int64_t> ids = range(turn * 11 % 2900, 100);
    const int64_t offsets[] = {0, 100};
    std::vector<float> wanted(kDim), got(3 * kDim, -1);
    model.bag({ids, offsets}, wanted.data());
    std::vector<EmbeddingTable::BagCall> calls;
    for (size_t i = 0; i < tables.size(); ++i) {
      calls.push_back({tables[i].get(), {ids, offsets}, got.data() + i * kDim, kDim});
    }
    const Status status = EmbeddingTable::bags(calls, workers_);
    EXPECT_TRUE(status) << status.error().text();
    for (size_t i = 0; i < got.size(); ++i) EXPECT_EQ(got[i], wanted[i % kDim]) << turn;
  }
  announcing.join();
}

TEST_F(FarRows, AreUntouchedByWrongArguments) {
  Places places(Place::kRemote);
  auto table = places.table(optionsFor(1000, 100), workers_);
  std::vector<float> gradients(4 * kDim, 1.0f);
  const auto refused = [&](std::vector<int64_t> ids, std::vector<int64_t> offsets,
                           const char* text) {
    const Batch batch{ids, offsets};
    std::vector<float> out(4 * kDim);
    const EmbeddingTable::BagCall bag{table.get(), batch, out.data(), kDim};
    const EmbeddingTable::UpdateCall update{table.get(), batch, gradients.data(), kDim};
    for (const Status& status : {EmbeddingTable::bags({&bag, 1}, workers_),
                                 EmbeddingTable::updates({&update, 1}, workers_)}) {
      ASSERT_FALSE(status) << text;
      EXPECT_EQ(status.error().code(), ErrorCode::kInvalidArgument);
      EXPECT_NE(strstr(status.error().text(), text), nullptr) << status.error().text();
    }
  };
  refused({1, 2, 1000}, {0, 3}, "ids[2] is 1000");
  refused({1, -7, 3}, {0, 3}, "ids[1] is -7");
  refused({1, 2}, {0, 2, 1}, "offsets[2] is 1");
  refused({1, 2}, {1, 2}, "must begin with 0");
  refused({1, 2}, {}, "must begin with 0");
  refused({1, 2}, {0, 3}, "the last offset is 3");
  const TableCounts counts = table->counts();
  EXPECT_EQ(counts.lookups, 0u);
  EXPECT_EQ(counts.steps, 0u);
}

TEST_F(FarRows, OfATableThatIsFullAreNotMade) {
  Places places(Place::kRemote);
  auto table = places.table(optionsFor(100, 64, IdKind::kHashed), workers_);
  ASSERT_TRUE(bagOf(*table, workers_, range(1'000'000, 60), out_));
  const Status full = bagOf(*table, workers_, range(2'000'000, 41), out_);
  ASSERT_FALSE(full);
  EXPECT_EQ(full.error().code(), ErrorCode::kNoSpace);
  EXPECT_EQ(table->rows(), 60u);
  ASSERT_TRUE(bagOf(*table, workers_, range(2'000'000, 40), out_));
  EXPECT_EQ(table->rows(), 100u);
}

}  // namespace
}  // namespace tidepool
