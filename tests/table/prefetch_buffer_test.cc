// SPDX-License-Identifier: Apache-2.0
// Rows of announced batches beside the slots, against the model: batches are announced, used,
// changed, finished and given up in any order, used twice or never, while the share of memory
// changes and checkpoints begin. Every result is the model's, bit for bit, and the budget is kept.
#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <cstring>
#include <deque>
#include <set>

#include "tests/table/raw_rows.h"
#include "tests/table/table_fixture.h"
#include "tests/table/table_model.h"

namespace tidepool {
namespace {

constexpr uint32_t kDim = 12;
constexpr RowNumber kRows = 4000;

TableOptions optionsFor(IdKind ids, uint64_t in_dram) {
  TableOptions options;
  options.name = "ahead";
  options.rows = kRows;
  options.format = {ElementType::kFloat32, Optimizer::kAdagrad, kDim};
  options.ids = ids;
  options.initializer = {Initializer::Kind::kUniform, -0.1f, 0.1f, 5};
  options.step.learning_rate = 0.05f;
  options.dram = DramPlan::forSlots(options, TierKind::kFetch, in_dram) +
                 RowChanges::mostMemory(kRows);  // what checkpoints need
  return options;
}

/// A table in a memory server, its model, and the batches in flight.
class Flights {
 public:
  Flights(Places& places, const TableOptions& options, uint64_t seed)
      : options_(options),
        table_(places.table(options, workers_)),
        model_(options),
        random_(seed) {}

  void act(uint64_t what) {
    switch (what % 12) {
      case 0:
      case 1:
      case 2:
        return announce();
      case 3:
      case 4:
        return use(pick());
      case 5:
        return update(pick());
      case 6:
        return use(fresh());
      case 7:
        return update(fresh());
      case 8:
        return write(pick());
      case 9:
        return finish();
      case 10:
        return resize();
      default:
        return snapshot();
    }
  }

  /// Some ids, mostly of batches in flight, have no rows any more.
  void remove() {
    std::vector<int64_t> ids;
    const RandomBatch batch = pick();
    // One alone gets the same row again when the batch is used.
    const uint64_t one_in = random_() % 2 == 0 ? 3 : batch.ids.size() + 1;
    for (const int64_t id : batch.ids) {
      if (random_() % one_in == 0) ids.push_back(id);
    }
    uint64_t wanted = 0;
    for (const int64_t id : ids) wanted += model_.remove(id) ? 1 : 0;
    const auto removed = table_->removeIds(ids);
    RC_ASSERT(removed.has_value());
    RC_ASSERT(*removed == wanted);
    keepsBudget();
  }

  /// As optimizers of the caller's own do; or no more is announced for now.
  void byRow(uint64_t what) {
    const RandomBatch batch = pick();
    if (what % 6 == 0) {
      flight_.clear();
      RC_ASSERT(table_->stopPrefetch().has_value());
      keepsBudget();
      return;
    }
    const std::set<int64_t> distinct(batch.ids.begin(), batch.ids.end());
    const std::vector<int64_t> ids(distinct.begin(), distinct.end());
    std::vector<float> got(ids.size() * kDim, -1);
    RC_ASSERT(table_->gatherRows(ids, got.data()).has_value());
    for (size_t i = 0; i < ids.size(); ++i) {
      const auto row = std::span(got).subspan(i * kDim, kDim);
      RC_ASSERT(std::vector<float>(row.begin(), row.end()) == model_.read(ids[i]));
    }
    if (what % 2 == 0) return;
    for (float& value : got) value = static_cast<float>(random_() % 1000) / 1000;
    RC_ASSERT(table_->scatterRows(ids, got.data()).has_value());
    for (size_t i = 0; i < ids.size(); ++i) model_.write(ids[i], got.data() + i * kDim);
    keepsBudget();
  }

  void check() {
    while (!flight_.empty()) {
      use(flight_.front().batch);
      finish();
    }
    snapshots_.clear();
    for (RowNumber id = 0; options_.ids == IdKind::kDense && id < kRows; ++id) {
      model_.read(static_cast<int64_t>(id));
    }
    for (const auto& [id, bytes] : model_.all()) {
      std::vector<float> got(kDim);
      RC_ASSERT(table_->readRows({&id, 1}, got.data()).has_value());
      RC_ASSERT(got == model_.read(id));
    }
    RC_ASSERT(rawRowsOf(table_.get()) == model_.all());
  }

 private:
  struct InFlight {
    RandomBatch batch;
    BatchNumber number;
  };

  RandomBatch fresh() {
    // Long and short ones; of few rows, so that batches in flight share many.
    const uint64_t rows = random_() % 3 == 0 ? 200 : kRows;
    RandomBatch batch(random_, rows, 1 + random_() % 40, 25, kDim);
    if (options_.ids == IdKind::kHashed) {
      for (int64_t& id : batch.ids) id = id * 0x10001 - 77;
    }
    return batch;
  }
  RandomBatch pick() {
    return flight_.empty() ? fresh() : flight_[random_() % flight_.size()].batch;
  }

  void announce() {
    if (flight_.size() == 8) return;
    RandomBatch batch = random_() % 6 == 0 && !flight_.empty() ? pick() : fresh();
    const auto number = table_->prefetch(batch.ids);
    RC_ASSERT(number.has_value());
    for (const int64_t id : batch.ids) model_.read(id);  // hashed ids come into being
    flight_.push_back({std::move(batch), *number});
    keepsBudget();
  }
  void use(const RandomBatch& batch) {
    const Batch view = batch.view(random_() % 2 == 0 ? Pooling::kSum : Pooling::kMean, true);
    std::vector<float> got(view.bags() * kDim, -1), wanted(got.size(), -2);
    const EmbeddingTable::BagCall call{table_.get(), view, got.data(), kDim};
    RC_ASSERT(EmbeddingTable::bags({&call, 1}, workers_).has_value());
    model_.bag(view, wanted.data());
    RC_ASSERT(memcmp(got.data(), wanted.data(), got.size() * sizeof(float)) == 0);
    keepsBudget();
  }
  void update(const RandomBatch& batch) {
    const Batch view = batch.view(Pooling::kSum, true);
    const EmbeddingTable::UpdateCall call{table_.get(), view, batch.gradients.data(), kDim};
    RC_ASSERT(EmbeddingTable::updates({&call, 1}, workers_).has_value());
    model_.update(view, batch.gradients.data());
    keepsBudget();
  }
  void write(const RandomBatch& batch) {
    std::vector<float> values(batch.ids.size() * kDim);
    for (float& value : values) value = static_cast<float>(random_() % 1000) / 1000;
    RC_ASSERT(table_->writeRows(batch.ids, values.data()).has_value());
    for (size_t i = 0; i < batch.ids.size(); ++i) {
      model_.write(batch.ids[i], values.data() + i * kDim);
    }
    keepsBudget();
  }
  /// The oldest, or some at once, used or not.
  void finish() {
    for (uint64_t i = random_() % 3 + 1; i > 0 && !flight_.empty(); --i) {
      if (i == 1) table_->finished(flight_.front().number);
      const BatchNumber last = flight_.front().number;
      flight_.pop_front();
      if (flight_.empty()) table_->finished(last);
    }
  }
  void resize() {
    const uint64_t rows = random_() % 4 == 0 ? 0 : random_() % 2000;
    const Bytes changes = RowChanges::mostMemory(kRows);
    RC_ASSERT(table_->setDram(DramPlan::forSlots(options_, TierKind::kFetch, rows) + changes)
                  .has_value());
    keepsBudget();
  }
  /// A checkpoint begins, or the one that began is compared with what the table was then.
  void snapshot() {
    if (!snapshots_.empty()) return endSnapshot();
    EmbeddingTable* const table = table_.get();
    // Batches in flight may have the memory that it needs.
    queue_ = std::make_unique<RowBlockQueue>();
    auto begun = TableSnapshot::begin({&table, 1}, SavedRows::kAll, 0, copies_, *queue_);
    if (!begun) {
      RC_ASSERT(begun.error().code() == ErrorCode::kConflict);
      return;
    }
    snapshots_ = std::move(*begun);
    keepsBudget();
    if (options_.ids == IdKind::kDense) {
      for (RowNumber id = 0; id < kRows; ++id) model_.read(static_cast<int64_t>(id));
    }
    then_ = model_.all();
  }
  void endSnapshot() {
    TableSnapshot& snapshot = *snapshots_.front();
    std::map<int64_t, std::vector<std::byte>> saved;
    const auto keep = [&](RowBlock* block) {
      const RowFormat& format = options_.format;
      for (size_t i = 0; i < block->rows.size(); ++i) {
        const RowNumber row = block->rows[i];
        auto& bytes = saved[static_cast<int64_t>(block->ids.empty() ? row : block->ids[i])];
        RC_ASSERT(bytes.empty());
        bytes.resize(format.stride());
        memcpy(bytes.data(), block->bytes + i * format.rowBytes(), format.rowBytes());
      }
      block->pool->giveBack(block);
    };
    for (bool more = true; more;) {
      RowBlock* blocks[TableSnapshot::kBlocks];
      for (RowBlock*& block : blocks) block = pool_.take();
      const auto next = snapshot.next(blocks);
      RC_ASSERT(next.has_value());
      more = *next;
      for (RowBlock* block : blocks) keep(block);
    }
    snapshot.finishCopies();
    RC_ASSERT(!snapshot.copiesLost());
    queue_->close();
    while (RowBlock* const block = queue_->pop()) keep(block);
    RC_ASSERT(saved == then_);
    snapshot.commit(++checkpoint_);
    snapshots_.clear();
  }
  void keepsBudget() { RC_ASSERT(table_->counts().dram <= table_->dram()); }

  const TableOptions options_;
  Workers workers_{1};
  std::unique_ptr<EmbeddingTable> table_;
  TableModel model_;
  std::mt19937_64 random_;
  std::deque<InFlight> flight_;
  RowBlockPool pool_{TableSnapshot::kBlocks, Bytes(256 * kKiB)}, copies_{64, Bytes(256 * kKiB)};
  std::unique_ptr<RowBlockQueue> queue_;
  std::vector<std::unique_ptr<TableSnapshot>> snapshots_;
  std::map<int64_t, std::vector<std::byte>> then_;
  CheckpointId checkpoint_ = 0;
};

/// Runs that failed once.
TEST(PrefetchBuffer, RowsAreTheModelsInRunsThatFailedOnce) {
  struct Run {
    uint64_t in_dram, seed;
    std::vector<uint8_t> acts;
  };
  // Rows of a long bag were staged still when a checkpoint wrote announced ones home: these had
  // memory beyond the budget until some later call.
  const Run runs[] = {
      {0,
       63808295308372739,
       {83, 63, 83, 78, 49, 27, 90, 5, 46, 81, 28, 93, 112, 69, 25, 20, 100, 35, 84}},
      {30, 6930872644098, {20, 16, 12, 28, 31, 22, 21, 18, 30, 23, 30, 21, 5, 14, 19, 19, 24, 25,
                           17, 9,  30, 21, 6,  2,  11, 3,  5,  5,  30, 26, 1, 13, 8,  27, 11, 26}}};
  for (const Run& run : runs) {
    for (const IdKind ids : {IdKind::kDense, IdKind::kHashed}) {
      SCOPED_TRACE(run.seed);
      Places places(Place::kRemote);
      Flights flights(places, optionsFor(ids, run.in_dram), run.seed);
      for (const uint8_t what : run.acts) flights.act(what);  // a failure is thrown
      flights.check();
    }
  }
}

TEST(PrefetchBuffer, RowsAreTheModelsWhateverHappensToTheirBatches) {
  // Budgets that are too small say so on standard error: left there, beside rapidcheck's seed.
  const bool held = rc::check([] {
    const auto ids = *rc::gen::element(IdKind::kDense, IdKind::kHashed);
    const auto in_dram = *rc::gen::element<uint64_t>(0, 30, 200, 1000, 4000);
    const auto seed = *rc::gen::arbitrary<uint64_t>();
    const auto acts = *rc::gen::container<std::vector<uint8_t>>(60, rc::gen::arbitrary<uint8_t>());
    Places places(Place::kRemote);
    Flights flights(places, optionsFor(ids, in_dram), seed);
    for (const uint8_t what : acts) flights.act(what);
    flights.check();
  });
  EXPECT_TRUE(held);
}

TEST(PrefetchBuffer, RowsAreTheModelsWhenGatheredAndScattered) {
  const bool held = rc::check([] {
    const auto in_dram = *rc::gen::element<uint64_t>(0, 30, 200, 1000, 4000);
    const auto seed = *rc::gen::arbitrary<uint64_t>();
    const auto acts = *rc::gen::container<std::vector<uint8_t>>(60, rc::gen::arbitrary<uint8_t>());
    Places places(Place::kRemote);
    Flights flights(places, optionsFor(IdKind::kDense, in_dram), seed);
    for (const uint8_t what : acts) {
      flights.act(what);
      if (what % 3 != 0) flights.byRow(what / 3);
    }
    flights.check();
  });
  EXPECT_TRUE(held);
}

TEST(PrefetchBuffer, RowsAreTheModelsWhenIdsOfTheirBatchesAreRemoved) {
  const bool held = rc::check([] {
    const auto in_dram = *rc::gen::element<uint64_t>(0, 30, 200, 1000, 4000);
    const auto seed = *rc::gen::arbitrary<uint64_t>();
    const auto acts = *rc::gen::container<std::vector<uint8_t>>(60, rc::gen::arbitrary<uint8_t>());
    Places places(Place::kRemote);
    Flights flights(places, optionsFor(IdKind::kHashed, in_dram), seed);
    for (const uint8_t what : acts) {
      flights.act(what);
      if (what % 5 == 0) flights.remove();
    }
    flights.check();
  });
  EXPECT_TRUE(held);
}

}  // namespace
}  // namespace tidepool
