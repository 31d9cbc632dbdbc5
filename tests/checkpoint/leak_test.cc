// SPDX-License-Identifier: Apache-2.0
// Nothing leaks in many small steps: blocks of the heap, mappings, files, threads, frames on the
// memory server and in the pool are counted after every round and must not grow after the first
// rounds: of tables that are closed after each, and of tables that stay. Rounds look up, train,
// announce, create and close tables, bring rows into being, take checkpoints, cancel some, restore,
// and call with wrong arguments. TIDEPOOL_LEAK_STEPS sets how many steps (2000); `make leaks` takes
// 100,000.
#include <gtest/gtest.h>

#include <cstdlib>
#include <deque>
#include <limits>

#include "tests/checkpoint/checkpoint_fixture.h"
#include "tests/checkpoint/footprint.h"

namespace tidepool {
namespace {

constexpr size_t kRoundSteps = 250, kWarmUpRounds = 3, kBags = 12, kMostPerBag = 20;
constexpr size_t kMostAhead = 4;
// How much more local memory tables that stay have for a moment: enough for other chunks.
constexpr Bytes kMoreDram = Bytes(64 * kKiB);
// Resident memory is not exact: what the heap and the kernel may keep of memory that comes and
// goes, beyond the warm-up's; and of tables that stay (0.3 MiB more after 100,000 steps than after
// 750).
constexpr size_t kKeptKib = 8 * 1024, kKeptOfStayingKib = 1024;

size_t wantedSteps() {
  const char* const wanted = getenv("TIDEPOOL_LEAK_STEPS");
  return wanted == nullptr ? 2000 : strtoul(wanted, nullptr, 10);
}

struct Kind {
  Place place;
  IdKind ids;
};
constexpr Kind kKinds[] = {{Place::kLocal, IdKind::kDense},
                           {Place::kDirect, IdKind::kDense},
                           {Place::kDirect, IdKind::kHashed},
                           {Place::kRemote, IdKind::kDense},
                           {Place::kRemote, IdKind::kHashed}};

/// The tiers, the workers and the directory, which outlive all rounds.
struct World {
  World() {
    tiers.push_back(std::make_unique<Places>(Place::kLocal));
    tiers.push_back(std::make_unique<Places>(Place::kDirect));
    tiers.push_back(std::make_unique<Places>(Place::kRemote));
  }
  Places& tier(Place place) { return *tiers[static_cast<size_t>(place)]; }
  std::unique_ptr<EmbeddingTable> table(const Kind& kind, const std::string& name,
                                        RowNumber rows = 1500) {
    TableOptions options =
        trainedTable(kind.ids, {ElementType::kFloat32, Optimizer::kAdagrad, 16}, rows);
    options.name = name;
    return tier(kind.place).table(options, workers);
  }
  Bytes framesInUse() {
    return tier(Place::kDirect).tier().used() + tier(Place::kRemote).tier().used();
  }

  std::vector<std::unique_ptr<Places>> tiers;
  Workers workers{2, 0};
  TemporaryDirectory directory;
};

/// Tables of every kind, trained together.
class Tables {
 public:
  explicit Tables(World& world) : world_(world) {
    for (size_t i = 0; i < std::size(kKinds); ++i) {
      tables_.push_back(world.table(kKinds[i], "t" + std::to_string(i)));
    }
    ahead_.resize(tables_.size());
  }

  RandomBatch batch(std::mt19937_64& random, const EmbeddingTable& table) {
    RandomBatch made(random, table.options().rows, kBags, kMostPerBag, 16);
    if (table.options().ids == IdKind::kHashed) {
      for (int64_t& id : made.ids) {
        id = static_cast<int64_t>(static_cast<uint64_t>(id) * 0x9E3779B97F4A7C15ull);
      }
    }
    return made;
  }

  /// All tables take a step; of each a random number of batches is known.
  void step(std::mt19937_64& random) {
    std::vector<EmbeddingTable::BagCall> bags;
    std::vector<EmbeddingTable::UpdateCall> updates;
    std::vector<std::vector<float>> out(tables_.size(), std::vector<float>(kBags * 16));
    for (size_t t = 0; t < tables_.size(); ++t) {
      for (size_t depth = 1 + random() % kMostAhead; ahead_[t].size() < depth;) {
        RandomBatch made = batch(random, *tables_[t]);
        auto number = tables_[t]->prefetch(made.ids);
        ASSERT_TRUE(number) << number.error().text();
        ahead_[t].emplace_back(std::move(made), *number);
      }
      const RandomBatch& now = ahead_[t].front().first;
      bags.push_back({tables_[t].get(), now.view(Pooling::kSum, true), out[t].data(), 16});
      updates.push_back(
          {tables_[t].get(), now.view(Pooling::kSum, true), now.gradients.data(), 16});
    }
    ASSERT_TRUE(EmbeddingTable::bags(bags, world_.workers));
    ASSERT_TRUE(EmbeddingTable::updates(updates, world_.workers));
    for (size_t t = 0; t < tables_.size(); ++t) {
      tables_[t]->finished(ahead_[t].front().second);
      ahead_[t].pop_front();
    }
  }
  /// Arguments that are refused.
  void refused() {
    const int64_t ids[] = {1, 1'000'000}, offsets[] = {0, 2};
    float out[16];
    for (auto& table : tables_) {
      if (table->options().ids == IdKind::kHashed) continue;
      const EmbeddingTable::BagCall call{table.get(), {ids, offsets}, out, 16};
      ASSERT_FALSE(EmbeddingTable::bags({&call, 1}, world_.workers));
      ASSERT_FALSE(table->prefetch(ids));
    }
  }
  /// Restoring waits for no batch.
  void finishAll() {
    for (size_t t = 0; t < tables_.size(); ++t) {
      if (!ahead_[t].empty()) tables_[t]->finished(ahead_[t].back().second);
      ahead_[t].clear();
    }
  }
  /// No batch is announced. A table in a fetch tier makes a chunk for rows on their way when all it
  /// has are in use, which is a matter of chance, and keeps it; a budget that changes makes it let
  /// go of all. What is left is the same after any number of steps.
  void letGoOfChunks() {
    for (const auto& table : tables_) {
      const Bytes dram = table->dram();
      const Status more = table->setDram(dram + kMoreDram);
      ASSERT_TRUE(more) << more.error().text();
      ASSERT_TRUE(table->setDram(dram));
      ASSERT_EQ(table->dram(), dram);
    }
  }
  std::vector<EmbeddingTable*> all() const {
    std::vector<EmbeddingTable*> all;
    for (const auto& table : tables_) all.push_back(table.get());
    return all;
  }

 private:
  World& world_;
  std::vector<std::unique_ptr<EmbeddingTable>> tables_;
  std::vector<std::deque<std::pair<RandomBatch, BatchNumber>>> ahead_;
};

/// A table that is closed with announced batches under way; its hashed ids fill it.
void comeAndGo(World& world, std::mt19937_64& random, const Kind& kind) {
  auto table = world.table(kind, "passing", 300);
  std::vector<int64_t> ids(200), offsets{0, 200};
  std::vector<float> out(16);
  for (int round = 0; round < 3; ++round) {
    for (int64_t& id : ids) id = static_cast<int64_t>(random() % 300);
    if (round < 2) {
      ASSERT_TRUE(table->prefetch(ids));
    }
    if (kind.ids == IdKind::kHashed && round == 2) {  // more than there is room for
      for (int64_t& id : ids) id = static_cast<int64_t>(random());
    }
    const Batch view{ids, offsets};
    const EmbeddingTable::BagCall call{table.get(), view, out.data(), 16};
    const bool full = kind.ids == IdKind::kHashed && round == 2;
    ASSERT_EQ(EmbeddingTable::bags({&call, 1}, world.workers).has_value(), !full);
    const EmbeddingTable::UpdateCall update{table.get(), view, out.data(), 16};
    ASSERT_EQ(EmbeddingTable::updates({&update, 1}, world.workers).has_value(), !full);
  }
  ASSERT_TRUE(table->prefetch(std::span(ids).first(0)));
  for (int64_t& id : ids) id = static_cast<int64_t>(random() % 100);
  if (kind.ids == IdKind::kDense) {
    ASSERT_TRUE(table->prefetch(ids));
  }
}

/// Steps, with a checkpoint begun at some and under way during the next ones.
class Trainer {
 public:
  explicit Trainer(World& world) : world_(world), tables_(world) {}

  void run(std::mt19937_64& random, size_t steps) {
    for (size_t step = 0; step < steps && !testing::Test::HasFatalFailure(); ++step) {
      if (step % 50 == 0) begin();
      if (step % 50 == 25) {
        EXPECT_TRUE(writer_->wait());
        writer_.reset();
      }
      if (step % 100 == 35) begin();
      tables_.step(random);
      if (step % 100 == 36) writer_.reset();  // cancelled
      if (step % 100 == 70) tables_.refused();
      if (step % 10 == 5) comeAndGo(world_, random, kKinds[passed_++ % std::size(kKinds)]);
    }
    writer_.reset();
    tables_.finishAll();
  }
  void restoreIntoOthers() {
    Tables others(world_);
    const auto manifest = restoreTables(world_.directory.path(), others.all(), world_.workers);
    ASSERT_TRUE(manifest) << manifest.error().text();
  }
  Tables& tables() { return tables_; }

 private:
  void begin() {
    CheckpointOptions options;
    options.keep = 2;
    const auto all = tables_.all();
    auto writer = CheckpointWriter::start(
        all, world_.directory.path(),
        begun_++ % 10 == 0 ? CheckpointKind::kFull : CheckpointKind::kIncremental, options);
    ASSERT_TRUE(writer) << writer.error().text();
    writer_ = std::move(*writer);
  }

  World& world_;
  Tables tables_;
  std::unique_ptr<CheckpointWriter> writer_;
  size_t begun_ = 0, passed_ = 0;
};

/// By their own count tables are within the DRAM that they were given.
void expectWithinTheirDram(const std::vector<EmbeddingTable*>& tables) {
  for (EmbeddingTable* table : tables) {
    const TableCounts counts = table->counts();
    if (counts.evictions == 0) continue;  // all in DRAM: it was given none to keep to
    EXPECT_LE(counts.dram, table->dram()) << table->options().name;
  }
}

/// Compares every round with the warm-up's. Files and threads must be those of the beginning.
class Watch {
 public:
  Watch() : start_(Footprint::now()) {
    open_.files = start_.files;
    open_.threads = start_.threads;
    open_.blocks = std::numeric_limits<int64_t>::max();
    open_.mappings = std::numeric_limits<size_t>::max();
  }
  /// Resident memory may be so much above the warm-up's.
  void round(size_t number, size_t kept_kib) {
    if (number < kWarmUpRounds) {
      const Footprint found = Footprint::settled(open_);
      EXPECT_TRUE(found.within(open_)) << found << "\nat first: " << start_;
      limit_ = limit_.most(found);
      return;
    }
    last_ = Footprint::settled(limit_);
    EXPECT_TRUE(last_.within(limit_))
        << "after round " << number << ": " << last_ << "\nat most:      " << limit_;
    EXPECT_LE(last_.resident_kib, limit_.resident_kib + kept_kib) << "round " << number;
  }
  void print() const {
    std::cout << "after the warm-up: " << limit_ << "\nin the end:        " << last_ << "\n";
  }

 private:
  const Footprint start_;
  Footprint open_, limit_, last_;
};

TEST(Leak, NothingIsLeftOfTablesThatComeAndGo) {
  World world;
  const Bytes none = world.framesInUse();
  Watch watch;
  const size_t rounds = std::max(wantedSteps() / kRoundSteps, kWarmUpRounds + 1);
  for (size_t round = 0; round < rounds && !HasFailure(); ++round) {
    std::mt19937_64 random(round);
    {
      Trainer trainer(world);
      trainer.run(random, kRoundSteps);
      trainer.restoreIntoOthers();
    }
    EXPECT_EQ(world.framesInUse(), none) << "round " << round;
    watch.round(round, kKeptKib);
  }
  watch.print();
}

TEST(Leak, TablesThatStayDoNotGrow) {
  World world;
  Trainer trainer(world);
  Watch watch;
  const Bytes frames = world.framesInUse();
  const size_t rounds = std::max(wantedSteps() / kRoundSteps, kWarmUpRounds + 1);
  std::mt19937_64 random(1);
  for (size_t round = 0; round < rounds && !HasFailure(); ++round) {
    trainer.run(random, kRoundSteps);
    EXPECT_EQ(world.framesInUse(), frames) << "round " << round;
    expectWithinTheirDram(trainer.tables().all());
    trainer.tables().letGoOfChunks();
    watch.round(round, kKeptOfStayingKib);
  }
  for (EmbeddingTable* table : trainer.tables().all()) {
    const TableCounts counts = table->counts();
    std::cout << table->options().name << ": " << counts.steps << " steps, " << counts.evictions
              << " evictions, DRAM " << counts.dram.value() << " bytes\n";
  }
  watch.print();
}

}  // namespace
}  // namespace tidepool
