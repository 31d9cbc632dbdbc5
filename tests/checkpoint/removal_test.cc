// SPDX-License-Identifier: Apache-2.0
// Checkpoints of tables from which ids are removed, full ones and incremental ones, taken while
// nothing happens and while training, removing and inserting go on: each restores exactly the ids,
// rows and optimizer's state of its moment, into any tier, and what is restored goes on as the
// model does.
#include <gtest/gtest.h>

#include "tests/checkpoint/checkpoint_fixture.h"

namespace tidepool {
namespace {

constexpr Place kPlaces[] = {Place::kLocal, Place::kDirect, Place::kRemote, Place::kFabric,
                             Place::kFabricRows};

TableOptions hashedTable() {
  TableOptions options =
      trainedTable(IdKind::kHashed, {ElementType::kFloat32, Optimizer::kAdagrad, 8}, 900);
  options.tracked = Tracked::kBoth;
  options.dram = DramPlan::forSlots(options, TierKind::kFetch, 90);
  return options;
}

/// Removes about a share of the ids that there are, the same from both.
void removeSome(Trained& trained, std::mt19937_64& random, unsigned one_in) {
  std::vector<int64_t> ids;
  for (const auto& [id, bytes] : trained.model.all()) {
    if (random() % one_in == 0) ids.push_back(id);
  }
  for (const int64_t id : ids) trained.model.remove(id);
  const auto removed = trained.table->removeIds(ids);
  ASSERT_TRUE(removed) << removed.error().text();
  ASSERT_EQ(*removed, ids.size());
}

/// What was used little of late goes from both.
void expireSome(Trained& trained) {
  for (const Expiry expiry : {Expiry{4, 0}, Expiry{2, 2}}) {
    const size_t wanted = trained.model.expire(expiry);
    const auto removed = trained.table->expire(expiry);
    ASSERT_TRUE(removed) << removed.error().text();
    ASSERT_EQ(*removed, wanted);
  }
}

void expectAsModel(Trained& trained) {
  const uint32_t dim = trained.options.format.dim;
  ASSERT_EQ(trained.table->rows(), trained.model.rows());
  std::vector<int64_t> ids;
  for (const auto& [id, bytes] : trained.model.all()) ids.push_back(id);
  std::vector<float> read(ids.size() * dim);
  const Status status = trained.table->readRows(ids, read.data());
  ASSERT_TRUE(status) << status.error().text();
  for (size_t i = 0; i < ids.size(); ++i) {
    const std::vector<float> wanted = trained.model.read(ids[i]);
    ASSERT_EQ(memcmp(wanted.data(), &read[i * dim], dim * sizeof(float)), 0) << ids[i];
  }
}

Status save(Trained& trained, const std::string& path, CheckpointKind kind) {
  const auto manifest = takeCheckpoint(trained.table.get(), path, kind);
  return manifest ? Status() : Status(tl::unexpected(manifest.error()));
}

Status restore(Trained& trained, const std::string& path, uint64_t number = 0) {
  EmbeddingTable* const tables[] = {trained.table.get()};
  const auto manifest = restoreTables(path, tables, trained.workers, number);
  return manifest ? Status() : Status(tl::unexpected(manifest.error()));
}

void expectWhole(const std::string& path, Workers& workers) {
  const auto report = verifyCheckpoint(path, workers, 0);
  ASSERT_TRUE(report) << report.error().text();
  for (const std::string& problem : report->problems) ADD_FAILURE() << problem;
}

// Full, and ten that follow it, with ids going and coming in between; each is restored elsewhere,
// trained on there, and compared; and one more follows from there.
TEST(RemovalCheckpoints, RestoreWhatWasLeft) {
  for (size_t place = 0; place < std::size(kPlaces); ++place) {
    SCOPED_TRACE(placeName(kPlaces[place]));
    TemporaryDirectory directory;
    const std::string path = directory.path();
    Workers workers(2, 0);
    Places places(kPlaces[place]), others(kPlaces[(place + 1) % std::size(kPlaces)]);
    Trained trained(places, hashedTable(), workers);
    std::mt19937_64 random(place);
    uint64_t number = 0;
    for (int round = 0; round < 8; ++round) {
      for (int i = 0; i < 4; ++i) ASSERT_NO_FATAL_FAILURE(trained.step(number++));
      if (round > 0) {
        ASSERT_NO_FATAL_FAILURE(removeSome(trained, random, round % 3 + 1));
      }
      if (round % 2 == 0) {
        ASSERT_NO_FATAL_FAILURE(trained.step(number++));
      }
      const Status saved =
          save(trained, path, round == 0 ? CheckpointKind::kFull : CheckpointKind::kIncremental);
      ASSERT_TRUE(saved) << saved.error().text();
      ASSERT_NO_FATAL_FAILURE(expectWhole(path, workers));
      Trained other(others, hashedTable(), workers);
      other.model = trained.model;
      const Status restored = restore(other, path);
      ASSERT_TRUE(restored) << restored.error().text();
      ASSERT_NO_FATAL_FAILURE(expectAsModel(other));
      ASSERT_NO_FATAL_FAILURE(expireSome(other));  // by uses that were saved
      ASSERT_NO_FATAL_FAILURE(removeSome(other, random, 2));
      for (uint64_t i = 0; i < 3; ++i) ASSERT_NO_FATAL_FAILURE(other.step(5000 + i));
      ASSERT_NO_FATAL_FAILURE(expectAsModel(other));
      if (round == 5) {  // from here on it is the other one that goes on
        ASSERT_TRUE(save(other, path, CheckpointKind::kIncremental));
        Trained third(places, hashedTable(), workers);
        third.model = other.model;
        ASSERT_TRUE(restore(third, path));
        ASSERT_NO_FATAL_FAILURE(expectAsModel(third));
        ASSERT_TRUE(save(trained, path, CheckpointKind::kFull));
      }
    }
  }
}

/// A snapshot that is read some rows at a time, with calls on the table in between.
class SlowReader {
 public:
  SlowReader(Trained& trained, SavedRows which, CheckpointId base)
      : row_bytes_(trained.options.format.rowBytes()),
        stride_(trained.options.format.stride()),
        copies_(10'000, Bytes(4 * row_bytes_)),
        scanned_(2 * TableSnapshot::kBlocks, Bytes(4 * row_bytes_)) {
    EmbeddingTable* const tables[] = {trained.table.get()};
    auto snapshots = TableSnapshot::begin(tables, which, base, copies_, copied_);
    EXPECT_TRUE(snapshots) << snapshots.error().text();
    snapshot_ = std::move(snapshots->front());
  }
  /// False after the last ones.
  bool next() {
    RowBlock* blocks[TableSnapshot::kBlocks];
    for (RowBlock*& block : blocks) block = scanned_.take();
    const auto more = snapshot_->next(blocks);
    EXPECT_TRUE(more) << more.error().text();
    for (RowBlock* block : blocks) keep(block);
    return more && *more;
  }
  /// What it was of, whole.
  void finish(CheckpointId id) {
    snapshot_->finishCopies();
    copied_.close();
    while (RowBlock* const block = copied_.pop()) keep(block);
    EXPECT_FALSE(snapshot_->copiesLost());
    for (bool more = true; more;) {
      RowBlock* const block = scanned_.take();
      more = snapshot_->nextRemoved(*block);
      EXPECT_TRUE(block->removed);
      removed_.insert(block->rows.begin(), block->rows.end());
      scanned_.giveBack(block);
    }
    snapshot_->commit(id);
  }
  const RowMap& rows() const { return rows_; }
  const std::set<RowNumber>& removed() const { return removed_; }
  const std::map<RowNumber, int64_t>& ids() const { return ids_; }

 private:
  void keep(RowBlock* block) {
    ASSERT_EQ(block->ids.size(), block->rows.size());
    for (size_t i = 0; i < block->rows.size(); ++i) {
      std::vector<std::byte> bytes(stride_);
      std::copy_n(block->bytes + i * row_bytes_, row_bytes_, bytes.begin());
      const auto id = static_cast<int64_t>(block->ids[i]);
      EXPECT_TRUE(rows_.emplace(id, bytes).second) << id << " twice";
      EXPECT_TRUE(ids_.emplace(block->rows[i], id).second) << block->rows[i] << " twice";
    }
    block->pool->giveBack(block);
  }

  const uint32_t row_bytes_, stride_;
  RowBlockPool copies_, scanned_;
  RowBlockQueue copied_;
  std::unique_ptr<TableSnapshot> snapshot_;
  RowMap rows_;
  std::map<RowNumber, int64_t> ids_;
  std::set<RowNumber> removed_;
};

// Most rows are not read yet when their ids go and others get them. What an incremental one says,
// rows and removed rows, makes of the one before what the table was.
TEST(RemovalCheckpoints, ReadRowsAsTheyWereWhileIdsComeAndGo) {
  for (const Place place : kPlaces) {
    SCOPED_TRACE(placeName(place));
    Workers workers(2, 0);
    Places places(place);
    Trained trained(places, hashedTable(), workers);
    std::mt19937_64 random(static_cast<uint64_t>(place) + 11);
    uint64_t number = 0;
    std::map<RowNumber, int64_t> ids;  // by row, as of the checkpoint before
    RowMap rows;
    for (CheckpointId id = 1; id < 7; ++id) {
      for (int i = 0; i < 4; ++i) ASSERT_NO_FATAL_FAILURE(trained.step(number++));
      ASSERT_NO_FATAL_FAILURE(removeSome(trained, random, 3));
      if (id % 2 == 0) {
        ASSERT_NO_FATAL_FAILURE(trained.step(number++, 3));
      }
      const RowMap moment = trained.rows();
      const bool full = id == 1;
      SlowReader reader(trained, full ? SavedRows::kAll : SavedRows::kChanged, full ? 0 : id - 1);
      do {
        ASSERT_NO_FATAL_FAILURE(removeSome(trained, random, 5));
        ASSERT_NO_FATAL_FAILURE(trained.step(number++, 4));
      } while (reader.next());
      reader.finish(id);
      if (full) {
        EXPECT_TRUE(reader.removed().empty());
        expectSame(reader.rows(), moment);
      }
      for (const RowNumber row : reader.removed()) {
        ASSERT_FALSE(reader.ids().contains(row));
        ids.erase(row);
      }
      for (const auto& [row, its] : reader.ids()) ids[row] = its;
      std::set<int64_t> left;
      for (const auto& [row, its] : ids) ASSERT_TRUE(left.insert(its).second) << its;
      for (const auto& [its, bytes] : reader.rows()) rows[its] = bytes;
      std::erase_if(rows, [&](const auto& row) { return !left.contains(row.first); });
      ASSERT_NO_FATAL_FAILURE(expectSame(rows, moment));
      ASSERT_NO_FATAL_FAILURE(expectAsModel(trained));
    }
  }
}

TEST(RemovalCheckpoints, HaveTheRowsOfTheirMomentWhileIdsComeAndGo) {
  for (const Place place : kPlaces) {
    for (const CheckpointKind kind : {CheckpointKind::kFull, CheckpointKind::kIncremental}) {
      SCOPED_TRACE(placeName(place));
      TemporaryDirectory directory;
      const std::string path = directory.path();
      Workers workers(2, 0);
      Places places(place);
      Trained trained(places, hashedTable(), workers);
      std::mt19937_64 random(static_cast<uint64_t>(place));
      uint64_t number = 0;
      for (int i = 0; i < 10; ++i) ASSERT_NO_FATAL_FAILURE(trained.step(number++));
      ASSERT_NO_FATAL_FAILURE(removeSome(trained, random, 3));
      if (kind == CheckpointKind::kIncremental) {
        ASSERT_TRUE(save(trained, path, CheckpointKind::kFull));
        ASSERT_NO_FATAL_FAILURE(trained.step(number++));
        ASSERT_NO_FATAL_FAILURE(removeSome(trained, random, 3));
      }
      const TableModel moment = trained.model;
      EmbeddingTable* const tables[] = {trained.table.get()};
      auto writer = CheckpointWriter::start(tables, path, kind, {});
      ASSERT_TRUE(writer) << writer.error().text();
      do {
        ASSERT_NO_FATAL_FAILURE(removeSome(trained, random, 4));
        ASSERT_NO_FATAL_FAILURE(trained.step(number++));
      } while (!(*writer)->progress().done);
      ASSERT_TRUE((*writer)->wait());
      ASSERT_NO_FATAL_FAILURE(expectAsModel(trained));
      ASSERT_NO_FATAL_FAILURE(expectWhole(path, workers));
      Trained other(places, hashedTable(), workers);
      other.model = moment;
      const Status restored = restore(other, path);
      ASSERT_TRUE(restored) << restored.error().text();
      ASSERT_NO_FATAL_FAILURE(expectAsModel(other));
      ASSERT_NO_FATAL_FAILURE(expireSome(other));
      for (uint64_t i = 0; i < 3; ++i) ASSERT_NO_FATAL_FAILURE(other.step(5000 + i));
      ASSERT_NO_FATAL_FAILURE(expectAsModel(other));
    }
  }
}

// Where what is tracked differs: what the checkpoint does not have counts from it.
TEST(RemovalCheckpoints, UsesThatWereNotSavedCountFromTheRestore) {
  constexpr Tracked kAll[] = {Tracked::kNothing, Tracked::kLastUse, Tracked::kUses, Tracked::kBoth};
  Workers workers(2, 0);
  Places places(Place::kLocal);
  for (const Tracked saved : kAll) {
    TemporaryDirectory directory;
    TableOptions options = hashedTable();
    options.tracked = saved;
    Trained trained(places, options, workers);
    for (uint64_t i = 0; i < 5; ++i) ASSERT_NO_FATAL_FAILURE(trained.step(i));
    ASSERT_TRUE(save(trained, directory.path(), CheckpointKind::kFull));
    for (const Tracked tracked : kAll) {
      SCOPED_TRACE(std::to_string(static_cast<int>(saved)) + " to " +
                   std::to_string(static_cast<int>(tracked)));
      options.tracked = tracked;
      Trained other(places, options, workers);
      other.model = trained.model;
      ASSERT_TRUE(restore(other, directory.path()));
      ASSERT_NO_FATAL_FAILURE(expectAsModel(other));
      if (tracks(tracked, Tracked::kUses)) {
        const Expiry rare{0, 2};
        const size_t wanted =
            tracks(saved, Tracked::kUses) ? other.model.expire(rare) : other.model.rows();
        EXPECT_EQ(*other.table->expire(rare), wanted);
        continue;
      }
      if (!tracks(tracked, Tracked::kLastUse)) continue;
      const Expiry old{2, 0};
      const size_t wanted = tracks(saved, Tracked::kLastUse) ? other.model.expire(old) : 0;
      EXPECT_EQ(*other.table->expire(old), wanted);
    }
  }
}

}  // namespace
}  // namespace tidepool
