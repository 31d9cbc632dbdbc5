// SPDX-License-Identifier: Apache-2.0
// A table is held to its local memory: that may grow and shrink while it is in use, and no row is
// lost or stale. Several: shared_budget_test.cc.
#include <cstdio>

#include "tests/table/raw_rows.h"
#include "tests/table/watched_table.h"

namespace tidepool {
namespace {

struct Kind {
  Place place;
  IdKind ids;
};
std::string kindName(const testing::TestParamInfo<Kind>& info) {
  return std::string(placeName(info.param.place)) +
         (info.param.ids == IdKind::kDense ? "_dense" : "_hashed");
}

class Budget : public testing::TestWithParam<Kind> {
 protected:
  Places places_{GetParam().place};
  Workers workers_{2, 0};
};

TEST_P(Budget, GrowsAndShrinksWhileTheTableIsInUse) {
  TableOptions options = optionsFor("items", 3000, GetParam().ids);
  const TierKind kind = kindOf(GetParam().place);
  options.dram = DramPlan::forSlots(options, kind, 3000);  // room to grow again
  Watched items(options, places_.table(options, workers_));
  std::mt19937_64 random(11);
  for (int step = 0; step < 250; ++step) {
    items.act(workers_, random, random());
    if (HasFatalFailure()) return;
    if (step % 3 != 0) continue;
    const Bytes dram = DramPlan::forSlots(options, kind, random() % 3000);
    const Status set = items.table->setDram(dram);
    ASSERT_TRUE(set) << set.error().text();
    if (items.ahead.empty()) {
      EXPECT_EQ(items.table->dram(), dram) << "nothing holds it";
    }
    EXPECT_LE(items.table->counts().dram, items.table->dram());
  }
  while (!items.ahead.empty()) items.useOldest(workers_);
  const Bytes least = DramPlan::least(options, kind);
  ASSERT_TRUE(items.table->setDram(least));
  EXPECT_EQ(items.table->dram(), least);
  EXPECT_LE(items.table->counts().dram, least);
  items.expectAllRows();
  EXPECT_GT(items.table->counts().evictions, 0u);
}

TEST_P(Budget, OfAnnouncedBatchesIsKept) {
  TableOptions options = optionsFor("items", 3000, GetParam().ids);
  const TierKind kind = kindOf(GetParam().place);
  options.dram = DramPlan::forSlots(options, kind, 1500);
  Watched items(options, places_.table(options, workers_));
  std::mt19937_64 random(12);
  for (int i = 0; i < 3; ++i) items.announce(random);
  const Bytes least = DramPlan::least(options, kind);
  ASSERT_TRUE(items.table->setDram(least));
  if (GetParam().place == Place::kRemote) {
    EXPECT_GT(items.table->dram(), least) << "the batches' rows stay";
    const uint64_t fetched = items.table->counts().fetched;
    items.useOldest(workers_);
    EXPECT_EQ(items.table->counts().fetched, fetched);
  }
  while (!items.ahead.empty()) items.useOldest(workers_);
  ASSERT_TRUE(items.table->setDram(least));
  EXPECT_EQ(items.table->dram(), least);
  items.expectAllRows();
}

TEST_P(Budget, IsSharedAnewThoughBatchesAreAlwaysInFlight) {
  if (GetParam().place != Place::kRemote) return;  // no rows wait anywhere else
  TableOptions options = optionsFor("items", 30'000, GetParam().ids);
  options.dram = DramPlan::forSlots(options, TierKind::kFetch, 9000);
  const Bytes much = options.dram;
  std::mt19937_64 random(14);
  Watched other(options, places_.table(options, workers_));
  other.announce(random);
  Watched items(options, places_.table(options, workers_));
  // One that shares nothing has address space for what it was made with.
  ASSERT_TRUE(items.table->setDram(DramPlan::forSlots(options, TierKind::kFetch, 900)));
  items.announce(random);
  for (int round = 0; round < 12; ++round) {
    items.announce(random);
    items.useOldest(workers_);
    if (round == 3) {
      ASSERT_TRUE(items.table->setDram(much));
    }
    ASSERT_FALSE(items.ahead.empty());
  }
  // Slots, and what is known of rows that wait: as if it had been so from the beginning. What is
  // known of hashed ids differs by how many there are.
  if (GetParam().ids == IdKind::kDense) {
    EXPECT_EQ(items.table->counts().metadata, other.table->counts().metadata);
  }
  while (!items.ahead.empty()) items.useOldest(workers_);
  items.expectAllRows();
}

TEST_P(Budget, IsKeptWhateverTheTableDoes) {
  TableOptions options = optionsFor("items", 20'000, GetParam().ids, Optimizer::kAdam);
  const TierKind kind = kindOf(GetParam().place);
  options.dram = DramPlan::forSlots(options, kind, 2000);
  Watched items(options, places_.table(options, workers_));
  std::mt19937_64 random(13);
  for (int step = 0; step < 120; ++step) {
    items.act(workers_, random, random());
    if (HasFatalFailure()) return;
    ASSERT_LE(items.table->counts().dram, options.dram) << "step " << step;
  }
}

TEST_P(Budget, ThatIsTooSmallIsRefusedWithTheOneThatWouldDo) {
  TableOptions options = optionsFor("items", 3000, GetParam().ids);
  const Bytes least = DramPlan::least(options, kindOf(GetParam().place));
  options.dram = least - Bytes(1);
  auto backing = places_.backingStore(options);
  ASSERT_TRUE(backing);
  const auto refused = EmbeddingTable::create(options, std::move(*backing), workers_);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code(), ErrorCode::kInvalidArgument);
  EXPECT_NE(strstr(refused.error().text(), std::to_string(least.value()).c_str()), nullptr)
      << refused.error().text();
  options.dram = least;
  Watched items(options, places_.table(options, workers_));
  const Status smaller = items.table->setDram(Bytes(1000));
  ASSERT_FALSE(smaller);
  EXPECT_EQ(smaller.error().code(), ErrorCode::kInvalidArgument);
  std::mt19937_64 random(14);
  for (int step = 0; step < 40; ++step) {
    items.act(workers_, random, random());
    if (HasFatalFailure()) return;
  }
  items.expectAllRows();
}

TEST_P(Budget, OfTheLeastIsEnoughForACheckpoint) {
  TableOptions options = optionsFor("items", 30'000, GetParam().ids);
  options.dram = DramPlan::least(options, kindOf(GetParam().place));
  Watched items(options, places_.table(options, workers_));
  std::mt19937_64 random(15);
  for (int step = 0; step < 60; ++step) {
    items.act(workers_, random, random());
    if (HasFatalFailure()) return;
    if (step % 20 != 10) continue;
    while (!items.ahead.empty()) items.useOldest(workers_);
    EXPECT_EQ(rawRowsOf(items.table.get()).size(), items.table->rows());
    EXPECT_LE(items.table->counts().dram, options.dram);
  }
  items.expectAllRows();
}

TEST_P(Budget, IsEnoughForTheFirstCheckpointThoughBatchesAreAlwaysAnnounced) {
  const TierKind kind = kindOf(GetParam().place);
  std::mt19937_64 random(16);
  for (const RowNumber rows : {3u, 50u, 300u, 1000u, 20'000u}) {
    TableOptions options = optionsFor("items", rows, GetParam().ids, Optimizer::kAdam);
    const Bytes least = DramPlan::least(options, kind);
    for (const uint64_t more : {0u, 64u, 1000u}) {
      options.dram = least + Bytes(more * (options.format.stride() + 64));
      Watched items(options, places_.table(options, workers_));
      for (int ahead = 0; ahead < 4; ++ahead) items.announce(random);
      EXPECT_EQ(rawRowsOf(items.table.get()).size(), items.table->rows());
      EXPECT_LE(items.table->counts().dram, options.dram) << rows << " rows";
      for (int round = 0; round < 8; ++round) {
        items.useOldest(workers_);
        items.announce(random);
        if (HasFatalFailure()) return;
      }
      EXPECT_EQ(rawRowsOf(items.table.get()).size(), items.table->rows());
      EXPECT_LE(items.table->counts().dram, options.dram) << rows << " rows";
      items.expectAllRows();
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, Budget,
                         testing::Values(Kind{Place::kDirect, IdKind::kDense},
                                         Kind{Place::kDirect, IdKind::kHashed},
                                         Kind{Place::kRemote, IdKind::kDense},
                                         Kind{Place::kRemote, IdKind::kHashed}),
                         kindName);

TEST(BudgetOfSlots, CostsAtMost24BytesARowBesidesTheRow) {
  const RowFormat format{ElementType::kFloat32, Optimizer::kSgd, 16};
  for (const uint64_t slots : {10'000u, 1'000'000u, 100'000'000u}) {
    const Bytes all = RowCache::memoryFor(format, slots);
    EXPECT_LE(all.value() - slots * format.stride(), 24 * slots) << slots;
  }
}

uint64_t residentBytes() {
  unsigned long pages = 0;
  FILE* const file = fopen("/proc/self/statm", "r");
  EXPECT_EQ(fscanf(file, "%*u %lu", &pages), 1);
  fclose(file);
  return pages * kPageSize;
}

TEST(BudgetOfSlots, GoesBackToTheSystem) {
  Places places(Place::kDirect, Bytes(64 * kMiB));
  Workers workers(1);
  TableOptions options = optionsFor("items", 200'000);
  options.format.dim = 32;
  options.dram = DramPlan::forSlots(options, TierKind::kDirect, 150'000);
  auto table = places.table(options, workers);
  std::vector<int64_t> ids;
  for (int64_t id = 0; id < 150'000; ++id) ids.push_back(id);
  const std::vector<int64_t> offsets{0, static_cast<int64_t>(ids.size())};
  std::vector<float> out(options.format.dim);
  const EmbeddingTable::BagCall call{table.get(), {ids, offsets}, out.data(), out.size()};
  ASSERT_TRUE(EmbeddingTable::bags({&call, 1}, workers));
  const uint64_t full = residentBytes();
  const uint64_t held = table->counts().dram.value();
  ASSERT_GT(held, 30 * kMiB);
  ASSERT_TRUE(table->setDram(DramPlan::least(options, TierKind::kDirect)));
  EXPECT_LE(residentBytes() + held * 9 / 10, full);
}

}  // namespace
}  // namespace tidepool
