// SPDX-License-Identifier: Apache-2.0
// What the C++ wrappers of tables pass on: every parameter of the C API can be given, and what is
// removed, expires, waits to be admitted or is restored is so in the table behind them.
#include <tidepool/tidepool.hpp>

#include <algorithm>
#include <array>
#include <vector>

#include "tests/allocator/fixture.h"
#include "tests/scratch_folder.h"

namespace tidepool {
namespace {

using namespace api;

constexpr uint32_t kDim = 4;

class CxxTables : public testing::Test {
 protected:
  static TableParams hashed(const char* name) {
    TableParams params;
    params.name = name;
    params.rows = 1000;
    params.dim = kDim;
    params.ids = TIDEPOOL_HASHED;
    params.dram_bytes = kMiB;
    return params;
  }
  Table make(const TableParams& params) {
    auto table = Table::make(context_, params);
    EXPECT_TRUE(table) << table.failure().text();
    return std::move(*table);
  }
  static void look(const Table& table, std::span<const int64_t> ids) {
    std::vector<int64_t> offsets(ids.size() + 1);
    for (size_t i = 0; i < offsets.size(); ++i) offsets[i] = static_cast<int64_t>(i);
    std::vector<float> rows(ids.size() * kDim);
    const auto looked = lookUp({Lookup{table, ids, offsets, rows}});
    EXPECT_TRUE(looked) << looked.failure().text();
  }
  static void step(const Table& table, int64_t id) {
    const std::array<int64_t, 2> offsets{0, 1};
    const std::array<float, kDim> gradient{1, 1, 1, 1};
    const auto stepped = update({Step{table, std::span(&id, 1), offsets, gradient}});
    EXPECT_TRUE(stepped) << stepped.failure().text();
  }
  static std::vector<int64_t> idsOf(const Table& table) {
    std::vector<int64_t> ids(1000);
    const auto count = table.listIds(0, ids);
    EXPECT_TRUE(count);
    ids.resize(*count);
    std::sort(ids.begin(), ids.end());
    return ids;
  }

  Context context_ = std::move(*Context::open("dram:64M,far:cxl:64M,budget_scope:managed"));
  const ScratchFolder folder_;
};

TEST_F(CxxTables, RemoveIds) {
  Table table = make(hashed("items"));
  const std::array<int64_t, 4> ids{7, -8, 9, 10};
  look(table, ids);
  const std::array<int64_t, 3> gone{-8, 10, 11};
  const auto removed = table.removeIds(gone);
  ASSERT_TRUE(removed) << removed.failure().text();
  EXPECT_EQ(*removed, 2u) << "one of them had no row";
  EXPECT_EQ(idsOf(table), (std::vector<int64_t>{7, 9}));
  EXPECT_EQ(table.stats()->removed, 2u);
}

TEST_F(CxxTables, ExpireByAgeAndByCount) {
  TableParams params = hashed("items");
  params.track = TIDEPOOL_TRACK_LAST_USE | TIDEPOOL_TRACK_USES;
  Table table = make(params);
  for (const int64_t id : {1, 1, 2, 3, 3}) step(table, id);
  tidepool_expiry expiry = TIDEPOOL_EXPIRY_INIT;
  expiry.used_fewer_than = 2;
  auto removed = table.expire(expiry);
  ASSERT_TRUE(removed) << removed.failure().text();
  EXPECT_EQ(*removed, 1u);
  EXPECT_EQ(idsOf(table), (std::vector<int64_t>{1, 3}));
  expiry = TIDEPOOL_EXPIRY_INIT;
  expiry.unused_for = 2;
  removed = table.expire(expiry);
  ASSERT_TRUE(removed) << removed.failure().text();
  EXPECT_EQ(idsOf(table), std::vector<int64_t>{3});
}

TEST_F(CxxTables, AdmitIdsThatComeOften) {
  TableParams params = hashed("items");
  params.admit_after = 3;
  params.remembered_ids = 100;
  Table table = make(params);
  const std::array<int64_t, 2> once{5, 6};
  look(table, once);
  const std::array<int64_t, 2> twice{5, 5};
  look(table, twice);
  EXPECT_EQ(idsOf(table), std::vector<int64_t>{5});
}

TEST_F(CxxTables, RestoreWeightsForServing) {
  TableParams params = hashed("items");
  params.optimizer = TIDEPOOL_ADAM;
  const std::array<int64_t, 2> ids{3, 4};
  std::array<float, 2 * kDim> trained{}, served{};
  {
    Table table = make(params);
    look(table, ids);
    step(table, 3);
    ASSERT_TRUE(table.readRows(ids, trained));
    const std::array<const Table*, 1> tables{&table};
    auto checkpoint = Checkpoint::start(tables, folder_.path());
    ASSERT_TRUE(checkpoint) << checkpoint.failure().text();
    ASSERT_TRUE(checkpoint->wait());
  }
  params.optimizer = TIDEPOOL_SGD;
  Table serving = make(params);
  const std::array<const Table*, 1> tables{&serving};
  const auto whole = Checkpoint::restore(tables, folder_.path());
  ASSERT_FALSE(whole) << "its optimizer is another";
  EXPECT_EQ(whole.failure().status(), TIDEPOOL_INVALID_ARGUMENT);
  const auto weights = Checkpoint::restoreWeights(tables, folder_.path());
  ASSERT_TRUE(weights) << weights.failure().text();
  EXPECT_EQ(*weights, 1u);
  ASSERT_TRUE(serving.readRows(ids, served));
  EXPECT_EQ(served, trained);
  EXPECT_NE(served[0], 0.0f);
  EXPECT_EQ(serving.stats()->steps, 0u) << "they begin anew";
}

TEST_F(CxxTables, Published) {
  Table users = make(hashed("users")), items = make(hashed("items"));
  const std::array<int64_t, 2> ids{5, -6};
  const std::array<float, 2 * kDim> rows{1, 2, 3, 4, 5, 6, 7, 8};
  ASSERT_TRUE(users.writeRows(ids, rows));
  const std::string path = folder_ / "published";
  const Table* const both[] = {&users, &items};
  auto publisher = Publisher::make(both, path, 0640);
  ASSERT_TRUE(publisher) << publisher.failure().text();
  EXPECT_EQ(Published::open(path).failure().status(), TIDEPOOL_NOT_FOUND);
  ASSERT_EQ(*publisher->publish(), 1u);
  const auto published = Published::open(path);
  ASSERT_TRUE(published) << published.failure().text();
  const auto found = published->find("users");
  ASSERT_TRUE(found) << found.failure().text();
  EXPECT_EQ(found->dim, kDim);
  EXPECT_EQ(found->id_kind, TIDEPOOL_HASHED);
  EXPECT_EQ(published->find("others").failure().status(), TIDEPOOL_NOT_FOUND);

  std::array<float, kDim> sum{};
  const std::array<int64_t, 2> offsets{0, 2};
  const auto looked = published->lookUp({PublishedLookup{found->table, ids, offsets, sum}});
  ASSERT_TRUE(looked) << looked.failure().text();
  EXPECT_EQ(*looked, 1u);
  EXPECT_EQ(sum, (std::array<float, kDim>{6, 8, 10, 12}));
  const std::array<float, 2> weights{2, 0};
  ASSERT_TRUE(published->lookUp(
      {PublishedLookup{found->table, ids, offsets, sum, weights, TIDEPOOL_MEAN}}));
  EXPECT_EQ(sum, (std::array<float, kDim>{1, 2, 3, 4}));
  std::array<float, 2 * kDim> read{};
  ASSERT_EQ(*published->readRows(found->table, ids, read), 1u);
  EXPECT_EQ(read, rows);

  ASSERT_TRUE(users.removeIds(std::span(ids).first(1)));
  EXPECT_EQ(users.close().failure().status(), TIDEPOOL_CONFLICT);
  ASSERT_EQ(*publisher->publish(), 2u);
  EXPECT_EQ(published->readRows(found->table, ids, read).failure().status(), TIDEPOOL_NOT_FOUND);
  EXPECT_EQ(published->info()->generation, 2u);
  EXPECT_EQ(published->info()->tables, 2u);
}

}  // namespace
}  // namespace tidepool
