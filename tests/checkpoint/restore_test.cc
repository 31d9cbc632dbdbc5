// SPDX-License-Identifier: Apache-2.0
// Restoring into tables that differ from the saved ones: larger, under other names, split and
// merged; and what is refused, with nothing changed.
#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "allocator/table/table_restore.h"
#include "tests/checkpoint/checkpoint_fixture.h"

namespace tidepool {
namespace {

constexpr RowFormat kAdagrad{ElementType::kFloat32, Optimizer::kAdagrad, 10};

class RestoreTest : public testing::Test {
 protected:
  RestoreTest() : places_(Place::kLocal), workers_(2, 0) {}

  std::unique_ptr<Trained> trained(const std::string& name, IdKind ids, RowNumber rows,
                                   uint64_t first_step = 0) {
    TableOptions options = trainedTable(ids, kAdagrad, rows);
    options.name = name;
    auto made = std::make_unique<Trained>(places_, options, workers_);
    for (uint64_t step = first_step; step < first_step + 6; ++step) made->step(step);
    return made;
  }
  std::unique_ptr<EmbeddingTable> fresh(const TableOptions& options) {
    return places_.table(options, workers_);
  }
  void save(std::initializer_list<EmbeddingTable*> tables) {
    auto manifest = takeCheckpoint(std::vector<EmbeddingTable*>(tables), directory_.path(),
                                   CheckpointKind::kFull);
    ASSERT_TRUE(manifest) << manifest.error().text();
  }
  Result<Manifest> restore(std::initializer_list<RestorePart> parts) {
    return restoreTables(directory_.path(), std::vector<RestorePart>(parts), workers_);
  }

  TemporaryDirectory directory_;
  Places places_;
  Workers workers_;
};

RowMap shifted(const RowMap& rows, int64_t first, int64_t count, int64_t to) {
  RowMap moved;
  for (const auto& [id, bytes] : rows) {
    if (id >= first && id < first + count) moved[id - first + to] = bytes;
  }
  return moved;
}

TEST_F(RestoreTest, LargerTablesKeepTheirOtherRows) {
  const auto saved = trained("items", IdKind::kDense, 500);
  save({saved->table.get()});
  TableOptions options = saved->options;
  options.rows = 800;
  const auto table = fresh(options);
  const RowMap before = rowsOf(table.get());
  ASSERT_TRUE(restore({{table.get()}}));
  RowMap wanted = saved->rows();
  for (const auto& [id, bytes] : before) wanted.try_emplace(id, bytes);
  expectSame(rowsOf(table.get()), wanted);
  // Its rows are not those of the checkpoint: the next one must be full.
  const auto next = takeCheckpoint(table.get(), directory_.path(), CheckpointKind::kIncremental);
  ASSERT_FALSE(next);
  EXPECT_EQ(next.error().code(), ErrorCode::kConflict);
}

TEST_F(RestoreTest, LargerHashedTablesGoOnWithTheChain) {
  const auto saved = trained("items", IdKind::kHashed, 2000);
  save({saved->table.get()});
  TableOptions options = saved->options;
  options.rows = 4000;
  const auto table = fresh(options);
  ASSERT_TRUE(restore({{table.get()}}));
  expectSame(rowsOf(table.get()), saved->rows());
  const auto next = takeCheckpoint(table.get(), directory_.path(), CheckpointKind::kIncremental);
  ASSERT_TRUE(next) << next.error().text();
}

// They came into being at a look-up, and no step has changed them: they are new all the same.
TEST_F(RestoreTest, RowsThatWereOnlyLookedUpAreInTheNextIncrement) {
  const auto saved = trained("items", IdKind::kHashed, 2000);
  save({saved->table.get()});
  const size_t before = saved->rows().size();
  std::mt19937_64 random(99);
  const RandomBatch batch(random, 1'000'000'000, 10, 20, saved->options.format.dim);
  const Batch view = batch.view(Pooling::kSum, false);
  std::vector<float> out(batch.gradients.size());
  const EmbeddingTable::BagCall bag{saved->table.get(), view, out.data(),
                                    saved->options.format.dim};
  ASSERT_TRUE(EmbeddingTable::bags({&bag, 1}, workers_));
  saved->model.bag(view, out.data());
  ASSERT_GT(saved->rows().size(), before) << "else it tests nothing";
  const auto next =
      takeCheckpoint(saved->table.get(), directory_.path(), CheckpointKind::kIncremental);
  ASSERT_TRUE(next) << next.error().text();
  const auto table = fresh(saved->options);
  ASSERT_TRUE(restore({{table.get()}}));
  expectSame(rowsOf(table.get()), saved->rows());
}

TEST_F(RestoreTest, TablesAreSplitAndMerged) {
  const auto a = trained("a", IdKind::kDense, 400), b = trained("b", IdKind::kDense, 300, 50);
  save({a->table.get(), b->table.get()});
  TableOptions options = a->options;
  options.rows = 150;
  options.name = "low";
  const auto low = fresh(options);
  options.rows = 250;
  const auto high = fresh(options);
  options.rows = 700;
  const auto both = fresh(options);
  const auto done = restore({{low.get(), "a", 0, 150},
                             {high.get(), "a", 150},
                             {both.get(), "a"},
                             {both.get(), "b", 0, 300, 400}});
  ASSERT_TRUE(done) << done.error().text();
  expectSame(rowsOf(low.get()), shifted(a->rows(), 0, 150, 0));
  expectSame(rowsOf(high.get()), shifted(a->rows(), 150, 250, 0));
  RowMap wanted = a->rows();
  wanted.merge(shifted(b->rows(), 0, 300, 400));
  expectSame(rowsOf(both.get()), wanted);
}

TEST_F(RestoreTest, HashedTablesTakeOtherNames) {
  const auto saved = trained("users", IdKind::kHashed, 2000);
  save({saved->table.get()});
  TableOptions options = saved->options;
  options.name = "people";
  const auto table = fresh(options);
  ASSERT_TRUE(restore({{table.get(), "users"}}));
  expectSame(rowsOf(table.get()), saved->rows());
}

TEST_F(RestoreTest, WhatDoesNotFitIsRefusedAndChangesNothing) {
  const auto saved = trained("items", IdKind::kDense, 500);
  const auto users = trained("users", IdKind::kHashed, 500);
  const auto older = trained("older", IdKind::kDense, 500);
  older->step(99);
  save({saved->table.get(), users->table.get(), older->table.get()});
  const auto refused = [&](const TableOptions& options, RestorePart part, ErrorCode code,
                           const std::string& says) {
    const auto other = fresh(saved->options);  // fits, and must stay as it is all the same
    const auto table = fresh(options);
    const RowMap before = rowsOf(other.get());
    part.table = table.get();
    const auto result = restore({{other.get(), "items"}, part});
    ASSERT_FALSE(result) << says;
    EXPECT_EQ(result.error().code(), code) << result.error().text();
    EXPECT_NE(std::string(result.error().text()).find(says), std::string::npos)
        << result.error().text();
    expectSame(rowsOf(other.get()), before);
  };
  TableOptions options = saved->options;
  options.format.dim = 12;
  refused(options, {}, ErrorCode::kInvalidArgument, "saved as float32 adagrad 10");
  options = saved->options;
  options.format.type = ElementType::kFloat16;
  refused(options, {}, ErrorCode::kInvalidArgument, "is float16 adagrad 10");
  options.format = {ElementType::kFloat32, Optimizer::kMomentum, 10};
  refused(options, {}, ErrorCode::kInvalidArgument, "is float32 momentum 10");
  options = saved->options;
  options.ids = IdKind::kHashed;
  refused(options, {}, ErrorCode::kInvalidArgument, "hashed ids");
  options = saved->options;
  options.rows = 499;
  refused(options, {}, ErrorCode::kNoSpace, "has room for 499 rows");
  refused(saved->options, {nullptr, "items", 400, 101}, ErrorCode::kInvalidArgument,
          "not among them");
  refused(saved->options, {nullptr, "nobody"}, ErrorCode::kNotFound, "no table nobody");
  refused(users->options, {nullptr, "users", 0, 10}, ErrorCode::kInvalidArgument, "as a whole");
  options = users->options;
  options.rows = 100;
  refused(options, {}, ErrorCode::kNoSpace, "has room for 100 rows");

  const auto twice = fresh(saved->options);
  auto result = restore({{twice.get(), "items"}, {twice.get(), "items", 0, 5, 100}});
  ASSERT_FALSE(result);
  EXPECT_NE(std::string(result.error().text()).find("two parts fill its row 100"),
            std::string::npos);
  options = saved->options;
  options.rows = 1000;
  const auto mixed = fresh(options);
  result = restore({{mixed.get(), "items"}, {mixed.get(), "older", 0, 500, 500}});
  ASSERT_FALSE(result);
  EXPECT_NE(std::string(result.error().text()).find("cannot be put together"), std::string::npos);
  // A table with hashed ids that has rows already.
  result = restore({{users->table.get(), "users"}});
  ASSERT_FALSE(result);
  EXPECT_EQ(result.error().code(), ErrorCode::kConflict);
  expectSame(rowsOf(users->table.get()), users->rows());
  // Announced batches.
  const int64_t id = 3;
  const auto batch = saved->table->prefetch({&id, 1});
  ASSERT_TRUE(batch);
  result = restore({{saved->table.get()}});
  ASSERT_FALSE(result);
  EXPECT_EQ(result.error().code(), ErrorCode::kConflict);
  saved->table->finished(*batch);
  EXPECT_TRUE(restore({{saved->table.get()}}));
}

TEST_F(RestoreTest, TablesInUseGoBackToTheirCheckpoint) {
  for (const Place place : {Place::kLocal, Place::kDirect, Place::kRemote}) {
    TemporaryDirectory directory;
    Places places(place);
    Trained trained(places, trainedTable(IdKind::kDense, kAdagrad), workers_);
    EmbeddingTable* const table = trained.table.get();
    for (uint64_t step = 0; step < 8; ++step) trained.step(step);
    ASSERT_TRUE(takeCheckpoint(table, directory.path(), CheckpointKind::kFull));
    const RowMap wanted = trained.rows();
    for (uint64_t step = 8; step < 16; ++step) trained.step(step);
    const auto restored = restoreTables(directory.path(), {&table, 1}, workers_);
    ASSERT_TRUE(restored) << restored.error().text();
    EXPECT_EQ(table->counts().steps, 8u);
    expectSame(rowsOf(table), wanted);
  }
}

/// Threads fill requests to a memory server side by side, and what they leave unfinished must not
/// come after what a later file of the checkpoint says of the same row.
TEST(RestoreFar, WhatALaterFileSaysStays) {
  Places far(Place::kRemote);
  Workers workers(1, 0);
  TableOptions options = trainedTable(IdKind::kDense, kAdagrad, 20'000);
  options.dram = Bytes(32 * kMiB);  // so that requests are of many rows
  const auto table = far.table(options, workers);
  const size_t row_bytes = options.format.rowBytes();
  const std::vector<std::byte> old(options.rows * row_bytes, std::byte{1});
  const std::vector<std::byte> later(options.rows * row_bytes, std::byte{2});
  for (int round = 0; round < 15; ++round) {
    auto restore = TableRestore::begin(*table);
    ASSERT_TRUE(restore) << restore.error().text();
    TableRestore& to = **restore;
    to.start();
    std::atomic<bool> done{false};
    std::atomic<uint64_t> calls{0};
    std::thread beside([&] {
      for (RowNumber row = 0; !done; row = (row + 1) % 200, ++calls) {
        EXPECT_TRUE(to.put(row, 1, old.data()));
      }
    });
    EXPECT_TRUE(to.put(200, options.rows - 200, old.data()));
    for (const uint64_t before = calls; calls < before + 10;) std::this_thread::yield();
    done = true;
    beside.join();
    ASSERT_TRUE(to.settle());
    ASSERT_TRUE(to.put(0, options.rows, later.data()));
    ASSERT_TRUE(to.finish({{}, RowBits(), {}}, 1, 0));
    restore->reset();
    std::vector<std::byte> wanted(options.format.stride());
    std::fill_n(wanted.begin(), row_bytes, std::byte{2});
    for (const auto& [id, bytes] : rowsOf(table.get())) ASSERT_EQ(bytes, wanted) << "row " << id;
  }
}

// For serving, and for another optimizer: the rows are the same, state and steps begin anew, as if
// they had been written there.
TEST(RestoreWeights, TakesNoStateWhateverTheOptimizers) {
  Workers workers(2, 0);
  for (const Place place : {Place::kLocal, Place::kDirect, Place::kRemote}) {
    for (const IdKind ids : {IdKind::kDense, IdKind::kHashed}) {
      for (const ElementType type : {ElementType::kFloat32, ElementType::kInt8}) {
        SCOPED_TRACE(placeName(place));
        TemporaryDirectory directory;
        Places places(place), local(Place::kLocal);
        Trained saved(places, trainedTable(ids, {type, Optimizer::kAdam, 7}, 600), workers);
        for (uint64_t step = 0; step < 5; ++step) saved.step(step);
        EmbeddingTable* const table = saved.table.get();
        ASSERT_TRUE(takeCheckpoint(table, directory.path(), CheckpointKind::kFull));
        saved.step(5);
        ASSERT_TRUE(takeCheckpoint(table, directory.path(), CheckpointKind::kIncremental));
        std::vector<int64_t> of;
        for (const auto& [id, bytes] : saved.rows()) of.push_back(id);
        std::vector<float> rows(of.size() * 7), read(rows.size());
        ASSERT_TRUE(table->readRows(of, rows.data()));
        for (const Optimizer optimizer : {Optimizer::kSgd, Optimizer::kAdagrad}) {
          const TableOptions options = trainedTable(ids, {type, optimizer, 7}, 600);
          const auto served = places.table(options, workers);
          const auto twin = local.table(options, workers);
          EmbeddingTable* const to = served.get();
          EXPECT_EQ(restoreTables(directory.path(), {&to, 1}, workers).error().code(),
                    ErrorCode::kInvalidArgument);
          const auto restored =
              restoreTables(directory.path(), {&to, 1}, workers, 0, Restored::kWeights);
          ASSERT_TRUE(restored) << restored.error().text();
          EXPECT_EQ(served->counts().steps, 0u);
          ASSERT_EQ(served->rows(), of.size());
          ASSERT_TRUE(served->readRows(of, read.data()));
          ASSERT_EQ(read, rows);
          // What training makes of it tells what state there is. (Rows of int8 that are written are
          // rounded anew: those are left out.)
          EXPECT_EQ(
              takeCheckpoint(to, directory.path(), CheckpointKind::kIncremental).error().code(),
              ErrorCode::kConflict);
          if (type == ElementType::kInt8) continue;
          ASSERT_TRUE(twin->writeRows(of, rows.data()));
          std::vector<int64_t> offsets(of.size() + 1);
          for (size_t i = 0; i < offsets.size(); ++i) offsets[i] = static_cast<int64_t>(i);
          const Batch batch{of, offsets};
          const EmbeddingTable::UpdateCall calls[] = {{to, batch, rows.data(), 7},
                                                      {twin.get(), batch, rows.data(), 7}};
          ASSERT_TRUE(EmbeddingTable::updates(calls, workers));
          std::vector<float> wanted(rows.size());
          ASSERT_TRUE(served->readRows(of, read.data()));
          ASSERT_TRUE(twin->readRows(of, wanted.data()));
          ASSERT_EQ(read, wanted);
        }
      }
    }
  }
}

TEST_F(RestoreTest, AnEarlierCheckpointCanBeNamed) {
  const auto saved = trained("items", IdKind::kDense, 500);
  save({saved->table.get()});
  const RowMap wanted = saved->rows();
  saved->step(7);
  ASSERT_TRUE(takeCheckpoint(saved->table.get(), directory_.path(), CheckpointKind::kIncremental));
  EmbeddingTable* const table = saved->table.get();
  ASSERT_TRUE(restoreTables(directory_.path(), {&table, 1}, workers_, 1));
  expectSame(rowsOf(table), wanted);
  const auto next = takeCheckpoint(table, directory_.path(), CheckpointKind::kIncremental);
  ASSERT_FALSE(next) << "changes do not count from the newest one";
  const auto missing = restoreTables(directory_.path(), {&table, 1}, workers_, 9);
  ASSERT_FALSE(missing);
  EXPECT_EQ(missing.error().code(), ErrorCode::kNotFound);
  EXPECT_EQ(restoreTables("/nowhere", {&table, 1}, workers_).error().code(), ErrorCode::kNotFound);
}

}  // namespace
}  // namespace tidepool
