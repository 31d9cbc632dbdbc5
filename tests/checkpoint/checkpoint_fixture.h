// SPDX-License-Identifier: Apache-2.0
// For tests of checkpoints: a directory that goes with the test, tables that train beside the
// model, and a checkpoint's rows read back byte by byte.
#pragma once

#include <gtest/gtest.h>

#include <filesystem>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "allocator/checkpoint/checkpoint_writer.h"
#include "allocator/checkpoint/restore.h"
#include "allocator/checkpoint/row_file_reader.h"
#include "allocator/checkpoint/verify.h"
#include "tests/scratch_folder.h"
#include "tests/table/table_fixture.h"
#include "tests/table/table_model.h"

namespace tidepool {

class TemporaryDirectory {
 public:
  std::string path() const { return folder_ / "checkpoints"; }
  std::set<std::string> files() const {
    std::set<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(path())) {
      names.insert(entry.path().filename());
    }
    return names;
  }

 private:
  const ScratchFolder folder_;
};

using RowMap = std::map<int64_t, std::vector<std::byte>>;

inline TableOptions trainedTable(IdKind ids, RowFormat format, RowNumber rows = 3000) {
  TableOptions options;
  options.name = "items";
  options.rows = rows;
  options.format = format;
  options.ids = ids;
  options.initializer = {Initializer::Kind::kUniform, -0.1f, 0.1f, 42};
  options.step.learning_rate = 0.05f;
  options.step.momentum = 0.9f;
  options.dram = DramPlan::forSlots(options, TierKind::kFetch, std::max<uint64_t>(rows / 10, 70));
  return options;
}

/// A table and the model of it, trained with the same batches.
struct Trained {
  Trained(Places& places, const TableOptions& table_options, Workers& table_workers)
      : options(table_options),
        workers(table_workers),
        table(places.table(table_options, table_workers)),
        model(table_options) {}

  /// A step that depends on its number alone.
  void step(uint64_t number, size_t bags = 12) {
    std::mt19937_64 random(number * 1000 + 17);
    RandomBatch batch(random, options.rows, bags, 20, options.format.dim);
    if (options.ids == IdKind::kHashed) {
      for (int64_t& id : batch.ids) {
        id = static_cast<int64_t>(static_cast<uint64_t>(id) * 0x9E3779B97F4A7C15ull);
      }
    }
    const Batch view = batch.view(Pooling::kSum, number % 2 == 1);
    std::vector<float> out(batch.gradients.size());
    const EmbeddingTable::BagCall bag{table.get(), view, out.data(), options.format.dim};
    Status status = EmbeddingTable::bags({&bag, 1}, workers);
    ASSERT_TRUE(status) << status.error().text();
    const EmbeddingTable::UpdateCall update{table.get(), view, batch.gradients.data(),
                                            options.format.dim};
    status = EmbeddingTable::updates({&update, 1}, workers);
    ASSERT_TRUE(status) << status.error().text();
    model.bag(view, out.data());  // hashed ids come into being at look-ups, too
    model.update(view, batch.gradients.data());
  }
  /// All rows as they must be now; of dense ids those that nobody used, too.
  RowMap rows() {
    if (options.ids == IdKind::kDense) {
      for (RowNumber id = 0; id < options.rows; ++id) (void)model.read(static_cast<int64_t>(id));
    }
    return model.all();
  }

  TableOptions options;
  Workers& workers;
  std::unique_ptr<EmbeddingTable> table;
  TableModel model;
};

/// The rows of a table in a checkpoint by id, padded to the stride.
inline RowMap savedRows(const std::string& path, const Manifest& manifest,
                        const std::string& name) {
  RowMap rows;
  auto directory = CheckpointDirectory::open(path);
  EXPECT_TRUE(directory) << directory.error().text();
  const ManifestTable* const table = manifest.find(name);
  EXPECT_NE(table, nullptr);
  Workers workers(2, 0);
  std::mutex mutex;
  auto pieces = RowFileReader::pieces();
  EXPECT_TRUE(pieces) << pieces.error().text();
  for (const ManifestFile& file : table->files) {
    auto reader = RowFileReader::open(*directory, *table, file);
    EXPECT_TRUE(reader) << reader.error().text();
    std::set<RowNumber> once;
    const Status status = (*reader)->forEachBlock(workers, *pieces, [&](const RowBlockView& block) {
      std::lock_guard<std::mutex> lock(mutex);
      size_t at = 0;
      for (size_t i = 0; i < block.range_count; ++i) {
        for (uint64_t k = 0; k < block.range(i).count; ++k, ++at) {
          const RowNumber row = block.range(i).first + k;
          EXPECT_TRUE(once.insert(row).second) << "row " << row << " twice in one file";
          const std::byte* const bytes = block.bytes + at * table->format.rowBytes();
          std::vector<std::byte> padded(table->format.stride());
          std::copy(bytes, bytes + table->format.rowBytes(), padded.begin());
          rows[static_cast<int64_t>(block.ids == nullptr ? row : block.id(at))] = padded;
        }
      }
      return Status();
    });
    EXPECT_TRUE(status) << status.error().text();
    EXPECT_EQ(once.size(), file.rows);
  }
  return rows;
}

inline void expectSame(const RowMap& got, const RowMap& wanted) {
  ASSERT_EQ(got.size(), wanted.size());
  for (const auto& [id, bytes] : wanted) {
    const auto found = got.find(id);
    ASSERT_NE(found, got.end()) << "id " << id;
    ASSERT_EQ(found->second, bytes) << "id " << id;
  }
}

/// A checkpoint from beginning to end.
inline Result<Manifest> takeCheckpoint(std::span<EmbeddingTable* const> tables,
                                       const std::string& path, CheckpointKind kind,
                                       const CheckpointOptions& options = {}) {
  auto writer = CheckpointWriter::start(tables, path, kind, options);
  if (!writer) return tl::unexpected(writer.error());
  return (*writer)->wait();
}
inline Result<Manifest> takeCheckpoint(EmbeddingTable* table, const std::string& path,
                                       CheckpointKind kind, const CheckpointOptions& options = {}) {
  return takeCheckpoint({&table, 1}, path, kind, options);
}

/// What a table holds, optimizer state and all: by way of a checkpoint of its own.
inline RowMap rowsOf(EmbeddingTable* table) {
  TemporaryDirectory directory;
  CheckpointOptions aside;
  aside.after = ChangesAfter::kCountAsBefore;
  auto manifest = takeCheckpoint(table, directory.path(), CheckpointKind::kFull, aside);
  EXPECT_TRUE(manifest) << manifest.error().text();
  return savedRows(directory.path(), *manifest, table->options().name);
}

}  // namespace tidepool
