// SPDX-License-Identifier: Apache-2.0
// Rows of a memory server that were never written there: nobody asks for them, whatever is done
// with them, and all is as in the model, bit for bit; nor do they come back once they were written,
// however many write-backs are under way while others look.
#include "allocator/table/unwritten_rows.h"

#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <atomic>
#include <cstring>
#include <deque>
#include <numeric>
#include <thread>

#include "allocator/table/table_restore.h"
#include "tests/table/raw_rows.h"
#include "tests/table/table_fixture.h"
#include "tests/table/table_model.h"
#include "tests/table/watched_rows.h"

namespace tidepool {
namespace {

constexpr uint32_t kDim = 11;  // rows end in padding
constexpr RowNumber kRows = 1200;

TableOptions optionsFor(const Initializer& initializer, uint64_t in_dram) {
  TableOptions options;
  options.name = "states";
  options.rows = kRows;
  options.format = {ElementType::kFloat16, Optimizer::kAdagrad, kDim};
  options.initializer = initializer;
  options.step.learning_rate = 0.05f;
  options.dram = DramPlan::forSlots(options, TierKind::kFetch, in_dram) +
                 RowChanges::mostMemory(kRows);  // what checkpoints need
  return options;
}

constexpr Initializer kInitializers[] = {
    {},
    {Initializer::Kind::kUniform, 0.25f, 0.25f, 0},  // the same for all
    {Initializer::Kind::kUniform, -0.1f, 0.1f, 5},
    {Initializer::Kind::kNormal, 1.0f, 0.5f, 6},
};

/// A table in a memory server, its model, and what is asked of the server.
struct Watched {
  explicit Watched(const TableOptions& table_options) : options(table_options), model(options) {
    auto backing = BackingStore::inStore(store, options.format, options.rows);
    EXPECT_TRUE(backing) << backing.error().text();
    auto made = EmbeddingTable::create(options, std::move(*backing), workers);
    EXPECT_TRUE(made) << made.error().text();
    table = std::move(*made);
  }
  RandomBatch batch() { return {random, kRows, 12, 20, kDim}; }

  bool looksUp(const RandomBatch& ids) {
    const Batch view = ids.view(Pooling::kSum, true);
    std::vector<float> got(view.bags() * kDim, -1), wanted(view.bags() * kDim, -2);
    const EmbeddingTable::BagCall call{table.get(), view, got.data(), kDim};
    model.bag(view, wanted.data());
    return EmbeddingTable::bags({&call, 1}, workers) && same(got, wanted);
  }
  bool steps(const RandomBatch& ids) {
    const Batch view = ids.view(Pooling::kMean, false);
    const EmbeddingTable::UpdateCall call{table.get(), view, ids.gradients.data(), kDim};
    model.update(view, ids.gradients.data());
    return EmbeddingTable::updates({&call, 1}, workers).has_value();
  }
  bool reads(std::span<const int64_t> ids) {
    std::vector<float> read(ids.size() * kDim), gathered(ids.size() * kDim), wanted;
    for (const int64_t id : ids) {
      const std::vector<float> row = model.read(id);
      wanted.insert(wanted.end(), row.begin(), row.end());
    }
    return table->readRows(ids, read.data()) && same(read, wanted) &&
           table->gatherRows(ids, gathered.data()) && same(gathered, wanted);
  }
  bool writes(std::span<const int64_t> ids) {
    std::vector<float> values(ids.size() * kDim);
    for (float& value : values) value = static_cast<float>(random() % 64) / 16;
    for (size_t i = 0; i < ids.size(); ++i) model.write(ids[i], &values[i * kDim]);
    return (random() % 2 == 0 ? table->writeRows(ids, values.data())
                              : table->scatterRows(ids, values.data()))
        .has_value();
  }
  bool exports() {
    for (int64_t id = 0; id < static_cast<int64_t>(kRows); ++id) model.read(id);
    return rawRowsOf(table.get()) == model.all();
  }
  static bool same(const std::vector<float>& a, const std::vector<float>& b) {
    return memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
  }

  TableOptions options;
  Places places{Place::kRemote};
  Requests requests;
  WatchedStore store{places.tier().rowStore(), requests};
  Workers workers{2, 0};
  std::unique_ptr<EmbeddingTable> table;
  TableModel model;
  std::mt19937_64 random{17};
};

class UnwrittenOf : public testing::TestWithParam<Initializer> {};

TEST_P(UnwrittenOf, AreAskedForByNobody) {
  Watched items(optionsFor(GetParam(), 100));
  std::vector<int64_t> all(kRows);
  std::iota(all.begin(), all.end(), 0);
  for (int turn = 0; turn < 4; ++turn) {
    const RandomBatch ahead = items.batch();
    const auto number = items.table->prefetch(ahead.ids);
    ASSERT_TRUE(number) << number.error().text();
    EXPECT_TRUE(items.looksUp(items.batch()));
    EXPECT_TRUE(items.looksUp(ahead));
    items.table->finished(*number);
  }
  EXPECT_TRUE(items.reads(all));
  EXPECT_TRUE(items.exports());
  EXPECT_EQ(items.requests.rowsRead(), 0u);
  EXPECT_EQ(items.requests.rowsWritten(), 0u);
  const TableCounts counts = items.table->counts();
  EXPECT_GT(counts.prefetched, 0u);
  EXPECT_GE(counts.unwritten, counts.fetched + counts.prefetched);
}

TEST_P(UnwrittenOf, AreAskedForOnceTheyWereWritten) {
  Watched items(optionsFor(GetParam(), 16));
  std::vector<int64_t> even;
  for (int64_t id = 0; id < static_cast<int64_t>(kRows); id += 2) even.push_back(id);
  ASSERT_TRUE(items.writes(even));
  std::vector<int64_t> all(kRows);
  std::iota(all.begin(), all.end(), 0);
  std::shuffle(all.begin(), all.end(), items.random);
  const size_t before = items.requests.rowsRead();
  EXPECT_TRUE(items.reads(all));
  EXPECT_GE(items.requests.rowsRead() - before, even.size());
  EXPECT_EQ(items.requests.strangers(), 0u);
  EXPECT_TRUE(items.exports());
}

INSTANTIATE_TEST_SUITE_P(All, UnwrittenOf, testing::ValuesIn(kInitializers));

TEST(UnwrittenRows, AreAsInTheModelWhateverIsDone) {
  EXPECT_TRUE(rc::check([] {
    const auto& initializer = kInitializers[*rc::gen::inRange<size_t>(0, 4)];
    const auto in_dram = *rc::gen::inRange<uint64_t>(16, 600);
    Watched items(optionsFor(initializer, in_dram));
    std::deque<std::pair<RandomBatch, BatchNumber>> flight;
    const auto turns = *rc::gen::container<std::vector<uint8_t>>(rc::gen::inRange<uint8_t>(0, 8));
    for (const uint8_t what : turns) {
      const RandomBatch batch = items.batch();
      if (what == 0) RC_ASSERT(items.looksUp(batch));
      if (what == 1) RC_ASSERT(items.steps(batch));
      if (what == 2) RC_ASSERT(items.writes(batch.ids));
      if (what == 3) RC_ASSERT(items.reads(batch.ids));
      if (what == 4) RC_ASSERT(items.exports());
      if (what == 5) {
        const auto number = items.table->prefetch(batch.ids);
        RC_ASSERT(number.has_value());
        flight.emplace_back(batch, *number);
      }
      if (what >= 6 && !flight.empty()) {
        RC_ASSERT(items.looksUp(flight.front().first));
        if (what == 7) RC_ASSERT(items.steps(flight.front().first));
        items.table->finished(flight.front().second);
        flight.pop_front();
      }
      RC_ASSERT(items.table->counts().dram <= items.options.dram || !flight.empty());
    }
    RC_ASSERT(items.requests.strangers() == 0u);
    for (const auto& waits : flight) items.table->finished(waits.second);
    RC_ASSERT(items.exports());
  }));
}

TEST(UnwrittenRows, OfARestoreAreThoseThatTheCheckpointHasNot) {
  Watched items(optionsFor(kInitializers[2], 50));
  auto restore = TableRestore::begin(*items.table);
  ASSERT_TRUE(restore) << restore.error().text();
  (*restore)->start();
  const RowFormat& format = items.options.format;
  std::vector<std::byte> bytes(100 * format.rowBytes());
  std::vector<float> values(kDim, 2.0f);
  for (int64_t i = 0; i < 100; ++i) {
    kernels().encode(format, values.data(), &bytes[static_cast<size_t>(i) * format.rowBytes()]);
    items.model.write(600 + i, values.data());
  }
  ASSERT_TRUE((*restore)->put(600, 100, bytes.data()));
  auto none = RowBits::create(1);
  ASSERT_TRUE(none);
  ASSERT_TRUE((*restore)->finish({{}, *none, {}}, 0, 0));
  restore->reset();
  EXPECT_EQ(items.requests.rowsWritten(), 100u);
  EXPECT_TRUE(items.exports());
  EXPECT_EQ(items.requests.rowsRead(), 100u);
}

// Nobody has heard yet that the write is over.
TEST(UnwrittenRows, AreNoneOnceTheirWriteIsUnderWay) {
  Watched items(optionsFor({}, 16));
  for (int64_t id = 0; id < 100; ++id) {
    const std::vector<float> values(kDim, 2.0f);
    items.model.write(id, values.data());
    ASSERT_TRUE(items.table->writeRows({&id, 1}, values.data()));
    ASSERT_TRUE(items.reads({&id, 1})) << id;
  }
}

TEST(UnwrittenRows, AreKnownThoughTheServerIsGone) {
  Watched items(optionsFor(kInitializers[3], 16));
  const int64_t changed[] = {7};
  float out[3 * kDim] = {};
  ASSERT_TRUE(items.table->writeRows(changed, out));
  // A write that the server's end cuts short costs the table, and this is not about it. The row is
  // read without being kept in DRAM.
  do {
    ASSERT_TRUE(items.table->readRows(changed, out));
  } while (items.requests.writesUnderWay() > 0);
  items.places.stopServer();
  const int64_t others[] = {8, kRows - 1, 0};
  EXPECT_TRUE(items.reads(others));
  EXPECT_FALSE(items.table->readRows(changed, out)) << "this one has its bytes there";
  EXPECT_FALSE(items.table->readRows(others, out)) << "the table was given up";
}

// ---- Several threads.

/// All numbers of a row are how often it was overwritten. One that was seen overwritten never looks
/// as if it had not been.
class Versions {
 public:
  explicit Versions(Watched& items) : items_(items) {}
  void write(std::span<const int64_t> ids, float version) {
    const std::vector<float> values(ids.size() * kDim, version);
    if (!items_.table->scatterRows(ids, values.data())) wrong_.store(true);
  }
  /// `seen`: by row, of the calling thread.
  void look(std::span<const int64_t> ids, std::vector<float>& seen) {
    std::vector<float> got(ids.size() * kDim);
    if (!items_.table->gatherRows(ids, got.data())) wrong_.store(true);
    for (size_t i = 0; i < ids.size(); ++i) {
      const float version = got[i * kDim];
      float& before = seen[static_cast<size_t>(ids[i])];
      const bool whole = std::all_of(&got[i * kDim], &got[(i + 1) * kDim],
                                     [version](float value) { return value == version; });
      if (!whole || version < before) wrong_.store(true);
      before = version;
    }
  }
  bool wrong() const { return wrong_.load(); }

 private:
  Watched& items_;
  std::atomic<bool> wrong_{false};
};

TEST(UnwrittenRows, AreNeverSeenAgainOnceOverwrittenByAnotherThread) {
  Watched items(optionsFor({}, 40));
  Versions versions(items);
  constexpr int kVersions = 6;
  std::atomic<bool> done{false};
  std::thread writer([&] {
    for (int version = 1; version <= kVersions; ++version) {
      for (int64_t first = 0; first < static_cast<int64_t>(kRows); first += 30) {
        std::vector<int64_t> ids(30);
        std::iota(ids.begin(), ids.end(), first);
        versions.write(ids, static_cast<float>(version));
      }
    }
    done.store(true);
  });
  std::vector<std::thread> readers;
  for (unsigned seed = 0; seed < 3; ++seed) {
    readers.emplace_back([&, seed] {
      std::mt19937_64 random(seed);
      std::vector<float> seen(kRows);
      while (!done.load()) versions.look(RandomBatch(random, kRows, 6, 20, kDim).ids, seen);
    });
  }
  std::vector<float> exported(kRows);
  for (bool last = false; !last;) {
    last = done.load();
    for (const auto& [id, bytes] : rawRowsOf(items.table.get())) {
      std::vector<float> row(kDim);
      kernels().decode(items.options.format, bytes.data(), row.data());
      EXPECT_TRUE(std::all_of(row.begin(), row.end(), [&](float v) { return v == row[0]; }));
      EXPECT_GE(row[0], exported[static_cast<size_t>(id)]);
      exported[static_cast<size_t>(id)] = row[0];
    }
  }
  writer.join();
  for (std::thread& reader : readers) reader.join();
  EXPECT_FALSE(versions.wrong());
  EXPECT_EQ(exported, std::vector<float>(kRows, kVersions));
  EXPECT_EQ(items.requests.strangers(), 0u);
}

}  // namespace
}  // namespace tidepool
