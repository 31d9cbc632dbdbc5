// SPDX-License-Identifier: Apache-2.0
// The C API's embedding tables: look-ups, steps, batches ahead and checkpoints do what the core's
// do, in every kind of tier, and memory is charged to the context's budget and given back.
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <map>
#include <numeric>
#include <random>
#include <set>
#include <vector>

#include "tests/allocator/tables_fixture.h"

namespace tidepool {
namespace {

class Tables : public testing::TestWithParam<FarMemory> {
 protected:
  TestContext test_ = TestContext::open(GetParam(), Bytes(64 * kMiB), Bytes(64 * kMiB));
};

TEST_P(Tables, PoolUpdateReadAndWrite) {
  tidepool_table* const table = makeTable(test_.context, tableParams("items"));
  const std::vector<int64_t> ids{1, 2, 3, 2};
  const std::vector<int64_t> offsets{0, 2, 2, 4};
  std::vector<float> rows(4 * kDim);
  std::iota(rows.begin(), rows.end(), 1.0f);
  // Row 2 is written twice: the later one stays.
  ASSERT_OK(tidepool_table_write_rows(table, ids.data(), 4, rows.data(), rows.size()));
  std::vector<float> out(3 * kDim, -1);
  ASSERT_OK(lookUp(table, ids, offsets, out));
  for (uint32_t i = 0; i < kDim; ++i) {
    EXPECT_EQ(out[i], rows[i] + rows[3 * kDim + i]);
    EXPECT_EQ(out[kDim + i], 0.0f) << "an empty bag";
    EXPECT_EQ(out[2 * kDim + i], rows[2 * kDim + i] + rows[3 * kDim + i]);
  }
  const std::vector<float> gradients(3 * kDim, 1.0f);
  ASSERT_OK(update(table, ids, offsets, gradients));
  std::vector<float> one(kDim);
  ASSERT_OK(tidepool_table_read_rows(table, &ids[1], 1, one.data(), one.size()));
  for (uint32_t i = 0; i < kDim; ++i) {
    EXPECT_FLOAT_EQ(one[i], rows[3 * kDim + i] - 2 * 0.5f) << "two bags have the row, one step";
  }
  const tidepool_table_stats stats = tableStats(table);
  EXPECT_EQ(stats.rows, kRows);
  EXPECT_EQ(stats.steps, 1u);
  EXPECT_GE(stats.lookups, 4u);
  EXPECT_LE(stats.dram_bytes, GetParam() == FarMemory::kNone ? 2 * kMiB : stats.dram_budget);
  ASSERT_OK(tidepool_table_close(table));
}

TEST_P(Tables, GatherAndScatterForAnOptimizerOfTheCallersOwn) {
  tidepool_table* const table = makeTable(test_.context, tableParams("items"));
  std::vector<int64_t> ids(3 * 700);  // more than are found together, and some of them twice
  for (size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<int64_t>(i * 7919 % 1999 % kRows);
  std::vector<float> rows(ids.size() * kDim), again(rows.size()), read(rows.size());
  ASSERT_OK(tidepool_table_gather_rows(table, ids.data(), ids.size(), rows.data(), rows.size()));
  std::map<int64_t, size_t> last;  // of an id that occurs twice the later one stays
  for (size_t i = 0; i < ids.size(); ++i) {
    last[ids[i]] = i;
    for (uint32_t k = 0; k < kDim; ++k) rows[i * kDim + k] += static_cast<float>(i);
  }
  ASSERT_OK(tidepool_table_scatter_rows(table, ids.data(), ids.size(), rows.data(), rows.size()));
  ASSERT_OK(tidepool_table_gather_rows(table, ids.data(), ids.size(), again.data(), again.size()));
  ASSERT_OK(tidepool_table_read_rows(table, ids.data(), ids.size(), read.data(), read.size()));
  EXPECT_EQ(again, read);
  for (size_t i = 0; i < ids.size(); ++i) {
    ASSERT_EQ(again[i * kDim], rows[last[ids[i]] * kDim]) << "id " << ids[i];
  }
  const tidepool_table_stats stats = tableStats(table);
  EXPECT_EQ(stats.lookups, 3 * ids.size()) << "reading a table through is none";
  EXPECT_EQ(stats.steps, 0u);
  ASSERT_OK(tidepool_table_close(table));
}

TEST_P(Tables, OfSeveralKindsGoInOneCall) {
  std::vector<tidepool_table*> tables;
  for (int kind = 0; kind < 4; ++kind) {
    const std::string name = "t" + std::to_string(kind);
    tidepool_table_params params = tableParams(name.c_str());
    params.element = kind;
    params.id_kind = kind % 2 == 0 ? TIDEPOOL_DENSE : TIDEPOOL_HASHED;
    params.tier = kind == 3 ? "local" : nullptr;
    tables.push_back(makeTable(test_.context, params));
  }
  const std::vector<int64_t> ids{5, 6, 7}, offsets{0, 3};
  const std::vector<float> weights{1, 0, 2};
  std::vector<std::vector<float>> outs(4, std::vector<float>(kDim));
  std::vector<tidepool_bags> calls;
  std::vector<float*> places;
  const std::vector<size_t> floats(4, kDim);
  for (size_t i = 0; i < 4; ++i) {
    calls.push_back(bagsOf(tables[i], ids, offsets));
    calls.back().weights = weights.data();
    calls.back().weights_count = weights.size();
    places.push_back(outs[i].data());
  }
  ASSERT_OK(tidepool_tables_lookup(calls.data(), 4, places.data(), floats.data()));
  for (size_t i = 0; i < 4; ++i) {
    std::vector<float> rows(3 * kDim);
    ASSERT_OK(tidepool_table_read_rows(tables[i], ids.data(), 3, rows.data(), rows.size()));
    for (uint32_t k = 0; k < kDim; ++k) {
      EXPECT_FLOAT_EQ(outs[i][k], rows[k] + 2 * rows[2 * kDim + k]) << i;
    }
  }
  for (tidepool_table* table : tables) ASSERT_OK(tidepool_table_close(table));
}

TEST_P(Tables, ReadAhead) {
  tidepool_table* const table = makeTable(test_.context, tableParams("items"));
  const std::vector<int64_t> ids{10, 20, 30}, offsets{0, 3};
  uint64_t token = 0;
  ASSERT_OK(tidepool_table_prefetch(table, ids.data(), ids.size(), &token));
  EXPECT_NE(token, 0u);
  std::vector<float> out(kDim);
  ASSERT_OK(lookUp(table, ids, offsets, out));
  if (GetParam() == FarMemory::kRemote) {
    EXPECT_EQ(tableStats(table).prefetched, 3u);
    EXPECT_EQ(tableStats(table).fetched, 0u);
  }
  EXPECT_EQ(tidepool_table_finish(table, token + 1), TIDEPOOL_INVALID_ARGUMENT);
  ASSERT_OK(tidepool_table_finish(table, token));
  ASSERT_OK(tidepool_table_finish(table, token));
  ASSERT_OK(tidepool_table_stop_prefetch(table));
  ASSERT_OK(tidepool_table_finish(table, token));
  uint64_t later = 0;
  ASSERT_OK(tidepool_table_prefetch(table, ids.data(), ids.size(), &later));
  EXPECT_EQ(later, token + 1);
  ASSERT_OK(tidepool_table_stop_prefetch(table));
  ASSERT_OK(tidepool_table_stop_prefetch(table));
  ASSERT_OK(tidepool_table_close(table));
}

TEST(DistinctIds, AreEachIdOnceInRisingOrderAndWhereItIs) {
  std::mt19937_64 random(3);
  for (const uint64_t most : {1u, 50u, 5000u, 1u << 30}) {
    std::vector<int64_t> ids(3000);
    for (int64_t& id : ids) id = static_cast<int64_t>(random() % most);
    std::vector<int64_t> distinct(ids.size()), positions(ids.size());
    size_t count = 0;
    ASSERT_OK(
        tidepool_distinct_ids(ids.data(), ids.size(), distinct.data(), &count, positions.data()));
    const std::set<int64_t> wanted(ids.begin(), ids.end());
    distinct.resize(count);
    EXPECT_EQ(distinct, std::vector<int64_t>(wanted.begin(), wanted.end()));
    for (size_t i = 0; i < ids.size(); ++i) {
      ASSERT_EQ(distinct.at(static_cast<size_t>(positions[i])), ids[i]) << i;
    }
  }
}

TEST_P(Tables, OfHashedIdsGiveTheRowsOfSomeToOthers) {
  tidepool_table_params params = tableParams("items");
  params.id_kind = TIDEPOOL_HASHED;
  params.rows = 50;
  tidepool_table* const table = makeTable(test_.context, params);
  std::vector<float> rows(50 * kDim, 3.0f), out(kDim), first(kDim);
  const std::vector<int64_t> one{7}, offsets{0, 1};
  ASSERT_OK(lookUp(table, one, offsets, first));
  for (int64_t round = 0; round < 5; ++round) {
    std::vector<int64_t> ids(50);
    std::iota(ids.begin(), ids.end(), round * 1000);
    uint64_t removed = 0;
    ASSERT_OK(tidepool_table_remove_ids(table, one.data(), 1, &removed));
    EXPECT_EQ(removed, 1u);
    ASSERT_OK(tidepool_table_write_rows(table, ids.data(), 50, rows.data(), rows.size()));
    ids.push_back(ids.front());
    ids.push_back(-1);
    ASSERT_OK(tidepool_table_remove_ids(table, ids.data(), ids.size(), &removed));
    EXPECT_EQ(removed, 50u);
    EXPECT_EQ(tableStats(table).rows, 0u);
    ASSERT_OK(tidepool_table_remove_ids(table, ids.data(), ids.size(), &removed));
    EXPECT_EQ(removed, 0u);
    ASSERT_OK(lookUp(table, one, offsets, out));
    EXPECT_EQ(out, first) << "as a new one";
  }
  tidepool_expiry expiry = TIDEPOOL_EXPIRY_INIT;
  expiry.used_fewer_than = 1;
  uint64_t expired = 0;
  EXPECT_EQ(tidepool_table_expire(table, &expiry, &expired), TIDEPOOL_INVALID_ARGUMENT);
  EXPECT_EQ(tableStats(table).removed, 255u);
  EXPECT_EQ(tableStats(table).inserted, 256u);
  ASSERT_OK(tidepool_table_close(table));
}

TEST_P(Tables, ExpireWhatWasUsedLittle) {
  tidepool_table_params params = tableParams("items");
  params.id_kind = TIDEPOOL_HASHED;
  params.rows = 50;
  params.track = TIDEPOOL_TRACK_LAST_USE | TIDEPOOL_TRACK_USES;
  tidepool_table* const table = makeTable(test_.context, params);
  const std::vector<float> gradients(kDim, 1.0f);
  for (const int64_t id : {1, 2, 3, 2, 1, 2}) {
    ASSERT_OK(update(table, {id}, {0, 1}, gradients));
  }
  tidepool_expiry expiry = TIDEPOOL_EXPIRY_INIT;
  uint64_t removed = 0;
  expiry.used_fewer_than = 3;
  expiry.unused_for = 2;
  ASSERT_OK(tidepool_table_expire(table, &expiry, &removed));
  EXPECT_EQ(removed, 1u) << "3";
  expiry.unused_for = 0;
  ASSERT_OK(tidepool_table_expire(table, &expiry, &removed));
  EXPECT_EQ(removed, 1u) << "1";
  EXPECT_EQ(tableStats(table).rows, 1u);
  ASSERT_OK(tidepool_table_close(table));
}

TEST_P(Tables, AreChargedToTheBudgetAndGiveItBack) {
  const auto charged = [&] { return infoOf(test_.context).charged_bytes; };
  ASSERT_EQ(charged(), 0u);
  tidepool_table_params params = tableParams("own");
  params.dram_bytes = kMiB;
  tidepool_table* const own = makeTable(test_.context, params);
  const bool far = GetParam() != FarMemory::kNone;
  EXPECT_EQ(charged(), far ? kMiB : kRows * kDim * sizeof(float));
  EXPECT_EQ(tidepool_close(test_.context), TIDEPOOL_CONFLICT);
  if (far) {
    tidepool_table* const first = makeTable(test_.context, tableParams("first"));
    EXPECT_EQ(charged(), kMiB + 32 * kMiB) << "half of the budget, unless somebody says more";
    ASSERT_OK(tidepool_tables_set_budget(test_.context, 8 * kMiB));
    EXPECT_EQ(charged(), 9 * kMiB);
    tidepool_table* const second = makeTable(test_.context, tableParams("second"));
    EXPECT_EQ(charged(), 9 * kMiB);
    EXPECT_LE(tableStats(first).dram_budget + tableStats(second).dram_budget, 8 * kMiB);
    EXPECT_EQ(tidepool_tables_set_budget(test_.context, 64 * kMiB), TIDEPOOL_NO_SPACE);
    EXPECT_EQ(tidepool_tables_set_budget(test_.context, 1000), TIDEPOOL_NO_SPACE);
    EXPECT_EQ(charged(), 9 * kMiB) << "as it was";
    ASSERT_OK(tidepool_table_close(first));
    ASSERT_OK(tidepool_table_close(second));
    EXPECT_EQ(charged(), kMiB);
    tidepool_table* const third = makeTable(test_.context, tableParams("third"));
    EXPECT_EQ(charged(), 9 * kMiB) << "what was said holds for later tables, too";
    ASSERT_OK(tidepool_table_close(third));
  }
  params.dram_bytes = 64 * kMiB;
  params.rows = far ? kRows : 4 * kMiB;
  tidepool_table* more = nullptr;
  EXPECT_EQ(tidepool_table_create(test_.context, &params, &more), TIDEPOOL_NO_SPACE);
  EXPECT_EQ(more, nullptr);
  ASSERT_OK(tidepool_table_close(own));
  EXPECT_EQ(charged(), 0u);
  EXPECT_EQ(infoOf(test_.context).users, 0u);
}

TEST_P(Tables, AreSavedAndRestored) {
  const std::string directory =
      std::filesystem::temp_directory_path() / ("tables_test." + std::to_string(getpid()));
  tidepool_table_params params = tableParams("items");
  params.optimizer = TIDEPOOL_ADAGRAD;
  tidepool_table* table = makeTable(test_.context, params);
  const std::vector<int64_t> ids{1, 2, 3}, offsets{0, 3};
  const std::vector<float> gradients(kDim, 1.0f);
  tidepool_checkpoint_params kind = TIDEPOOL_CHECKPOINT_PARAMS_INIT;
  for (const tidepool_checkpoint_kind each : {TIDEPOOL_FULL, TIDEPOOL_INCREMENTAL}) {
    kind.kind = each;
    ASSERT_OK(update(table, ids, offsets, gradients));
    tidepool_checkpoint* checkpoint = nullptr;
    ASSERT_OK(tidepool_checkpoint_start(&table, 1, directory.c_str(), &kind, &checkpoint));
    EXPECT_EQ(tidepool_table_close(table), TIDEPOOL_CONFLICT);
    EXPECT_GT(infoOf(test_.context).charged_bytes, 16 * kMiB);
    tidepool_checkpoint_info info{};
    info.struct_size = sizeof info;
    ASSERT_OK(tidepool_checkpoint_wait(checkpoint, &info));
    EXPECT_EQ(info.number, each == TIDEPOOL_FULL ? 1u : 2u);
    EXPECT_EQ(info.rows, each == TIDEPOOL_FULL ? kRows : 3u);
    ASSERT_OK(tidepool_checkpoint_progress(checkpoint, &info));
    EXPECT_EQ(info.complete, 1);
    tidepool_checkpoint_free(checkpoint);
  }
  std::vector<float> wanted(3 * kDim), got(3 * kDim);
  ASSERT_OK(tidepool_table_read_rows(table, ids.data(), 3, wanted.data(), wanted.size()));
  ASSERT_OK(update(table, ids, offsets, gradients));  // which is lost
  ASSERT_OK(tidepool_table_close(table));
  tidepool_checkpoint_info read{};
  read.struct_size = sizeof read;
  ASSERT_OK(tidepool_checkpoint_verify(directory.c_str(), 0, &read));
  EXPECT_EQ(read.number, 2u);
  table = makeTable(test_.context, params);
  uint64_t number = 0;
  ASSERT_OK(tidepool_tables_restore(&table, 1, directory.c_str(), 0, &number));
  EXPECT_EQ(number, 2u);
  EXPECT_EQ(tableStats(table).steps, 2u);
  ASSERT_OK(tidepool_table_read_rows(table, ids.data(), 3, got.data(), got.size()));
  EXPECT_EQ(got, wanted);
  ASSERT_OK(tidepool_table_close(table));
  // A file that is shorter than it should be.
  for (const auto& entry : std::filesystem::directory_iterator(directory)) {
    if (entry.path().filename().string().find("rows") != std::string::npos) {
      std::filesystem::resize_file(entry.path(), entry.file_size() / 2);
    }
  }
  EXPECT_EQ(tidepool_checkpoint_verify(directory.c_str(), 0, &read), TIDEPOOL_CORRUPT);
  EXPECT_STRNE(tidepool_error_text(), "");
  EXPECT_EQ(read.complete, 0);
  std::filesystem::remove_all(directory);
}

INSTANTIATE_TEST_SUITE_P(All, Tables,
                         testing::Values(FarMemory::kNone, FarMemory::kCxl, FarMemory::kRemote),
                         farName);

TEST(TablesAndHeaps, ShareOneFarTier) {
  TestContext test = TestContext::open(FarMemory::kBoth, Bytes(32 * kMiB), Bytes(64 * kMiB));
  tidepool_heap* const heap = test.makeHeap();
  void* const block = tidepool_alloc(heap, 16 * kMiB);
  ASSERT_NE(block, nullptr);
  memset(block, 1, 16 * kMiB);
  for (const char* tier : {"cxl", "remote", "1", "2", "local"}) {
    tidepool_table_params params = tableParams(tier);
    params.tier = tier;
    params.dram_bytes = kMiB;
    tidepool_table* const table = makeTable(test.context, params);
    ASSERT_NE(table, nullptr) << tier;
    ASSERT_OK(tidepool_table_close(table));
  }
  // Heaps and tables have the tiers' memory together: 64 MiB each.
  tidepool_table_params params = tableParams("large");
  params.rows = 48 * kMiB / (kDim * sizeof(float));
  params.dram_bytes = kMiB;
  params.tier = "cxl";
  tidepool_table* const large = makeTable(test.context, params);
  tidepool_table* another = nullptr;
  EXPECT_EQ(tidepool_table_create(test.context, &params, &another), TIDEPOOL_NO_SPACE)
      << tidepool_error_text();
  ASSERT_OK(tidepool_table_close(large));
  ASSERT_OK(tidepool_heap_destroy(heap));
}

}  // namespace
}  // namespace tidepool
