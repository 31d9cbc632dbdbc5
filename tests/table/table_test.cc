// SPDX-License-Identifier: Apache-2.0
// Embedding tables against the model, bit for bit: every tier, type, optimizer and number of
// threads, with budgets so small that rows come and go all the time.
#include "allocator/table/table.h"

#include <gtest/gtest.h>

#include <cstring>

#include "tests/rounds.h"
#include "tests/table/table_fixture.h"
#include "tests/table/table_model.h"

namespace tidepool {
namespace {

const int kSteps = rounds(15, 300);

struct Case {
  Place place;
  ElementType type;
  Optimizer optimizer;
  IdKind ids;
  size_t threads;
  unsigned percent;  // of the rows, in DRAM
};

std::string caseName(const testing::TestParamInfo<Case>& info) {
  static const char* const kTypes[] = {"fp32", "fp16", "bf16", "int8"};
  static const char* const kNames[] = {"sgd", "momentum", "adagrad", "rowwise", "adam"};
  const Case& c = info.param;
  return std::string(placeName(c.place)) + "_" + kTypes[static_cast<int>(c.type)] + "_" +
         kNames[static_cast<int>(c.optimizer)] +
         (c.ids == IdKind::kDense ? "_dense_" : "_hashed_") + std::to_string(c.threads) + "t_" +
         std::to_string(c.percent) + "percent";
}

TableOptions optionsOf(const Case& c) {
  TableOptions options;
  options.rows = 6000;
  options.format = {c.type, c.optimizer, 24};
  options.ids = c.ids;
  options.initializer = {Initializer::Kind::kUniform, -0.1f, 0.1f, 42};
  options.step.learning_rate = 0.05f;
  options.step.momentum = 0.9f;
  options.dram =
      DramPlan::forSlots(options, c.place == Place::kRemote ? TierKind::kFetch : TierKind::kDirect,
                         options.rows * c.percent / 100);
  return options;
}

class TableCase : public testing::TestWithParam<Case> {
 protected:
  TableCase()
      : options_(optionsOf(GetParam())),
        places_(GetParam().place),
        workers_(GetParam().threads, 0),
        table_(places_.table(options_, workers_)),
        model_(options_) {}

  RandomBatch next(size_t bags = 40) {
    RandomBatch batch(random_, options_.rows, bags, 30, options_.format.dim);
    if (options_.ids == IdKind::kHashed) {
      for (int64_t& id : batch.ids) id = scattered(id);
    }
    return batch;
  }
  /// Ids of all 64 bits, negative ones too.
  static int64_t scattered(int64_t id) {
    return static_cast<int64_t>(static_cast<uint64_t>(id) * 0x9E3779B97F4A7C15ull);
  }

  void expectBags(const Batch& batch) { expectBags(batch, model_); }
  void expectBags(const Batch& batch, TableModel& model) {
    const size_t size = batch.bags() * options_.format.dim;
    std::vector<float> got(size, -1), wanted(size, -2);
    const EmbeddingTable::BagCall call{table_.get(), batch, got.data(), options_.format.dim};
    const Status status = EmbeddingTable::bags({&call, 1}, workers_);
    ASSERT_TRUE(status) << status.error().text();
    model.bag(batch, wanted.data());
    ASSERT_EQ(memcmp(got.data(), wanted.data(), size * sizeof(float)), 0);
  }

  void update(const Batch& batch, const std::vector<float>& gradients) {
    const EmbeddingTable::UpdateCall call{table_.get(), batch, gradients.data(),
                                          options_.format.dim};
    const Status status = EmbeddingTable::updates({&call, 1}, workers_);
    ASSERT_TRUE(status) << status.error().text();
    model_.update(batch, gradients.data());
  }

  void expectAllRows() {
    std::vector<int64_t> ids;
    for (const auto& [id, bytes] : model_.all()) ids.push_back(id);
    const size_t dim = options_.format.dim;
    std::vector<float> got(ids.size() * dim);
    ASSERT_TRUE(table_->readRows(ids, got.data()));
    for (size_t i = 0; i < ids.size(); ++i) {
      const std::vector<float> wanted = model_.read(ids[i]);
      ASSERT_EQ(memcmp(&got[i * dim], wanted.data(), dim * sizeof(float)), 0) << "row " << ids[i];
    }
  }

  TableOptions options_;
  Places places_;
  Workers workers_;
  std::unique_ptr<EmbeddingTable> table_;
  TableModel model_;
  std::mt19937_64 random_{7};
};

TEST_P(TableCase, TrainsAsTheModelDoes) {
  for (int step = 0; step < kSteps; ++step) {
    const RandomBatch batch = next();
    const Batch view = batch.view(step % 3 == 0 ? Pooling::kMean : Pooling::kSum, step % 2 == 1);
    expectBags(view);
    update(view, batch.gradients);
    if (HasFatalFailure()) return;
  }
  expectAllRows();
  const TableCounts counts = table_->counts();
  EXPECT_EQ(counts.steps, static_cast<uint64_t>(kSteps));
  if (GetParam().place != Place::kLocal && GetParam().percent < 50) {
    EXPECT_GT(counts.evictions, 0u);
    EXPECT_GT(counts.in_place + counts.fetched, 0u);
  }
}

TEST_P(TableCase, ReadsAhead) {
  std::deque<std::pair<RandomBatch, BatchNumber>> window;
  for (int step = 0; step < kSteps; ++step) {
    while (window.size() < 4) {
      RandomBatch batch = next();
      auto number = table_->prefetch(batch.ids);
      ASSERT_TRUE(number) << number.error().text();
      window.emplace_back(std::move(batch), *number);
    }
    const auto& [batch, number] = window.front();
    const Batch view = batch.view(Pooling::kSum, step % 2 == 1);
    expectBags(view);
    update(view, batch.gradients);
    if (HasFatalFailure()) return;
    table_->finished(number);
    if (step % 7 == 0) {  // one that nobody announced
      const RandomBatch other = next();
      expectBags(other.view(Pooling::kSum, false));
    }
    window.pop_front();
  }
  expectAllRows();
}

TEST_P(TableCase, WhatInsertsNothingGivesTheSame) {
  for (int step = 0; step < kSteps; ++step) {
    const RandomBatch batch = next(), seen = next(60);
    const uint64_t before = table_->rows();
    Batch view = seen.view(step % 3 == 0 ? Pooling::kMean : Pooling::kSum, step % 2 == 1);
    view.absent = Absent::kInitial;
    TableModel twin = model_;  // which gives new ids rows
    expectBags(view, twin);
    EXPECT_EQ(table_->rows(), before);
    const Batch learnt = batch.view(Pooling::kSum, false);
    expectBags(learnt);
    update(learnt, batch.gradients);
    if (HasFatalFailure()) return;
  }
  expectAllRows();
}

TEST_P(TableCase, RowsAreWrittenAndRead) {
  for (int round = 0; round < 10; ++round) {
    const RandomBatch batch = next();
    std::vector<float> values(batch.ids.size() * options_.format.dim);
    for (float& value : values) value = static_cast<float>(random_() % 2000) / 1000 - 1;
    ASSERT_TRUE(table_->writeRows(batch.ids, values.data()));
    for (size_t i = 0; i < batch.ids.size(); ++i) {
      model_.write(batch.ids[i], values.data() + i * options_.format.dim);
    }
    expectBags(next().view(Pooling::kSum, false));
  }
  expectAllRows();
}

// Sanitizers look for races and bad pointers, not at arithmetic: a quarter of the cases takes every
// path.
#ifdef TIDEPOOL_SANITIZED
constexpr unsigned kEvery = 7;
#else
constexpr unsigned kEvery = 1;
#endif

std::vector<Case> cases() {
  std::vector<Case> all;
  for (const Place place : {Place::kLocal, Place::kDirect, Place::kRemote}) {
    for (unsigned type = 0; type < kElementTypes; ++type) {
      for (unsigned optimizer = 0; optimizer < kOptimizers; ++optimizer) {
        const unsigned number = type * kOptimizers + optimizer;
        if (all.size() > 0 && (number + static_cast<unsigned>(place)) % kEvery != 0) continue;
        all.push_back({place, static_cast<ElementType>(type), static_cast<Optimizer>(optimizer),
                       number % 3 == 1 ? IdKind::kHashed : IdKind::kDense, 1 + number % 2,
                       number % 4 == 0   ? 100u
                       : number % 4 == 1 ? 2u
                                         : 10u});
      }
    }
  }
  return all;
}
INSTANTIATE_TEST_SUITE_P(All, TableCase, testing::ValuesIn(cases()), caseName);

class FullTable : public testing::TestWithParam<Place> {
 protected:
  static constexpr size_t kRows = 50, kDim = 4;
  FullTable() : places_(GetParam()), workers_(2, 0), table_(places_.table(options(), workers_)) {}
  static TableOptions options() {
    TableOptions options;
    options.rows = kRows;
    options.format = {ElementType::kFloat32, Optimizer::kSgd, kDim};
    options.ids = IdKind::kHashed;
    options.initializer = {Initializer::Kind::kNormal, 1, 0.5f, 9};
    options.dram = DramPlan::forSlots(options, tierKindAt(GetParam()), 8);
    return options;
  }
  /// Bags of one id each, of ids from `first` on.
  struct Singles {
    std::vector<int64_t> ids, offsets;
    std::vector<float> out;
    Singles(int64_t first, size_t count) : out(count * kDim, -1) {
      for (size_t i = 0; i < count; ++i) {
        ids.push_back(first + static_cast<int64_t>(i));
        offsets.push_back(static_cast<int64_t>(i));
      }
      offsets.push_back(static_cast<int64_t>(count));
    }
    EmbeddingTable::BagCall call(EmbeddingTable& table, Absent absent) {
      return {&table, {ids, offsets, nullptr, Pooling::kSum, absent}, out.data(), kDim};
    }
    void expectInitial() const {
      for (size_t i = 0; i < ids.size(); ++i) {
        std::vector<float> wanted(kDim);
        options().initializer.fill(static_cast<uint64_t>(ids[i]), wanted);
        ASSERT_EQ(memcmp(&out[i * kDim], wanted.data(), kDim * sizeof(float)), 0) << ids[i];
      }
    }
  };
  std::vector<int64_t> known(RowNumber first, size_t room) {
    std::vector<int64_t> ids(room);
    ids.resize(table_->knownIds(first, ids));
    return ids;
  }
  Places places_;
  Workers workers_;
  std::unique_ptr<EmbeddingTable> table_;
};

TEST_P(FullTable, IsLookedUpWithIdsThatItHasNot) {
  Singles none(-20, 40);
  const auto empty = none.call(*table_, Absent::kInitial);
  ASSERT_TRUE(EmbeddingTable::bags({&empty, 1}, workers_));
  none.expectInitial();
  EXPECT_EQ(table_->rows(), 0u);
  EXPECT_TRUE(known(0, 100).empty());

  Singles all(100, kRows);
  const auto fill = all.call(*table_, Absent::kInsert);
  ASSERT_TRUE(EmbeddingTable::bags({&fill, 1}, workers_));
  Singles more(120, 3000);  // the first 30 of them have rows
  const auto insert = more.call(*table_, Absent::kInsert);
  EXPECT_EQ(EmbeddingTable::bags({&insert, 1}, workers_).error().code(), ErrorCode::kNoSpace);
  // Of one table in one call: some with rows, all, none.
  const EmbeddingTable::BagCall calls[] = {more.call(*table_, Absent::kInitial),
                                           all.call(*table_, Absent::kInsert),
                                           none.call(*table_, Absent::kInitial)};
  ASSERT_TRUE(EmbeddingTable::bags(calls, workers_));
  more.expectInitial();
  all.expectInitial();
  none.expectInitial();
  EXPECT_EQ(table_->rows(), kRows);
}

TEST_P(FullTable, ListsTheIdsThatItHas) {
  Singles all(-3, kRows);
  const auto fill = all.call(*table_, Absent::kInsert);
  ASSERT_TRUE(EmbeddingTable::bags({&fill, 1}, workers_));
  EXPECT_EQ(known(0, kRows), all.ids);
  EXPECT_EQ(known(48, kRows), (std::vector<int64_t>{45, 46}));
  EXPECT_EQ(known(2, 3), (std::vector<int64_t>{-1, 0, 1}));
  EXPECT_TRUE(known(kRows, 1).empty());
  EXPECT_TRUE(known(~RowNumber{}, 1).empty());
}

INSTANTIATE_TEST_SUITE_P(Places, FullTable,
                         testing::Values(Place::kLocal, Place::kDirect, Place::kRemote),
                         [](const auto& test) { return placeName(test.param); });

}  // namespace
}  // namespace tidepool
