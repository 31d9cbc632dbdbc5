// SPDX-License-Identifier: Apache-2.0
// What tables ask a memory server for, request by request: while a table is being made it has more
// memory than the least, so that first values go in large pieces; and overwriting rows reads none.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <numeric>
#include <optional>

#include "allocator/table/shared_budget.h"
#include "tests/table/table_fixture.h"
#include "tests/table/table_model.h"

namespace tidepool {
namespace {

/// Requests for rows of some table.
struct Requests {
  size_t read = 0, written = 0, most_written = 0;  // rows; of one request
  std::function<void()> on_write = [] {};
};

class WatchedChannel final : public RowChannel {
 public:
  WatchedChannel(std::unique_ptr<RowChannel> inner, Requests& requests)
      : inner_(std::move(inner)), requests_(requests) {}
  size_t mostRows() const override { return inner_->mostRows(); }
  const RowArea& area() const override { return inner_->area(); }
  Status submitRead(uint64_t tag, std::span<const uint64_t> rows, std::byte* to) override {
    requests_.read += rows.size();
    return inner_->submitRead(tag, rows, to);
  }
  Status submitWrite(uint64_t tag, std::span<const uint64_t> rows, const std::byte* from) override {
    requests_.written += rows.size();
    requests_.most_written = std::max(requests_.most_written, rows.size());
    requests_.on_write();
    return inner_->submitWrite(tag, rows, from);
  }
  Status flush() override { return inner_->flush(); }
  size_t poll(std::span<FetchCompletion> out) override { return inner_->poll(out); }
  FetchCompletion wait() override { return inner_->wait(); }
  size_t inFlight() const override { return inner_->inFlight(); }
  bool failed() const override { return inner_->failed(); }
  const char* reason() const override { return inner_->reason(); }

 private:
  std::unique_ptr<RowChannel> inner_;
  Requests& requests_;
};

class WatchedStore final : public RowStore {
 public:
  WatchedStore(std::unique_ptr<RowStore> inner, Requests& requests)
      : inner_(std::move(inner)), requests_(requests) {}
  TierKind kind() const override { return inner_->kind(); }
  Result<FrameRun> allocate(Bytes size) override { return inner_->allocate(size); }
  void release(FrameRun run) override { inner_->release(run); }
  std::byte* memory(FrameRun run) const override { return inner_->memory(run); }
  Result<std::unique_ptr<RowChannel>> openRows(const RowArea& area) override {
    auto channel = inner_->openRows(area);
    if (!channel) return channel;
    return std::make_unique<WatchedChannel>(std::move(*channel), requests_);
  }

 private:
  std::unique_ptr<RowStore> inner_;
  Requests& requests_;
};

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
  std::unique_ptr<RowHome> home(const TableOptions& options) {
    auto home = RowHome::inStore(store_, options.format, options.rows);
    EXPECT_TRUE(home) << home.error().text();
    return std::move(*home);
  }
  Places places_{Place::kRemote};
  Requests requests_;
  WatchedStore store_{places_.tier().rowStore(), requests_};
  Workers workers_{1};
};

// ---- A table that is being made.

class WhileMade : public RowRequests {
 protected:
  /// Makes one more table. What all of them hold meanwhile, at the most.
  Bytes make() {
    requests_ = {};
    Bytes most;
    requests_.on_write = [&] { most = std::max(most, budget_->held()); };
    auto table = budget_->createTable(options_, home(options_), workers_);
    EXPECT_TRUE(table) << table.error().text();
    tables_.push_back(std::move(*table));
    EXPECT_EQ(requests_.written, options_.rows);
    requests_.on_write = [] {};
    return most;
  }
  const TableOptions options_ = optionsFor(8000);
  const Bytes least_ = SharedBudget::leastShare(options_, TierKind::kFetch);
  static constexpr size_t kMany = 64;   // rows in a request
  std::optional<SharedBudget> budget_;  // outlives the tables
  std::vector<std::unique_ptr<EmbeddingTable>> tables_;
};

TEST_F(WhileMade, HasAnEvenShareForItsFirstValues) {
  const Bytes whole(12 * kMiB);
  budget_.emplace(whole);
  EXPECT_EQ(make(), whole);
  EXPECT_GT(requests_.most_written, kMany);
  for (int i = 0; i < 3; ++i) {
    EXPECT_LE(make(), whole) << "the others make room";
    EXPECT_GT(requests_.most_written, kMany);
  }
}

TEST_F(WhileMade, HasNoMoreThanDoesAnyGood) {
  budget_.emplace(Bytes(64 * kMiB));
  EXPECT_EQ(make(), least_ + Bytes(16 * kMiB));
}

TEST_F(WhileMade, HasTheLeastWhereThereIsNoMore) {
  budget_.emplace(least_);
  EXPECT_EQ(make(), least_);
  EXPECT_LT(requests_.most_written, kMany);
}

TEST_F(WhileMade, HasTheLeastWhereManyShare) {
  budget_.emplace(least_ * 65 + Bytes(8 * kMiB));
  const TableOptions small = optionsFor(100);
  for (int i = 0; i < 64; ++i) {
    auto table = budget_->createTable(small, home(small), workers_);
    ASSERT_TRUE(table) << table.error().text();
    tables_.push_back(std::move(*table));
  }
  make();
  EXPECT_LT(requests_.most_written, kMany);
}

// ---- Overwriting rows.

class Overwrite : public RowRequests, public testing::WithParamInterface<IdKind> {};

TEST_P(Overwrite, ReadsNoneOfThemAndTheLaterOneStays) {
  TableOptions options = optionsFor(12'000, GetParam());
  options.dram = EmbeddingTable::dramFor(options, TierKind::kFetch, 1000);
  auto made = EmbeddingTable::create(options, home(options), workers_);
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
  std::iota(values.begin(), values.end(), 1.0f);
  const size_t before = requests_.read;
  ASSERT_TRUE(table.writeRows(ids, values.data()));
  EXPECT_EQ(requests_.read, before);
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
