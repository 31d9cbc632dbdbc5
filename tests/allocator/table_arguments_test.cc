// SPDX-License-Identifier: Apache-2.0
// What the C API's tables say to wrong arguments: a precise error for each, the table untouched.
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "allocator/include/tidepool/tidepool.hpp"
#include "tests/allocator/tables_fixture.h"

namespace tidepool {
namespace {

bool says(const char* part) { return strstr(tidepool_error_text(), part) != nullptr; }
#define EXPECT_REFUSED(call, part)                                     \
  EXPECT_EQ(call, TIDEPOOL_INVALID_ARGUMENT) << tidepool_error_text(); \
  EXPECT_TRUE(says(part)) << tidepool_error_text()

class TableArguments : public testing::TestWithParam<FarMemory> {
 protected:
  TableArguments()
      : test_(TestContext::open(GetParam(), Bytes(32 * kMiB), Bytes(32 * kMiB))),
        table_(makeTable(test_.context, tableParams("items"))) {
    EXPECT_EQ(lookUp(table_, ids_, offsets_, out_), TIDEPOOL_OK);
    before_ = tableStats(table_);
    row_ = rowOf(1);
  }
  ~TableArguments() override {
    // Nothing of all that was refused has left a trace.
    const tidepool_table_stats after = tableStats(table_);
    EXPECT_EQ(after.lookups, before_.lookups);
    EXPECT_EQ(after.steps, before_.steps);
    EXPECT_EQ(after.prefetched, before_.prefetched);
    EXPECT_EQ(rowOf(1), row_);
    EXPECT_EQ(tidepool_table_close(table_), TIDEPOOL_OK) << tidepool_error_text();
  }
  std::vector<float> rowOf(int64_t id) {
    std::vector<float> row(kDim);
    EXPECT_EQ(tidepool_table_read_rows(table_, &id, 1, row.data(), row.size()), TIDEPOOL_OK);
    return row;
  }
  /// Both a look-up and a step with these bags.
  void refused(const tidepool_bags& bags, const char* part) {
    float* const out = out_.data();
    const float* const gradients = out_.data();
    const size_t floats = out_.size();
    EXPECT_REFUSED(tidepool_tables_lookup(&bags, 1, &out, &floats), part);
    EXPECT_REFUSED(tidepool_tables_update(&bags, 1, &gradients, &floats), part);
  }

  TestContext test_;
  tidepool_table* const table_;
  const std::vector<int64_t> ids_{1, 2, 3}, offsets_{0, 1, 3};
  std::vector<float> out_ = std::vector<float>(2 * kDim, -7);
  std::vector<float> row_;
  tidepool_table_stats before_{};
};

TEST_P(TableArguments, OfBatches) {
  const tidepool_bags good = bagsOf(table_, ids_, offsets_);
  tidepool_bags bags = good;
  bags.ids = nullptr;
  refused(bags, "ids is NULL");
  bags = good;
  bags.offsets = nullptr;
  refused(bags, "offsets is NULL");
  bags = good;
  bags.bags = SIZE_MAX;
  refused(bags, "bags are too many");
  bags = good;
  bags.ids_count = 2;
  refused(bags, "the last offset is 3");
  bags = good;
  bags.ids_count = SIZE_MAX / 2;
  refused(bags, "too many");
  bags = good;
  const std::vector<float> weights{1, 1, 1};
  bags.weights = weights.data();
  refused(bags, "0 weights for 3 ids");
  bags.weights = nullptr;
  bags.weights_count = 3;
  refused(bags, "3 weights for 3 ids");
  bags = good;
  bags.pooling = 2;
  refused(bags, "2 is no tidepool_pooling");
  bags = good;
  bags.flags = 2;
  refused(bags, "flags 2 are none of this call");
  bags = good;
  bags.struct_size = 8;
  refused(bags, "struct_size of the calls is 8");
  bags = good;
  bags.table = nullptr;
  refused(bags, "call 0: table is NULL");
  const std::vector<int64_t> falling{0, 2, 1}, late{1, 2, 3};
  bags = good;
  bags.offsets = falling.data();
  refused(bags, "offsets[2] is 1");
  bags.offsets = late.data();
  refused(bags, "must begin with 0");
  for (const int64_t id :
       {int64_t{-1}, static_cast<int64_t>(kRows), std::numeric_limits<int64_t>::min()}) {
    const std::vector<int64_t> wrong{1, id, 3};
    bags = good;
    bags.ids = wrong.data();
    refused(bags, ("ids[1] is " + std::to_string(id)).c_str());
  }
  EXPECT_EQ(out_[0], lookUp(table_, {}, {0, 0, 0}, out_) == TIDEPOOL_OK ? 0.0f : -1.0f);
  before_ = tableStats(table_);
}

TEST(TableArgumentsOfTheCppHeader, AreInTheErrorText) {
  auto context = api::Context::open("dram:64M,far:cxl:64M");
  ASSERT_TRUE(context) << context.failure().text();
  ASSERT_TRUE(api::setTablesBudget(*context, 4 << 20));
  auto table = api::Table::make(*context, {.name = "users", .rows = 100, .dim = 8});
  ASSERT_TRUE(table) << table.failure().text();
  std::vector<float> out(8);
  const std::vector<int64_t> ids{1}, none;
  EXPECT_REFUSED(tidepool_table_create(nullptr, nullptr, nullptr), "");  // an earlier error
  const auto looked_up = api::lookUp({{*table, ids, none, out}});
  ASSERT_FALSE(looked_up);
  EXPECT_EQ(looked_up.failure().status(), TIDEPOOL_INVALID_ARGUMENT);
  EXPECT_EQ(looked_up.failure().text(), tidepool_error_text());
  EXPECT_TRUE(says("users")) << tidepool_error_text();
  EXPECT_TRUE(says("offsets")) << tidepool_error_text();
  struct alignas(64) Wide {
    char bytes[64];
  };
  auto heap = context->makeHeap();
  ASSERT_TRUE(heap) << heap.failure().text();
  const auto much = heap->zeroedSpan<Wide>(SIZE_MAX / 8);
  ASSERT_FALSE(much);
  EXPECT_EQ(much.failure().text(), tidepool_error_text());
  EXPECT_EQ(much.failure().status(), tidepool_error_status());
}

TEST_P(TableArguments, OfCalls) {
  const tidepool_bags bags = bagsOf(table_, ids_, offsets_);
  float* const out = out_.data();
  size_t floats = out_.size();
  EXPECT_EQ(tidepool_tables_lookup(nullptr, 0, nullptr, nullptr), TIDEPOOL_OK);
  EXPECT_REFUSED(tidepool_tables_lookup(nullptr, 1, &out, &floats), "calls is NULL");
  EXPECT_REFUSED(tidepool_tables_lookup(&bags, 1, nullptr, &floats), "outs is NULL");
  EXPECT_REFUSED(tidepool_tables_lookup(&bags, 1, &out, nullptr), "floats is NULL");
  float* const nothing = nullptr;
  EXPECT_REFUSED(tidepool_tables_lookup(&bags, 1, &nothing, &floats), "outs is NULL");
  for (const size_t wrong : {floats - 1, floats + 1, size_t{0}, SIZE_MAX}) {
    EXPECT_REFUSED(tidepool_tables_lookup(&bags, 1, &out, &wrong),
                   ("outs has " + std::to_string(wrong) + " floats").c_str());
  }
  // The second of two is wrong: the first is not done either.
  tidepool_bags two[] = {bags, bags};
  two[1].pooling = 9;
  float* const outs[] = {out, out};
  const size_t both[] = {floats, floats};
  EXPECT_REFUSED(tidepool_tables_lookup(two, 2, outs, both), "9 is no");
  two[1] = bags;
  two[1].struct_size = sizeof bags + 8;
  EXPECT_REFUSED(tidepool_tables_lookup(two, 2, outs, both), "struct_size of call 1");
}

TEST_P(TableArguments, ThatOverlap) {
  // Ids that would become results while they are still read.
  std::vector<int64_t> memory(64, 1);
  tidepool_bags bags = bagsOf(table_, ids_, offsets_);
  bags.ids = memory.data();
  float* const out = reinterpret_cast<float*>(memory.data() + 1);
  const size_t floats = out_.size();
  EXPECT_REFUSED(tidepool_tables_lookup(&bags, 1, &out, &floats), "is that of out 0, too");
  EXPECT_REFUSED(tidepool_table_read_rows(table_, memory.data(), 2, out, 2 * kDim),
                 "is that of out, too");
  EXPECT_EQ(memory[1], 1);
}

TEST_P(TableArguments, OfRowsAndTokens) {
  std::vector<float> rows(2 * kDim);
  const std::vector<int64_t> ids{1, 2};
  EXPECT_REFUSED(tidepool_table_read_rows(table_, nullptr, 2, rows.data(), rows.size()),
                 "ids is NULL");
  EXPECT_REFUSED(tidepool_table_read_rows(table_, ids.data(), 2, nullptr, rows.size()),
                 "out is NULL");
  EXPECT_REFUSED(tidepool_table_read_rows(table_, ids.data(), 2, rows.data(), 7),
                 "out has 7 floats");
  EXPECT_REFUSED(tidepool_table_write_rows(table_, ids.data(), 2, rows.data(), 7),
                 "in has 7 floats");
  EXPECT_REFUSED(tidepool_table_write_rows(table_, ids.data(), SIZE_MAX, rows.data(), 7),
                 "too many");
  const std::vector<int64_t> wrong{1, -5};
  EXPECT_REFUSED(tidepool_table_write_rows(table_, wrong.data(), 2, rows.data(), rows.size()),
                 "ids[1] is -5");
  EXPECT_REFUSED(tidepool_table_gather_rows(table_, wrong.data(), 2, rows.data(), rows.size()),
                 "ids[1] is -5");
  EXPECT_REFUSED(tidepool_table_scatter_rows(table_, ids.data(), 2, rows.data(), 7),
                 "in has 7 floats");
  uint64_t token = 77;
  EXPECT_REFUSED(tidepool_table_prefetch(table_, wrong.data(), 2, &token), "ids[1] is -5");
  EXPECT_REFUSED(tidepool_table_prefetch(table_, nullptr, 2, &token), "ids is NULL");
  EXPECT_REFUSED(tidepool_table_prefetch(table_, ids.data(), 2, nullptr), "token is NULL");
  EXPECT_EQ(token, 77u);
  EXPECT_REFUSED(tidepool_table_finish(table_, 0), "0 is no token");
  EXPECT_REFUSED(tidepool_table_finish(table_, 1), "1 is no token");
  tidepool_rates rates = TIDEPOOL_RATES_INIT;
  rates.beta2 = std::nanf("");
  EXPECT_REFUSED(tidepool_table_set_rates(table_, &rates), "beta2 is not a finite number");
  EXPECT_REFUSED(tidepool_table_set_rates(table_, nullptr), "rates is NULL");
  EXPECT_REFUSED(tidepool_table_get_stats(table_, nullptr), "out is NULL");
  int64_t listed[4];
  size_t count = 0;
  EXPECT_REFUSED(tidepool_table_list_ids(table_, 0, listed, 4, nullptr), "count is NULL");
  EXPECT_REFUSED(tidepool_table_list_ids(table_, 0, nullptr, 4, &count), "ids is NULL");
  EXPECT_EQ(tidepool_table_list_ids(table_, 0, listed, 4, &count), TIDEPOOL_UNSUPPORTED);
  EXPECT_REFUSED(tidepool_table_remove_ids(table_, nullptr, 4, nullptr), "ids is NULL");
  EXPECT_EQ(tidepool_table_remove_ids(table_, ids.data(), 1, nullptr), TIDEPOOL_UNSUPPORTED);
  tidepool_expiry expiry = TIDEPOOL_EXPIRY_INIT;
  EXPECT_REFUSED(tidepool_table_expire(table_, nullptr, nullptr), "expiry is NULL");
  EXPECT_EQ(tidepool_table_expire(table_, &expiry, nullptr), TIDEPOOL_UNSUPPORTED);
  expiry.struct_size = 0;
  EXPECT_REFUSED(tidepool_table_expire(table_, &expiry, nullptr), "struct_size is 0");
  tidepool_table_stats stats{};
  EXPECT_REFUSED(tidepool_table_get_stats(table_, &stats), "struct_size is 0");
}

TEST_P(TableArguments, OfTablesToBe) {
  const auto wrong = [&](tidepool_table_params params, const char* part) {
    tidepool_table* table = nullptr;
    EXPECT_REFUSED(tidepool_table_create(test_.context, &params, &table), part);
    EXPECT_EQ(table, nullptr);
  };
  const tidepool_table_params good = tableParams("other");
  tidepool_table_params params = good;
  params.name = nullptr;
  wrong(params, "name is NULL");
  params.name = "";
  wrong(params, "name is NULL or empty");
  params = good;
  params.track = 4;
  wrong(params, "track is 4");
  params = good;
  params.id_kind = TIDEPOOL_HASHED;
  params.admit_after = 256;
  wrong(params, "up to 255");
  params = good;
  params.admit_after = 2;
  wrong(params, "its ids are dense");
  params = good;
  params.track = TIDEPOOL_TRACK_USES;
  wrong(params, "its ids are dense");
  params = good;
  params.rows = 0;
  wrong(params, "0 rows");
  params.rows = UINT64_MAX;
  wrong(params, "rows; from 1 to");
  params = good;
  params.dim = 0;
  wrong(params, "0 elements");
  params.dim = 4097;
  wrong(params, "4097 elements");
  params = good;
  params.element = 4;
  wrong(params, "4 is no tidepool_element");
  params = good;
  params.optimizer = -1;
  wrong(params, "-1 is no tidepool_optimizer");
  params = good;
  params.id_kind = 2;
  wrong(params, "2 is no tidepool_id_kind");
  params = good;
  params.initializer = 3;
  wrong(params, "3 is no tidepool_initializer");
  params = good;
  params.init_second = std::numeric_limits<float>::infinity();
  wrong(params, "not finite");
  params = good;
  params.struct_size = 4;
  wrong(params, "struct_size is 4");
  if (GetParam() != FarMemory::kNone) {
    params = good;
    params.dram_bytes = 100;
    wrong(params, "give it");
  }
  tidepool_table* table = nullptr;
  params = good;
  params.tier = "tape";
  EXPECT_EQ(tidepool_table_create(test_.context, &params, &table), TIDEPOOL_NOT_FOUND);
  EXPECT_TRUE(says("'tape'")) << tidepool_error_text();
  params.tier = "9";
  EXPECT_EQ(tidepool_table_create(test_.context, &params, &table), TIDEPOOL_NOT_FOUND);
  EXPECT_REFUSED(tidepool_table_create(nullptr, &good, &table), "context is NULL");
  EXPECT_REFUSED(tidepool_table_create(test_.context, nullptr, &table), "params is NULL");
  EXPECT_REFUSED(tidepool_table_create(test_.context, &good, nullptr), "out is NULL");
  EXPECT_REFUSED(tidepool_tables_set_budget(test_.context, 0), "0 bytes");
  EXPECT_EQ(table, nullptr);
}

TEST_P(TableArguments, OfCheckpoints) {
  tidepool_checkpoint* checkpoint = nullptr;
  tidepool_table* const twice[] = {table_, table_};
  tidepool_table* const none = nullptr;
  EXPECT_REFUSED(tidepool_checkpoint_start(nullptr, 1, "x", nullptr, &checkpoint),
                 "tables is NULL");
  EXPECT_REFUSED(tidepool_checkpoint_start(&table_, 0, "x", nullptr, &checkpoint), "none");
  EXPECT_REFUSED(tidepool_checkpoint_start(&none, 1, "x", nullptr, &checkpoint), "tables[0]");
  EXPECT_REFUSED(tidepool_checkpoint_start(twice, 2, "x", nullptr, &checkpoint), "there twice");
  EXPECT_REFUSED(tidepool_checkpoint_start(&table_, 1, nullptr, nullptr, &checkpoint), "directory");
  EXPECT_REFUSED(tidepool_checkpoint_start(&table_, 1, "x", nullptr, nullptr), "out is NULL");
  tidepool_checkpoint_params params = TIDEPOOL_CHECKPOINT_PARAMS_INIT;
  params.kind = 5;
  EXPECT_REFUSED(tidepool_checkpoint_start(&table_, 1, "x", &params, &checkpoint), "5 is no");
  EXPECT_EQ(tidepool_tables_restore(&table_, 1, "/nonexistent", 0, nullptr), TIDEPOOL_NOT_FOUND);
  EXPECT_EQ(tidepool_checkpoint_verify("/nonexistent", 0, nullptr), TIDEPOOL_NOT_FOUND);
  EXPECT_REFUSED(tidepool_checkpoint_verify(nullptr, 0, nullptr), "directory is NULL");
  EXPECT_REFUSED(tidepool_checkpoint_wait(nullptr, nullptr), "checkpoint is NULL");
  EXPECT_REFUSED(tidepool_checkpoint_progress(nullptr, nullptr), "checkpoint is NULL");
  EXPECT_REFUSED(tidepool_checkpoint_cancel(nullptr), "checkpoint is NULL");
  tidepool_checkpoint_free(nullptr);
  EXPECT_EQ(checkpoint, nullptr);
  EXPECT_EQ(infoOf(test_.context).users, 1u);
}

TEST_P(TableArguments, OfTablesThatAreClosedOrNone) {
  tidepool_table* const closed = makeTable(test_.context, tableParams("closed"));
  ASSERT_OK(tidepool_table_close(closed));
  int something = 0;
  auto* const wild = reinterpret_cast<tidepool_table*>(&something);
  const int64_t id = 1;
  uint64_t token = 0;
  tidepool_checkpoint* checkpoint = nullptr;
  tidepool_table_stats stats{};
  stats.struct_size = sizeof stats;
  const tidepool_rates rates = TIDEPOOL_RATES_INIT;
  for (tidepool_table* const gone : {closed, wild}) {
    EXPECT_EQ(tidepool_table_close(gone), TIDEPOOL_CLOSED);
    EXPECT_EQ(lookUp(gone, ids_, offsets_, out_), TIDEPOOL_CLOSED);
    EXPECT_EQ(update(gone, ids_, offsets_, out_), TIDEPOOL_CLOSED);
    EXPECT_EQ(tidepool_table_read_rows(gone, &id, 1, out_.data(), kDim), TIDEPOOL_CLOSED);
    EXPECT_EQ(tidepool_table_write_rows(gone, &id, 1, out_.data(), kDim), TIDEPOOL_CLOSED);
    EXPECT_EQ(tidepool_table_gather_rows(gone, &id, 1, out_.data(), kDim), TIDEPOOL_CLOSED);
    EXPECT_EQ(tidepool_table_scatter_rows(gone, &id, 1, out_.data(), kDim), TIDEPOOL_CLOSED);
    EXPECT_EQ(tidepool_table_prefetch(gone, &id, 1, &token), TIDEPOOL_CLOSED);
    EXPECT_EQ(tidepool_table_finish(gone, 1), TIDEPOOL_CLOSED);
    EXPECT_EQ(tidepool_table_stop_prefetch(gone), TIDEPOOL_CLOSED);
    EXPECT_EQ(tidepool_table_set_rates(gone, &rates), TIDEPOOL_CLOSED);
    EXPECT_EQ(tidepool_table_get_stats(gone, &stats), TIDEPOOL_CLOSED);
    EXPECT_EQ(tidepool_checkpoint_start(&gone, 1, "x", nullptr, &checkpoint), TIDEPOOL_CLOSED);
    EXPECT_EQ(tidepool_tables_restore(&gone, 1, "x", 0, nullptr), TIDEPOOL_CLOSED);
  }
  EXPECT_REFUSED(tidepool_table_close(nullptr), "table is NULL");
}

TEST_P(TableArguments, OfDistinctIdsMustBeThere) {
  const int64_t ids[] = {3, -1, 3};
  int64_t once[3], positions[3];
  size_t count = 7;
  EXPECT_REFUSED(tidepool_distinct_ids(ids, 3, once, nullptr, positions), "distinct_count is NULL");
  EXPECT_REFUSED(tidepool_distinct_ids(nullptr, 3, once, &count, positions), "ids is NULL");
  EXPECT_REFUSED(tidepool_distinct_ids(ids, 3, nullptr, &count, positions), "distinct is NULL");
  EXPECT_REFUSED(tidepool_distinct_ids(ids, 3, once, &count, nullptr), "positions is NULL");
  EXPECT_REFUSED(tidepool_distinct_ids(ids, size_t{1} << 32, once, &count, positions),
                 "too many for one call");
  ASSERT_EQ(tidepool_distinct_ids(nullptr, 0, nullptr, &count, nullptr), TIDEPOOL_OK);
  EXPECT_EQ(count, 0u);
  ASSERT_EQ(tidepool_distinct_ids(ids, 3, once, &count, positions), TIDEPOOL_OK);
  EXPECT_EQ(count, 2u);
  EXPECT_EQ(once[1], -1) << "no row has it: last";
}

INSTANTIATE_TEST_SUITE_P(All, TableArguments,
                         testing::Values(FarMemory::kNone, FarMemory::kCxl, FarMemory::kRemote),
                         farName);

TEST(TablesBesideTiersTheyCannotUse, AreInOthers) {
  tidepool_context* const context = TestContext::openWith("dram:32M,space:64G,far:numa:0");
  tidepool_table_params params = tableParams("items");
  tidepool_table* table = nullptr;
  EXPECT_EQ(tidepool_table_create(context, &params, &table), TIDEPOOL_UNSUPPORTED);
  EXPECT_TRUE(says("all the memory this machine has")) << tidepool_error_text();
  EXPECT_EQ(infoOf(context).charged_bytes, 0u);
  params.tier = "local";
  table = makeTable(context, params);
  EXPECT_EQ(tidepool_table_close(table), TIDEPOOL_OK);
  EXPECT_EQ(tidepool_close(context), TIDEPOOL_OK) << tidepool_error_text();
}

TEST(TablesWithoutABudget, SayHowMuchTheyMayHave) {
  tidepool_context* const context = TestContext::openWith("space:64G,far:cxl:32M");
  tidepool_table_params params = tableParams("items");
  tidepool_table* table = nullptr;
  EXPECT_REFUSED(tidepool_table_create(context, &params, &table), "tidepool_tables_set_budget");
  EXPECT_EQ(tidepool_tables_set_budget(context, kMiB), TIDEPOOL_OK) << tidepool_error_text();
  table = makeTable(context, params);
  EXPECT_LE(tableStats(table).dram_budget, kMiB);
  EXPECT_EQ(tidepool_table_close(table), TIDEPOOL_OK);
  EXPECT_EQ(tidepool_close(context), TIDEPOOL_OK) << tidepool_error_text();
}

}  // namespace
}  // namespace tidepool
