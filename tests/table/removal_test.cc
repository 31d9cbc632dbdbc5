// SPDX-License-Identifier: Apache-2.0
// Tables with hashed ids from which ids are removed, in every kind of tier against the model:
// whatever is looked up, trained, written, announced and removed in between, all results are the
// same bit for bit, and the rows of ids that went are those of later ones.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <deque>
#include <thread>

#include "tests/table/table_fixture.h"
#include "tests/table/table_model.h"

namespace tidepool {
namespace {

constexpr Place kPlaces[] = {Place::kLocal, Place::kDirect, Place::kRemote, Place::kFabric,
                             Place::kFabricRows};

TableOptions hashedTable(RowNumber rows, Optimizer optimizer = Optimizer::kAdagrad) {
  TableOptions options;
  options.rows = rows;
  options.format = {ElementType::kFloat32, optimizer, 8};
  options.ids = IdKind::kHashed;
  options.initializer = {Initializer::Kind::kUniform, -0.1f, 0.1f, 42};
  options.step.learning_rate = 0.05f;
  options.tracked = Tracked::kBoth;
  options.dram = DramPlan::forSlots(options, TierKind::kFetch, 70);
  return options;
}

/// A table beside its model, with random calls on both.
class Pair {
 public:
  Pair(Places& places, const TableOptions& options, Workers& workers, uint64_t seed)
      : workers_(workers),
        table_(places.table(options, workers)),
        model_(options),
        random_(seed),
        dim_(options.format.dim) {}

  void step() {
    switch (random_() % 7) {
      case 6:
        return expire();
      case 0:
        return remove();
      case 1:
        return write();
      case 2:
        return announce();
      case 3:
        return use(Absent::kInitial);
      default:
        return use(Absent::kInsert);
    }
  }
  void expectSame() {
    ASSERT_EQ(table_->rows(), model_.rows());
    std::vector<int64_t> ids;
    for (const auto& [id, bytes] : model_.all()) ids.push_back(id);
    std::vector<int64_t> known(ids.size() + 1);
    known.resize(table_->knownIds(0, known));
    std::sort(known.begin(), known.end());
    ASSERT_EQ(known, ids);
    std::vector<float> read(ids.size() * dim_);
    const Status status = table_->readRows(ids, read.data());
    ASSERT_TRUE(status) << status.error().text();
    for (size_t i = 0; i < ids.size(); ++i) {
      const std::vector<float> wanted = model_.read(ids[i]);
      ASSERT_EQ(memcmp(wanted.data(), &read[i * dim_], dim_ * sizeof(float)), 0) << ids[i];
    }
  }
  EmbeddingTable& table() { return *table_; }
  uint64_t removed() const { return removed_; }

 private:
  bool admits() const { return table_->options().admit_after > 1; }
  static constexpr uint64_t kIds = 400;
  RandomBatch batch() {
    RandomBatch batch(random_, kIds, 6, 12, dim_);
    for (int64_t& id : batch.ids) id = spread(id);
    return batch;
  }
  static int64_t spread(int64_t id) {
    return static_cast<int64_t>(static_cast<uint64_t>(id) * 0x9E3779B97F4A7C15ull);
  }
  void remove() {
    std::vector<int64_t> ids;
    for (uint64_t i = random_() % 60; i > 0; --i) {
      ids.push_back(spread(static_cast<int64_t>(random_() % kIds)));
      if (random_() % 4 == 0) ids.push_back(ids[random_() % ids.size()]);  // twice
    }
    uint64_t wanted = 0;
    for (const int64_t id : ids) wanted += model_.remove(id) ? 1 : 0;
    const auto removed = table_->removeIds(ids);
    ASSERT_TRUE(removed) << removed.error().text();
    ASSERT_EQ(*removed, wanted);
    removed_ += wanted;
    ASSERT_EQ(table_->counts().removed, removed_);
  }
  void expire() {
    const Expiry expiries[] = {{6, 0}, {3, 2}, {0, 1}};  // not what the last steps brought, mostly
    const Expiry expiry = expiries[random_() % std::size(expiries)];
    const uint64_t wanted = model_.expire(expiry);
    const auto removed = table_->expire(expiry);
    ASSERT_TRUE(removed) << removed.error().text();
    ASSERT_EQ(*removed, wanted);
    removed_ += wanted;
  }
  void write() {
    std::vector<int64_t> ids;
    std::vector<float> values;
    for (int i = 0; i < 5; ++i) {
      ids.push_back(spread(static_cast<int64_t>(random_() % kIds)));
      for (uint32_t k = 0; k < dim_; ++k) values.push_back(static_cast<float>(random_() % 100));
      model_.write(ids.back(), &values[values.size() - dim_]);
    }
    const bool trains = random_() % 2 == 0;
    const Status status =
        trains ? table_->scatterRows(ids, values.data()) : table_->writeRows(ids, values.data());
    ASSERT_TRUE(status) << status.error().text();
  }
  /// Batches are used some calls later, when some of their ids may be gone.
  void announce() {
    if (announced_.size() > 3) return;
    announced_.push_back({batch(), 0});
    for (const int64_t id : announced_.back().batch.ids) {
      if (!admits()) (void)model_.read(id);
    }
    const auto number = table_->prefetch(announced_.back().batch.ids);
    ASSERT_TRUE(number) << number.error().text();
    announced_.back().number = *number;
  }
  void use(Absent absent) {
    if (announced_.empty()) return train(batch(), absent);
    train(announced_.front().batch, absent);
    table_->finished(announced_.front().number);
    announced_.pop_front();
  }
  void train(const RandomBatch& batch, Absent absent) {
    Batch view = batch.view(random_() % 2 == 0 ? Pooling::kSum : Pooling::kMean, true);
    view.absent = absent;
    std::vector<float> out(batch.gradients.size()), wanted(out.size());
    const EmbeddingTable::BagCall bag{table_.get(), view, out.data(), dim_};
    Status status = EmbeddingTable::bags({&bag, 1}, workers_);
    ASSERT_TRUE(status) << status.error().text();
    if (absent == Absent::kInsert && admits()) model_.see(view.ids);
    if (absent == Absent::kInitial || admits()) {
      TableModel unchanged = model_;
      unchanged.bag(view, wanted.data());
    } else {
      model_.bag(view, wanted.data());
    }
    ASSERT_EQ(memcmp(out.data(), wanted.data(), out.size() * sizeof(float)), 0);
    if (absent == Absent::kInitial) return;
    const EmbeddingTable::UpdateCall update{table_.get(), view, batch.gradients.data(), dim_};
    status = EmbeddingTable::updates({&update, 1}, workers_);
    ASSERT_TRUE(status) << status.error().text();
    model_.update(view, batch.gradients.data());
  }

  struct Announced {
    RandomBatch batch;
    BatchNumber number;
  };
  Workers& workers_;
  std::unique_ptr<EmbeddingTable> table_;
  TableModel model_;
  std::mt19937_64 random_;
  const uint32_t dim_;
  std::deque<Announced> announced_;
  uint64_t removed_ = 0;
};

TEST(Removal, IsAsTheModelWhateverTheTier) {
  for (const Place place : kPlaces) {
    for (const Optimizer optimizer : {Optimizer::kAdagrad, Optimizer::kAdam}) {
      SCOPED_TRACE(placeName(place));
      Places places(place);
      Workers workers(2, 0);
      TableOptions options = hashedTable(400, optimizer);
      // Announced batches do not fit, and do.
      if (optimizer == Optimizer::kAdam) options.dram += Bytes(256 * kKiB);
      Pair pair(places, options, workers, static_cast<uint64_t>(place) + 7);
      for (int i = 0; i < 400; ++i) {
        pair.step();
        if (i % 50 == 49) pair.expectSame();
        if (testing::Test::HasFatalFailure()) return;
      }
      EXPECT_GT(pair.removed(), 500u);
    }
  }
}

// An id gets its row when it has been looked up often enough: not by one that inserts
// nothing, a step or an announcement; at once when it is written; and again when it was removed.
TEST(Admission, IsAsTheModelWhateverTheTier) {
  for (const Place place : kPlaces) {
    for (const uint32_t after : {2, 7}) {
      SCOPED_TRACE(placeName(place));
      Places places(place);
      Workers workers(2, 0);
      TableOptions options = hashedTable(400);
      options.admit_after = after;
      options.dram = DramPlan::forSlots(options, TierKind::kFetch, 70);
      Pair pair(places, options, workers, static_cast<uint64_t>(place) + after);
      for (int i = 0; i < 400; ++i) {
        pair.step();
        if (i % 50 == 49) pair.expectSame();
        if (testing::Test::HasFatalFailure()) return;
      }
      EXPECT_GT(pair.removed(), 50u);
    }
  }
}

// Ids that are looked up once each take no rows, however many come.
TEST(Admission, KeepsATableFromFillingUp) {
  Places places(Place::kLocal);
  Workers workers(1, 0);
  TableOptions options = hashedTable(10);
  options.admit_after = 3;
  options.remembered_ids = 100;
  const auto table = places.table(options, workers);
  const auto look = [&](const std::vector<int64_t>& ids) {
    std::vector<int64_t> offsets(ids.size() + 1);
    for (size_t i = 0; i < offsets.size(); ++i) offsets[i] = static_cast<int64_t>(i);
    std::vector<float> out(ids.size() * options.format.dim);
    const EmbeddingTable::BagCall bag{table.get(), {ids, offsets}, out.data(), options.format.dim};
    return EmbeddingTable::bags({&bag, 1}, workers);
  };
  for (int64_t id = 0; id < 10'000; ++id) ASSERT_TRUE(look({id, id}));
  EXPECT_EQ(table->rows(), 0u);
  ASSERT_TRUE(look({9'990, 9'991, -1, -1, -1, -1}));
  EXPECT_EQ(table->rows(), 3u);
  ASSERT_TRUE(look({3, 5})) << "seen twice, long ago";
  EXPECT_EQ(table->rows(), 3u);
  // A full table says so, and ids that it has no room for are admitted once it has.
  const std::vector<int64_t> thrice = {50, 51, 52, 53, 54, 55, 56, 57, 50, 51, 52, 53,
                                       54, 55, 56, 57, 50, 51, 52, 53, 54, 55, 56, 57};
  EXPECT_EQ(look(thrice).error().code(), ErrorCode::kNoSpace);
  EXPECT_EQ(table->rows(), 3u);
  const int64_t one[] = {-1};
  EXPECT_EQ(*table->removeIds(one), 1u);
  ASSERT_TRUE(look({50, 51, 52, 53, 54, 55, 56, 57}));
  EXPECT_EQ(table->rows(), 10u);
}

TEST(Admission, IsChecked) {
  TableOptions options = hashedTable(10);
  options.admit_after = 256;
  EXPECT_FALSE(EmbeddingTable::check(options));
  options.admit_after = 255;
  EXPECT_TRUE(EmbeddingTable::check(options));
  options.remembered_ids = UINT32_MAX;
  EXPECT_FALSE(EmbeddingTable::check(options));
  options.remembered_ids = 0;
  options.ids = IdKind::kDense;
  options.tracked = Tracked::kNothing;
  EXPECT_FALSE(EmbeddingTable::check(options));
}

TEST(Removal, GivesTheRoomToLaterIds) {
  for (const Place place : kPlaces) {
    SCOPED_TRACE(placeName(place));
    Places places(place);
    Workers workers(2, 0);
    const TableOptions options = hashedTable(100);
    const auto table = places.table(options, workers);
    std::vector<int64_t> ids(100);
    std::vector<float> rows(100 * options.format.dim, 7.0f);
    // Many times what the table can hold.
    for (int64_t round = 0; round < 50; ++round) {
      for (int64_t i = 0; i < 100; ++i) ids[static_cast<size_t>(i)] = round * 1000 + i;
      ASSERT_TRUE(table->writeRows(ids, rows.data()));
      const int64_t more[] = {-1};
      ASSERT_EQ(table->writeRows(more, rows.data()).error().code(), ErrorCode::kNoSpace);
      const auto removed = table->removeIds(ids);
      ASSERT_TRUE(removed) << removed.error().text();
      ASSERT_EQ(*removed, 100u);
      ASSERT_EQ(table->rows(), 0u);
      ASSERT_EQ(table->readRows(std::span(ids).first(1), rows.data()).error().code(),
                ErrorCode::kNotFound);
    }
  }
}

TEST(Removal, PassesOverIdsThatAreNotThere) {
  Places places(Place::kLocal);
  Workers workers(1, 0);
  const TableOptions options = hashedTable(10);
  const auto table = places.table(options, workers);
  const int64_t ids[] = {5, INT64_MIN, -1, 0};
  EXPECT_EQ(*table->removeIds(ids), 0u);
  EXPECT_EQ(*table->removeIds({}), 0u);
  EXPECT_EQ(table->counts().removed, 0u);
  TableOptions dense = options;
  dense.ids = IdKind::kDense;
  dense.tracked = Tracked::kNothing;
  EXPECT_EQ(places.table(dense, workers)->removeIds(ids).error().code(), ErrorCode::kUnsupported);
}

TEST(Expiry, SaysWhatItCannotGoBy) {
  Places places(Place::kLocal);
  Workers workers(1, 0);
  TableOptions options = hashedTable(10);
  const auto refused = [&](Tracked tracked, Expiry expiry, const char* why) {
    options.tracked = tracked;
    const auto expired = places.table(options, workers)->expire(expiry);
    ASSERT_FALSE(expired) << why;
    EXPECT_NE(strstr(expired.error().text(), why), nullptr) << expired.error().text();
  };
  refused(Tracked::kBoth, {}, "which rows are to go");
  refused(Tracked::kUses, {1, 0}, "the last use");
  refused(Tracked::kLastUse, {1, 1}, "the uses");
  refused(Tracked::kNothing, {0, 1}, "the uses");
  refused(Tracked::kBoth, {0, 65536}, "up to 65535");
  options.ids = IdKind::kDense;
  EXPECT_FALSE(EmbeddingTable::check(options)) << "rows of dense ids stay";
  options.tracked = Tracked::kNothing;
  EXPECT_EQ(places.table(options, workers)->expire({1, 0}).error().code(), ErrorCode::kUnsupported);
}

// More rows than are looked at under one hold of the lock, by their number of uses and their age.
TEST(Expiry, GoesThroughAllRows) {
  constexpr int64_t kIds = 600'000;
  Places places(Place::kLocal);
  Workers workers(2, 0);
  TableOptions options = hashedTable(kIds, Optimizer::kSgd);
  options.format.dim = 1;
  const auto table = places.table(options, workers);
  std::vector<int64_t> ids(kIds), offsets(kIds + 1);
  std::vector<float> gradients(kIds, 1.0f);
  for (int64_t i = 0; i < kIds; ++i) ids[static_cast<size_t>(i)] = i;
  for (int64_t i = 0; i <= kIds; ++i) offsets[static_cast<size_t>(i)] = i;
  // Step s has every s-th id.
  for (int64_t s = 1; s <= 3; ++s) {
    std::vector<int64_t> some;
    for (int64_t i = 0; i < kIds; i += s) some.push_back(i);
    const Batch batch{some, std::span(offsets).first(some.size() + 1)};
    const EmbeddingTable::UpdateCall update{table.get(), batch, gradients.data(), 1};
    ASSERT_TRUE(EmbeddingTable::updates({&update, 1}, workers));
  }
  EXPECT_EQ(*table->expire({3, 0}), 0u) << "the first of three steps had all";
  EXPECT_EQ(*table->expire({2, 0}), kIds / 3u) << "neither by two nor by three";
  EXPECT_EQ(*table->expire({0, 3}), kIds / 2u) << "not by six";
  EXPECT_EQ(table->rows(), kIds / 6u);
  EXPECT_EQ(*table->expire({0, 4}), kIds / 6u);
}

// Each thread has ids of its own, and knows what they must be; the table is too small for all of
// them together, so that rows go from one thread to another all the time.
TEST(Removal, OfSomeIdsLeavesThoseOfOtherThreadsAlone) {
  for (const Place place : kPlaces) {
    SCOPED_TRACE(placeName(place));
    Places places(place);
    Workers workers(2, 0);
    const TableOptions options = hashedTable(150, Optimizer::kSgd);
    const auto table = places.table(options, workers);
    std::vector<std::thread> threads;
    std::atomic<int> wrong{0};
    for (int64_t thread = 0; thread < 3; ++thread) {
      threads.emplace_back([&, thread] {
        const uint32_t dim = options.format.dim;
        std::vector<int64_t> ids(50);
        std::vector<float> rows(50 * dim), read(50 * dim);
        for (int64_t round = 0; round < 60; ++round) {
          for (int64_t i = 0; i < 50; ++i) {
            ids[static_cast<size_t>(i)] = (thread << 32) + round * 50 + i;
          }
          for (size_t i = 0; i < rows.size(); ++i) {
            rows[i] = static_cast<float>(thread * 1'000'000 + round * 1000 + static_cast<int>(i));
          }
          const bool done = table->writeRows(ids, rows.data()) &&
                            table->gatherRows(ids, read.data()) && read == rows &&
                            table->removeIds(ids).value_or(0) == 50;
          if (!done) ++wrong;
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    EXPECT_EQ(wrong.load(), 0);
    EXPECT_EQ(table->rows(), 0u);
  }
}

}  // namespace
}  // namespace tidepool
