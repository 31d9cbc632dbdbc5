// SPDX-License-Identifier: Apache-2.0
// What tables ask a memory server for: overwriting rows reads none.
#include <gtest/gtest.h>

#include <cstring>
#include <numeric>

#include "tests/table/table_fixture.h"
#include "tests/table/table_model.h"
#include "tests/table/watched_rows.h"

namespace tidepool {
namespace {

TableOptions optionsFor(RowNumber rows, IdKind ids = IdKind::kDense) {
  TableOptions options;
  options.name = "items";
  options.rows = rows;
  options.format = {ElementType::kFloat32, Optimizer::kAdagrad, 16};
  options.ids = ids;
  options.initializer = {Initializer::Kind::kUniform, 0.5f, 1.0f, 3};  // no row is all zeros
  return options;
}

class RowRequests : public testing::Test {
 protected:
  std::unique_ptr<BackingStore> backingStore(const TableOptions& options) {
    auto backing = BackingStore::inStore(store_, options.format, options.rows);
    EXPECT_TRUE(backing) << backing.error().text();
    return std::move(*backing);
  }
  Places places_{Place::kRemote};
  Requests requests_;
  WatchedStore store_{places_.tier().rowStore(), requests_};
  Workers workers_{1};
};

class Overwrite : public RowRequests, public testing::WithParamInterface<IdKind> {};

TEST_P(Overwrite, ReadsNoneOfThemAndTheLaterOneStays) {
  TableOptions options = optionsFor(12'000, GetParam());
  options.dram = DramPlan::forSlots(options, TierKind::kFetch, 1000);
  auto made = EmbeddingTable::create(options, backingStore(options), workers_);
  ASSERT_TRUE(made) << made.error().text();
  EmbeddingTable& table = **made;
  TableModel model(options);
  // Some have a slot, and some of those differ from their homes; some wait for a later batch.
  std::vector<int64_t> hot(800), ids(20'000);
  std::iota(hot.begin(), hot.end(), 0);
  const std::vector<int64_t> offsets{0, static_cast<int64_t>(hot.size())};
  std::vector<float> out(options.format.dim), gradients(options.format.dim, 0.5f);
  for (int step = 0; step < 4; ++step) {
    const EmbeddingTable::BagCall call{&table, {hot, offsets}, out.data(), out.size()};
    ASSERT_TRUE(EmbeddingTable::bags({&call, 1}, workers_));
    const EmbeddingTable::UpdateCall update{&table, {hot, offsets}, gradients.data(), out.size()};
    ASSERT_TRUE(EmbeddingTable::updates({&update, 1}, workers_));
    model.update({hot, offsets}, gradients.data());
  }
  const std::vector<int64_t> later{5000, 5001, 5002};
  const auto batch = table.prefetch(later);
  ASSERT_TRUE(batch) << batch.error().text();
  for (size_t i = 0; i < ids.size(); ++i) {
    ids[i] = static_cast<int64_t>(i * 7919 % options.rows);  // nearly all, and some of them twice
  }
  std::vector<float> values(ids.size() * options.format.dim);
  ASSERT_TRUE(table.writeRows(ids, values.data()));  // there is something that could be read
  std::iota(values.begin(), values.end(), 1.0f);
  const size_t before = requests_.rowsRead();
  ASSERT_TRUE(table.writeRows(ids, values.data()));
  EXPECT_EQ(requests_.rowsRead(), before);
  for (size_t i = 0; i < ids.size(); ++i) {
    model.write(ids[i], values.data() + i * options.format.dim);
  }
  table.finished(*batch);
  for (int64_t id = 0; id < static_cast<int64_t>(options.rows); ++id) {
    ASSERT_TRUE(table.readRows({&id, 1}, out.data()));
    const std::vector<float> wanted = model.read(id);
    ASSERT_EQ(memcmp(out.data(), wanted.data(), out.size() * sizeof(float)), 0) << "row " << id;
  }
}

INSTANTIATE_TEST_SUITE_P(All, Overwrite, testing::Values(IdKind::kDense, IdKind::kHashed));

}  // namespace
}  // namespace tidepool
