// SPDX-License-Identifier: Apache-2.0
// Checkpoints while training goes on, in every kind of tier: each holds exactly the rows and the
// optimizer's state of its batch boundary, and can be restored into any other kind.
#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "tests/checkpoint/checkpoint_fixture.h"

namespace tidepool {
namespace {

struct Case {
  Place place;
  IdKind ids;
  RowFormat format;
  size_t threads;
};

std::string caseName(const testing::TestParamInfo<Case>& info) {
  static const char* const kTypes[] = {"fp32", "fp16", "bf16", "int8"};
  const Case& c = info.param;
  return std::string(placeName(c.place)) + (c.ids == IdKind::kDense ? "_dense_" : "_hashed_") +
         kTypes[static_cast<int>(c.format.type)] + "_" + std::to_string(c.threads) + "t";
}

class TrainingCase : public testing::TestWithParam<Case> {
 protected:
  TrainingCase()
      : places_(GetParam().place),
        workers_(GetParam().threads, 0),
        trained_(places_, trainedTable(GetParam().ids, GetParam().format), workers_) {}

  void train(int steps) {
    for (int i = 0; i < steps && !HasFatalFailure(); ++i) trained_.step(step_++);
  }
  /// A checkpoint that is under way for some steps at least, and the rows at its boundary.
  void checkpoint(CheckpointKind kind, int meanwhile) {
    CheckpointOptions slow;
    slow.copies = Bytes(512 * kKiB);
    slow.per_second = Bytes(4 * kMiB);
    EmbeddingTable* const table = trained_.table.get();
    // Nobody trains now: these are the boundary's. Training goes on at once after the start.
    const RowMap wanted = trained_.rows();
    auto writer = CheckpointWriter::start({&table, 1}, directory_.path(), kind, slow);
    ASSERT_TRUE(writer) << writer.error().text();
    const uint64_t step = step_;
    train(meanwhile);
    auto manifest = (*writer)->wait();
    ASSERT_TRUE(manifest) << manifest.error().text();
    copied_ += (*writer)->progress().rows_copied;
    EXPECT_EQ(manifest->tables.at(0).step, step);
    expectSame(savedRows(directory_.path(), *manifest, "items"), wanted);
    wanted_[manifest->number] = wanted;
    steps_[manifest->number] = step;
  }
  void expectRestored(Place place, uint64_t number) {
    Places places(place);
    Trained other(places, trained_.options, workers_);
    EmbeddingTable* const table = other.table.get();
    auto manifest = restoreTables(directory_.path(), {&table, 1}, workers_, number);
    ASSERT_TRUE(manifest) << manifest.error().text();
    EXPECT_EQ(table->counts().steps, steps_[number]);
    expectSame(rowsOf(table), wanted_[number]);
  }

  TemporaryDirectory directory_;
  Places places_;
  Workers workers_;
  Trained trained_;
  uint64_t step_ = 0, copied_ = 0;
  std::map<uint64_t, RowMap> wanted_;
  std::map<uint64_t, uint64_t> steps_;
};

TEST_P(TrainingCase, EachCheckpointIsItsBoundary) {
  train(10);
  checkpoint(CheckpointKind::kFull, 8);
  checkpoint(CheckpointKind::kIncremental, 8);
  train(3);
  checkpoint(CheckpointKind::kIncremental, 0);
  checkpoint(CheckpointKind::kIncremental, 0);  // of nothing
  checkpoint(CheckpointKind::kFull, 5);
  // Whether training changes rows before they are saved is up to the machine: then once more.
  for (int more = 0; copied_ == 0 && more < 100; ++more) checkpoint(CheckpointKind::kFull, 8);
  ASSERT_FALSE(HasFatalFailure());
  EXPECT_GT(copied_, 0u) << "training never met the checkpoint";
  for (const Place place : {Place::kLocal, Place::kDirect, Place::kRemote}) {
    expectRestored(place, 1);
    expectRestored(place, 4);
    expectRestored(place, 5);
  }
}

TEST_P(TrainingCase, TrainingGoesOnFromACheckpoint) {
  train(12);
  EmbeddingTable* const table = trained_.table.get();
  ASSERT_TRUE(takeCheckpoint(table, directory_.path(), CheckpointKind::kFull));
  train(6);
  ASSERT_TRUE(takeCheckpoint(table, directory_.path(), CheckpointKind::kIncremental));
  Places places(Place::kDirect);
  Trained other(places, trained_.options, workers_);
  EmbeddingTable* const resumed = other.table.get();
  ASSERT_TRUE(restoreTables(directory_.path(), {&resumed, 1}, workers_));
  // Its changes count from what was restored.
  for (uint64_t step = step_; step < step_ + 9; ++step) other.step(step);
  auto more = takeCheckpoint(resumed, directory_.path(), CheckpointKind::kIncremental);
  ASSERT_TRUE(more) << more.error().text();
  train(9);
  expectSame(rowsOf(resumed), trained_.rows());
  expectSame(savedRows(directory_.path(), *more, "items"), trained_.rows());
  EXPECT_EQ(more->tables.at(0).files.size(), 3u);
}

TEST_P(TrainingCase, RowsThatAreWrittenAndReadAheadAreSavedToo) {
  EmbeddingTable* const table = trained_.table.get();
  train(5);
  ASSERT_TRUE(takeCheckpoint(table, directory_.path(), CheckpointKind::kFull));
  std::vector<int64_t> ids;
  for (const auto& [id, bytes] : trained_.rows()) {
    if (ids.size() < 100) ids.push_back(id);
  }
  auto batch = table->prefetch(ids);
  ASSERT_TRUE(batch);
  const std::vector<float> values(ids.size() * trained_.options.format.dim, 0.25f);
  ASSERT_TRUE(table->writeRows(std::span(ids).first(40), values.data()));
  for (size_t i = 0; i < 40; ++i) trained_.model.write(ids[i], values.data());
  auto manifest = takeCheckpoint(table, directory_.path(), CheckpointKind::kIncremental);
  ASSERT_TRUE(manifest) << manifest.error().text();
  EXPECT_EQ(manifest->tables.at(0).files.back().rows, 40u);
  expectSame(savedRows(directory_.path(), *manifest, "items"), trained_.rows());
  table->finished(*batch);
}

constexpr RowFormat kAdam{ElementType::kFloat32, Optimizer::kAdam, 24};
constexpr RowFormat kInt8{ElementType::kInt8, Optimizer::kRowwiseAdagrad, 22};
constexpr RowFormat kHalf{ElementType::kFloat16, Optimizer::kMomentum, 16};

INSTANTIATE_TEST_SUITE_P(Tiers, TrainingCase,
                         testing::Values(Case{Place::kLocal, IdKind::kDense, kAdam, 2},
                                         Case{Place::kLocal, IdKind::kHashed, kInt8, 1},
                                         Case{Place::kDirect, IdKind::kDense, kInt8, 1},
                                         Case{Place::kDirect, IdKind::kHashed, kAdam, 2},
                                         Case{Place::kRemote, IdKind::kDense, kHalf, 2},
                                         Case{Place::kRemote, IdKind::kHashed, kAdam, 1}),
                         caseName);

// Two tables that every call uses together, and a checkpoint that begins at any moment.
TEST(Together, TablesAreSavedAtTheSameStep) {
  TemporaryDirectory directory;
  Places near(Place::kLocal), far(Place::kRemote);
  Workers workers(2, 0);
  TableOptions first = trainedTable(IdKind::kDense, kAdam), second = first;
  first.name = "first";
  second.name = "second";
  const auto a = near.table(first, workers), b = far.table(second, workers);
  std::atomic<bool> stop{false};
  std::thread trainer([&] {
    for (uint64_t step = 0; !stop; ++step) {
      std::mt19937_64 random(step);
      const RandomBatch batch(random, first.rows, 20, 20, first.format.dim);
      const Batch view = batch.view(Pooling::kSum, false);
      const EmbeddingTable::UpdateCall calls[] = {
          {a.get(), view, batch.gradients.data(), first.format.dim},
          {b.get(), view, batch.gradients.data(), first.format.dim}};
      ASSERT_TRUE(EmbeddingTable::updates(calls, workers));
    }
  });
  EmbeddingTable* const tables[] = {a.get(), b.get()};
  for (int i = 0; i < 8; ++i) {
    auto manifest =
        takeCheckpoint(tables, directory.path(),
                       i % 3 == 0 ? CheckpointKind::kFull : CheckpointKind::kIncremental);
    ASSERT_TRUE(manifest) << manifest.error().text();
    EXPECT_EQ(manifest->tables.at(0).step, manifest->tables.at(1).step);
    expectSame(savedRows(directory.path(), *manifest, "first"),
               savedRows(directory.path(), *manifest, "second"));
  }
  stop = true;
  trainer.join();
}

}  // namespace
}  // namespace tidepool
