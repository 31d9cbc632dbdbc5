// SPDX-License-Identifier: Apache-2.0
// Published tables beside the tables that are published: readers have what these were at the last
// publish, wherever rows are, whatever they are made of, and whichever publisher it was.
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include <numeric>
#include <thread>

#include "tests/checkpoint/checkpoint_fixture.h"
#include "tests/publish/publish_fixture.h"

namespace tidepool {
namespace {

constexpr RowFormat kFormats[] = {{ElementType::kFloat32, Optimizer::kAdam, 5},
                                  {ElementType::kFloat16, Optimizer::kRowwiseAdagrad, 16},
                                  {ElementType::kBfloat16, Optimizer::kSgd, 7},
                                  {ElementType::kInt8, Optimizer::kAdagrad, 33}};

struct PublishedCase {
  Place place;
  IdKind ids;
};

std::string caseName(const testing::TestParamInfo<PublishedCase>& info) {
  std::string name = placeName(info.param.place);
  std::replace(name.begin(), name.end(), ' ', '_');
  return name + (info.param.ids == IdKind::kDense ? "_dense" : "_hashed");
}

class PublishedTables : public testing::TestWithParam<PublishedCase> {
 protected:
  /// All that a table of the fixture's may have used, and one that none has.
  std::vector<int64_t> idsOf(const Trained& trained) const {
    std::vector<int64_t> ids;
    for (uint64_t id = 0; id < trained.options.rows; ++id) {
      const uint64_t factor = GetParam().ids == IdKind::kDense ? 1 : 0x9E3779B97F4A7C15ull;
      ids.push_back(static_cast<int64_t>(id * factor));
    }
    return ids;
  }

  const ScratchFolder folder_{ScratchFolder::inMemory()};
  const std::string path_ = folder_ / "tables";
  Places places_{GetParam().place};
  Workers workers_{2, 0};
};

TEST_P(PublishedTables, ReadersHaveTheLastGeneration) {
  for (const RowFormat& format : kFormats) {
    SCOPED_TRACE(static_cast<int>(format.type));
    Trained trained(places_, trainedTable(GetParam().ids, format, 700), workers_);
    const std::string path = path_ + std::to_string(static_cast<int>(format.type));
    const auto publisher = publisherOf({trained.table.get()}, path);
    std::unique_ptr<Published> published;
    const std::vector<int64_t> ids = idsOf(trained);
    for (uint64_t generation = 1; generation <= 6; ++generation) {
      for (uint64_t step = 0; step < generation % 3; ++step) trained.step(generation * 10 + step);
      const std::vector<float> rows = lookedUp(*trained.table, ids, workers_);
      const TableCounts before = trained.table->counts();
      ASSERT_EQ(valueOrDie(publisher->publish()), generation);
      EXPECT_EQ(trained.table->counts().hits, before.hits) << "to publish is not to look up";
      EXPECT_EQ(trained.table->counts().lookups, before.lookups);
      trained.step(generation * 10 + 9);  // not published before the next time
      if (!published) published = valueOrDie(Published::open(path));
      expectSameRows(lookedUp(*published, 0, ids, generation), rows);
      EXPECT_EQ(published->generation(), generation);
      EXPECT_EQ(published->repeated(), 0u);
    }
  }
}

TEST_P(PublishedTables, BagsAreTheTables) {
  Trained trained(places_, trainedTable(GetParam().ids, kFormats[1], 3000), workers_);
  for (uint64_t step = 0; step < 5; ++step) trained.step(step);
  const auto publisher = publisherOf({trained.table.get()}, path_);
  valueOrDie(publisher->publish());
  const auto published = valueOrDie(Published::open(path_));
  const uint32_t dim = trained.options.format.dim;
  for (uint64_t seed = 0; seed < 8; ++seed) {
    std::mt19937_64 random(seed);
    RandomBatch batch(random, trained.options.rows, 400, seed == 0 ? 2000 : 20, dim);
    Batch view = batch.view(seed % 2 == 0 ? Pooling::kSum : Pooling::kMean, seed % 3 == 0);
    view.absent = Absent::kInitial;
    std::vector<float> wanted(batch.gradients.size()), got(wanted.size());
    const EmbeddingTable::BagCall call{trained.table.get(), view, wanted.data(), dim};
    ASSERT_TRUE(EmbeddingTable::bags({&call, 1}, workers_));
    const Published::BagCall read{0, view, got.data(), dim};
    ASSERT_EQ(valueOrDie(published->bags({&read, 1})), 1u);
    expectSameRows(got, wanted);
  }
}

TEST_P(PublishedTables, AnotherPublisherGoesOnWithARestoredTable) {
  const TableOptions options = trainedTable(GetParam().ids, kFormats[0], 900);
  TemporaryDirectory checkpoints;
  Trained first(places_, options, workers_);
  const std::vector<int64_t> ids = idsOf(first);
  std::unique_ptr<Published> published;
  {
    const auto publisher = publisherOf({first.table.get()}, path_);
    first.step(1);
    valueOrDie(publisher->publish());
    published = valueOrDie(Published::open(path_));
    first.step(2);
    EmbeddingTable* const table = first.table.get();
    ASSERT_TRUE(takeCheckpoint({&table, 1}, checkpoints.path(), CheckpointKind::kFull));
    first.step(3);
    valueOrDie(publisher->publish());
  }
  struct stat before {
  }, after{};
  ASSERT_EQ(stat(path_.c_str(), &before), 0);
  const std::vector<float> third = lookedUp(*first.table, ids, workers_);
  Trained again(places_, options, workers_);
  const auto publisher = publisherOf({again.table.get()}, path_);
  expectSameRows(lookedUp(*published, 0, ids, 2), third);
  EmbeddingTable* const table = again.table.get();
  ASSERT_TRUE(restoreTables(checkpoints.path(), {&table, 1}, workers_));
  ASSERT_EQ(valueOrDie(publisher->publish()), 3u);
  expectSameRows(lookedUp(*published, 0, ids, 3), lookedUp(*again.table, ids, workers_));
  ASSERT_EQ(stat(path_.c_str(), &after), 0);
  EXPECT_EQ(before.st_ino, after.st_ino);
  // A restore into a table that is published already counts as a change of all rows.
  ASSERT_EQ(valueOrDie(publisher->publish()), 4u);
  if (GetParam().ids == IdKind::kHashed) return;
  again.step(9);
  valueOrDie(publisher->publish());
  ASSERT_TRUE(restoreTables(checkpoints.path(), {&table, 1}, workers_));
  ASSERT_EQ(valueOrDie(publisher->publish()), 6u);
  expectSameRows(lookedUp(*published, 0, ids, 6), lookedUp(*again.table, ids, workers_));
}

INSTANTIATE_TEST_SUITE_P(All, PublishedTables,
                         testing::Values(PublishedCase{Place::kLocal, IdKind::kDense},
                                         PublishedCase{Place::kDirect, IdKind::kDense},
                                         PublishedCase{Place::kRemote, IdKind::kDense},
                                         PublishedCase{Place::kFabricRows, IdKind::kDense},
                                         PublishedCase{Place::kLocal, IdKind::kHashed},
                                         PublishedCase{Place::kDirect, IdKind::kHashed},
                                         PublishedCase{Place::kRemote, IdKind::kHashed}),
                         caseName);

class PublishedFile : public testing::Test {
 protected:
  std::unique_ptr<EmbeddingTable> make(const char* name, Place place = Place::kLocal,
                                       IdKind ids = IdKind::kDense, RowNumber rows = 300) {
    TableOptions options = trainedTable(ids, {ElementType::kFloat32, Optimizer::kSgd, 4}, rows);
    options.name = name;
    return (place == Place::kLocal ? local_ : remote_).table(options, workers_);
  }
  static void write(EmbeddingTable& table, int64_t id, float value) {
    const std::vector<float> row(table.options().format.dim, value);
    const Status status = table.writeRows({&id, 1}, row.data());
    ASSERT_TRUE(status) << status.error().text();
  }
  static float first(const Published& published, size_t table, int64_t id) {
    std::vector<float> row(4);
    const auto seen = published.readRows(table, {&id, 1}, row.data());
    EXPECT_TRUE(seen) << seen.error().text();
    return row[0];
  }
  void expectNotOpen(ErrorCode code, const char* part) const {
    const auto published = Published::open(path_);
    ASSERT_FALSE(published);
    EXPECT_EQ(published.error().code(), code) << published.error().text();
    EXPECT_NE(strstr(published.error().text(), part), nullptr) << published.error().text();
  }
  void expectNoPublisher(std::vector<EmbeddingTable*> tables, ErrorCode code,
                         const char* part) const {
    const auto publisher = Publisher::open(tables, path_, 0600);
    ASSERT_FALSE(publisher);
    EXPECT_EQ(publisher.error().code(), code) << publisher.error().text();
    EXPECT_NE(strstr(publisher.error().text(), part), nullptr) << publisher.error().text();
  }
  /// Puts bytes somewhere in the file.
  void poke(uint64_t at, const void* bytes, size_t size) const {
    const UniqueFd fd(open(path_.c_str(), O_WRONLY));
    ASSERT_EQ(pwrite(fd.get(), bytes, size, static_cast<off_t>(at)), static_cast<ssize_t>(size));
  }
  void poke(uint64_t at, uint64_t number) const { poke(at, &number, sizeof number); }

  const ScratchFolder folder_{ScratchFolder::inMemory()};
  const std::string path_ = folder_ / "tables";
  Places local_{Place::kLocal}, remote_{Place::kRemote};
  Workers workers_{2, 0};
};

TEST_F(PublishedFile, IdsThatGoAndComeInTheirRows) {
  const auto table = make("items", Place::kLocal, IdKind::kHashed, 40);
  const auto publisher = publisherOf({table.get()}, path_);
  std::unique_ptr<Published> published;
  std::mt19937_64 random(5);
  std::map<int64_t, float> model;
  std::vector<int64_t> all(90);
  for (size_t i = 0; i < all.size(); ++i) all[i] = static_cast<int64_t>(i) * 1'000'003 - 40;
  for (uint64_t generation = 1; generation <= 200; ++generation) {
    for (uint64_t i = random() % 12; i > 0; --i) {
      const int64_t id = all[random() % all.size()];
      if (model.contains(id) ? random() % 2 == 0 : model.size() == 40) {
        ASSERT_TRUE(table->removeIds({&id, 1}));
        model.erase(id);
      } else {
        write(*table, id, model[id] = static_cast<float>(random() % 100'000));
      }
    }
    const std::vector<float> rows = lookedUp(*table, all, workers_);
    ASSERT_EQ(valueOrDie(publisher->publish()), generation);
    if (!published) published = valueOrDie(Published::open(path_));
    expectSameRows(lookedUp(*published, 0, all, generation), rows);
    for (const int64_t id : all) {
      std::vector<float> row(4);
      const auto seen = published->readRows(0, {&id, 1}, row.data());
      ASSERT_EQ(seen.has_value(), model.contains(id));
      if (seen) {
        ASSERT_EQ(row[0], model[id]);
      } else {
        ASSERT_EQ(seen.error().code(), ErrorCode::kNotFound);
      }
    }
  }
}

TEST_F(PublishedFile, MemoryIsGivenOutAgain) {
  const auto table = make("users", Place::kLocal, IdKind::kDense, 200'000);
  const auto publisher = publisherOf({table.get()}, path_);
  const auto blocks = [&] {
    struct stat file {};
    EXPECT_EQ(stat(path_.c_str(), &file), 0);
    return file.st_blocks;
  };
  valueOrDie(publisher->publish());
  const auto after_first = blocks();
  std::vector<int64_t> ids(1000);
  std::iota(ids.begin(), ids.end(), 0);
  for (int generation = 0; generation < 150; ++generation) {
    const std::vector<float> rows(4 * ids.size(), static_cast<float>(generation));
    ASSERT_TRUE(table->writeRows(ids, rows.data()));
    valueOrDie(publisher->publish());
  }
  // Once more those that change, in each of two generations: a piece of memory at the most. All of
  // them would be 2.4 MB.
  EXPECT_LE(blocks(), after_first + static_cast<blkcnt_t>(kMiB / 512));
  const auto published = valueOrDie(Published::open(path_));
  EXPECT_EQ(first(*published, 0, 999), 149.0f);
}

TEST_F(PublishedFile, APublishThatFailsChangesNothingAndTheNextMakesUpForIt) {
  Places again(Place::kRemote);
  const auto users = make("users");
  auto items = make("items", Place::kRemote);
  write(*users, 3, 1);
  write(*items, 3, 1);
  {
    const auto publisher = publisherOf({users.get(), items.get()}, path_);
    valueOrDie(publisher->publish());
    const auto published = valueOrDie(Published::open(path_));
    write(*users, 3, 2);
    write(*users, 4, 2);
    for (int64_t id = 0; id < 300; ++id) write(*items, id, 2);
    remote_.stopServer();
    // The local table's rows are written by then.
    const auto failed = publisher->publish();
    ASSERT_FALSE(failed);
    ASSERT_FALSE(publisher->publish());
    EXPECT_EQ(published->generation(), 1u);
    EXPECT_EQ(first(*published, 0, 3), 1.0f);
    EXPECT_NE(first(*published, 0, 4), 2.0f);
    EXPECT_EQ(first(*published, 1, 3), 1.0f);
  }
  items = again.table(items->options(), workers_);
  write(*items, 3, 5);
  const auto publisher = publisherOf({users.get(), items.get()}, path_);
  ASSERT_EQ(valueOrDie(publisher->publish()), 2u);
  const auto published = valueOrDie(Published::open(path_));
  EXPECT_EQ(first(*published, 0, 3), 2.0f);
  EXPECT_EQ(first(*published, 0, 4), 2.0f);
  EXPECT_EQ(first(*published, 1, 3), 5.0f);
}

TEST_F(PublishedFile, ABatchOfSeveralTablesIsPublishedWhole) {
  const auto users = make("users"), items = make("items", Place::kRemote);
  const std::vector<int64_t> ids{1, 2, 3};
  const std::vector<float> zeros(12), gradients(12, -1);
  for (EmbeddingTable* table : {users.get(), items.get()}) {
    ASSERT_TRUE(table->writeRows(ids, zeros.data()));
    OptimizerStep step;
    step.learning_rate = 1;  // so that each number counts the steps
    table->setStep(step);
  }
  const std::jthread trainer([&](const std::stop_token& stop) {
    const std::vector<int64_t> offsets = singles(ids.size());
    const EmbeddingTable::UpdateCall calls[] = {{users.get(), {ids, offsets}, gradients.data(), 4},
                                                {items.get(), {ids, offsets}, gradients.data(), 4}};
    while (!stop.stop_requested()) TP_CHECK(EmbeddingTable::updates(calls, workers_).has_value());
  });
  const auto publisher = publisherOf({items.get(), users.get()}, path_);
  std::unique_ptr<Published> published;
  for (uint64_t generation = 1; generation <= 200; ++generation) {
    while (users->counts().steps < generation) std::this_thread::yield();
    ASSERT_EQ(valueOrDie(publisher->publish()), generation);
    if (!published) published = valueOrDie(Published::open(path_));
    const std::vector<float> seen = lookedUp(*published, 0, ids, generation);
    expectSameRows(lookedUp(*published, 1, ids, generation), seen);
    expectSameRows(seen, std::vector<float>(12, seen[0]));
    EXPECT_GE(seen[0], static_cast<float>(generation));
  }
}

TEST_F(PublishedFile, WhatWasOvertakenIsNotUsed) {
  const auto table = make("users");
  const auto publisher = publisherOf({table.get()}, path_);
  valueOrDie(publisher->publish());
  const auto published = valueOrDie(Published::open(path_));
  const float row = first(*published, 0, 7);
  poke(1024 + 8, 2);  // the next generation is being written: not where this one is
  EXPECT_EQ(first(*published, 0, 7), row);
  EXPECT_EQ(published->repeated(), 0u);
  poke(1024 + 8, 3);
  std::vector<float> out(4);
  const int64_t id = 7;
  const auto read = published->readRows(0, {&id, 1}, out.data());
  ASSERT_FALSE(read);
  EXPECT_EQ(read.error().code(), ErrorCode::kTimedOut) << read.error().text();
  EXPECT_EQ(published->repeated(), 100u);
}

TEST_F(PublishedFile, AHalfThatIsBeingWrittenMayHaveAnythingInIt) {
  for (const IdKind ids : {IdKind::kDense, IdKind::kHashed}) {
    std::filesystem::remove(path_);
    const auto table = make("users", Place::kLocal, ids);
    for (int64_t id = 0; id < 300; ++id) write(*table, id, 1);
    const auto publisher = publisherOf({table.get()}, path_);
    valueOrDie(publisher->publish());
    const auto published = valueOrDie(Published::open(path_));
    ImageTable layout(table->options());
    const uint64_t first = 2 * kPageSize;
    layout.layOut(first);
    std::vector<uint32_t> garbage((layout.recordsAt() - first) / sizeof(uint32_t));
    std::mt19937_64 random(3);
    // Rows and places that there are among them, and some that cannot be.
    for (uint32_t& word : garbage)
      word = static_cast<uint32_t>(random() >> (32 + random() % 3 * 12));
    poke(first, garbage.data(), garbage.size() * sizeof(uint32_t));
    poke(1024 + 8, 3);
    std::vector<int64_t> all(300);
    std::iota(all.begin(), all.end(), 0);
    std::vector<float> out(4 * all.size());
    const auto read = published->readRows(0, all, out.data());
    ASSERT_FALSE(read);
    EXPECT_EQ(read.error().code(), ErrorCode::kTimedOut) << read.error().text();
  }
}

TEST_F(PublishedFile, WhatIsNoPublication) {
  expectNotOpen(ErrorCode::kNotFound, "cannot open published tables");
  const auto table = make("users");
  folder_.write("tables", "", std::filesystem::perms::owner_all);
  expectNotOpen(ErrorCode::kNotFound, "nothing is published");
  folder_.write("tables", "something else", std::filesystem::perms::owner_all);
  expectNotOpen(ErrorCode::kCorrupt, "another kind of file");
  expectNoPublisher({table.get()}, ErrorCode::kCorrupt, "another kind of file");
  std::filesystem::remove(path_);
  {
    const auto publisher = publisherOf({table.get()}, path_);
    expectNotOpen(ErrorCode::kNotFound, "nothing is published");
    valueOrDie(publisher->publish());
  }
  ASSERT_TRUE(Published::open(path_));
  const uint32_t later = 7;
  poke(8, &later, sizeof later);
  expectNotOpen(ErrorCode::kUnsupported, "has format 7");
  expectNoPublisher({table.get()}, ErrorCode::kUnsupported, "has format 7");
  const uint32_t now = 1;
  poke(8, &now, sizeof now);
  ASSERT_TRUE(Published::open(path_));
  struct stat file {};
  ASSERT_EQ(stat(path_.c_str(), &file), 0);
  ASSERT_EQ(truncate(path_.c_str(), file.st_size - 1), 0);
  expectNotOpen(ErrorCode::kCorrupt, "cut short");
  ASSERT_EQ(truncate(path_.c_str(), file.st_size), 0);
  poke(kPageSize + 24, 0xffff'ffff);  // the table's dim
  expectNotOpen(ErrorCode::kCorrupt, "damaged");
}

TEST_F(PublishedFile, AHeadWithAnythingInItEndsNoReader) {
  const auto table = make("users", Place::kLocal, IdKind::kHashed, 20);
  {
    const auto publisher = publisherOf({table.get()}, path_);
    valueOrDie(publisher->publish());
  }
  std::ifstream file(path_);
  std::vector<char> good(kPageSize + 512);
  ASSERT_TRUE(file.read(good.data(), static_cast<std::streamsize>(good.size())));
  std::mt19937_64 random(4);
  const int64_t id = 7;
  for (int damage = 0; damage < 2000; ++damage) {
    std::vector<char> bad = good;
    const size_t at = random() % 3 == 0 ? kPageSize + random() % 48 : random() % 64;
    bad[at] = static_cast<char>(random() >> (8 * (random() % 8)));
    poke(0, bad.data(), bad.size());
    const auto published = Published::open(path_);
    if (!published) continue;
    const uint32_t dim = (*published)->tables()[0].format().dim;
    std::vector<float> out(dim);
    const int64_t offsets[] = {0, 1};
    const Published::BagCall call{0, {{&id, 1}, offsets}, out.data(), dim};
    EXPECT_TRUE((*published)->bags({&call, 1}));
  }
}

TEST_F(PublishedFile, WhatIsDamagedIsNotGoneOnWith) {
  for (const IdKind ids : {IdKind::kDense, IdKind::kHashed}) {
    std::filesystem::remove(path_);
    const auto table = make("users", Place::kLocal, ids);
    for (int64_t id = 0; id < 300; ++id) write(*table, id, 1);
    {
      const auto publisher = publisherOf({table.get()}, path_);
      valueOrDie(publisher->publish());
    }
    // Of the half that is published, the second: places, and where ids are hashed entries.
    const uint64_t places = 3 * kPageSize, entries = 5 * kPageSize;
    std::vector<uint64_t> parts{places};
    if (ids == IdKind::kHashed) parts.push_back(entries);
    for (const uint64_t at : parts) {
      for (const uint32_t wrong : {1u, 2u, 301u, 0xffff'ffffu}) {
        std::vector<uint32_t> good(452), bad(452, wrong);
        const UniqueFd fd(open(path_.c_str(), O_RDONLY));
        const size_t size = (at == places ? 300 : 452) * sizeof(uint32_t);
        ASSERT_EQ(pread(fd.get(), good.data(), size, static_cast<off_t>(at)),
                  static_cast<ssize_t>(size));
        poke(at, bad.data(), size);
        expectNoPublisher({table.get()}, ErrorCode::kCorrupt, "damaged");
        poke(at, good.data(), size);
      }
    }
    const auto publisher = publisherOf({table.get()}, path_);
    ASSERT_TRUE(ids == IdKind::kDense || table->removeIds(std::vector<int64_t>{3, 5}));
    ASSERT_EQ(valueOrDie(publisher->publish()), 2u);
  }
}

TEST_F(PublishedFile, AFileThatIsGoneIsNotPublishedTo) {
  const auto table = make("users");
  write(*table, 9, 1);
  auto publisher = publisherOf({table.get()}, path_);
  valueOrDie(publisher->publish());
  const auto before = valueOrDie(Published::open(path_));
  std::filesystem::remove(path_);
  write(*table, 9, 2);
  const auto refused = publisher->publish();
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code(), ErrorCode::kNotFound) << refused.error().text();
  publisher.reset();
  publisher = publisherOf({table.get()}, path_);
  ASSERT_EQ(valueOrDie(publisher->publish()), 1u);
  EXPECT_EQ(first(*valueOrDie(Published::open(path_)), 0, 9), 2.0f);
  EXPECT_EQ(first(*before, 0, 9), 1.0f) << "its readers keep what they have";
  ASSERT_EQ(truncate(path_.c_str(), 0), 0);
  EXPECT_FALSE(publisher->publish());
}

TEST_F(PublishedFile, NumbersThatAreNoneKeepTheirBits) {
  const auto table = make("users");
  const auto publisher = publisherOf({table.get()}, path_);
  const uint32_t bits[] = {0x7fc0'1234, 0xffc0'0001, 0x8000'0000, 0x7f80'0000};
  std::vector<float> row(4), got(4);
  memcpy(row.data(), bits, sizeof bits);
  const int64_t id = 11;
  ASSERT_TRUE(table->writeRows({&id, 1}, row.data()));
  valueOrDie(publisher->publish());
  const auto published = valueOrDie(Published::open(path_));
  valueOrDie(published->readRows(0, {&id, 1}, got.data()));
  EXPECT_EQ(memcmp(got.data(), bits, sizeof bits), 0);
}

TEST_F(PublishedFile, OfAnotherHostOrBoot) {
  const auto table = make("users");
  {
    const auto publisher = publisherOf({table.get()}, path_);
    valueOrDie(publisher->publish());
  }
  poke(24, "another boot", 12);
  expectNotOpen(ErrorCode::kStaleEpoch, "another machine");
  const auto publisher = publisherOf({table.get()}, path_);
  expectNotOpen(ErrorCode::kNotFound, "nothing is published");
  ASSERT_EQ(valueOrDie(publisher->publish()), 1u);
  EXPECT_TRUE(Published::open(path_));
}

TEST_F(PublishedFile, OnePublisherATableAndAPath) {
  const auto users = make("users"), items = make("items"), same = make("users");
  const auto publisher = publisherOf({users.get()}, path_);
  expectNoPublisher({items.get()}, ErrorCode::kConflict, "another process");
  expectNoPublisher({users.get()}, ErrorCode::kConflict, "published to another path");
  expectNoPublisher({users.get(), same.get()}, ErrorCode::kInvalidArgument, "called users");
  expectNoPublisher({}, ErrorCode::kInvalidArgument, "0 tables");
  ASSERT_EQ(valueOrDie(publisher->publish()), 1u) << "what was refused has changed nothing";
  EXPECT_FALSE(Publisher::open(std::vector{items.get()}, "/dev/null", 0600));
  EXPECT_FALSE(Publisher::open(std::vector{items.get()}, folder_.path(), 0600));
  EXPECT_TRUE(Publisher::open(std::vector{items.get()}, folder_ / "other", 0600));
}

TEST_F(PublishedFile, OtherTablesAreNotMixedUp) {
  const auto users = make("users"), items = make("items");
  const auto hashed = make("users", Place::kLocal, IdKind::kHashed);
  {
    const auto publisher = publisherOf({users.get(), items.get()}, path_);
    valueOrDie(publisher->publish());
  }
  const auto published = valueOrDie(Published::open(path_));
  expectNoPublisher({items.get(), users.get()}, ErrorCode::kConflict, "other tables");
  expectNoPublisher({users.get()}, ErrorCode::kConflict, "other tables");
  expectNoPublisher({hashed.get(), items.get()}, ErrorCode::kConflict, "other tables");
  EXPECT_EQ(valueOrDie(published->find("items")), 1u);
  const auto none = published->find("others");
  ASSERT_FALSE(none);
  EXPECT_NE(strstr(none.error().text(), "users, items"), nullptr) << none.error().text();
  first(*published, 1, 5);
}

TEST_F(PublishedFile, WrongIds) {
  const auto table = make("users");
  const auto publisher = publisherOf({table.get()}, path_);
  valueOrDie(publisher->publish());
  const auto published = valueOrDie(Published::open(path_));
  std::vector<float> out(4, -7);
  for (const int64_t id : {int64_t{300}, int64_t{-1}, INT64_MIN}) {
    const auto read = published->readRows(0, {&id, 1}, out.data());
    ASSERT_FALSE(read);
    EXPECT_EQ(read.error().code(), ErrorCode::kInvalidArgument);
    const int64_t offsets[] = {0, 1};
    const Published::BagCall call{0, {{&id, 1}, offsets}, out.data(), 4};
    EXPECT_FALSE(published->bags({&call, 1}));
  }
  EXPECT_EQ(out, std::vector<float>(4, -7));
}

/// What another user is told who opens the file: his exit status is the error's code, 0 for none.
int openedByAnother(const std::string& path) {
  const pid_t child = fork();
  if (child == 0) {
    // Who is not root is himself, so that his rights are taken away instead.
    if (geteuid() == 0 && setuid(65534) != 0) _exit(99);
    const auto published = Published::open(path);
    _exit(published ? 0 : static_cast<int>(published.error().code()));
  }
  int status = 0;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

TEST_F(PublishedFile, WhoMayReadIsSaidByTheFile) {
  std::filesystem::permissions(folder_.path(), std::filesystem::perms(0755));
  const bool root = geteuid() == 0;
  const auto table = make("users");
  const mode_t before = umask(0);
  {
    const auto publisher = publisherOf({table.get()}, path_, root ? 0600 : 0);
    valueOrDie(publisher->publish());
    EXPECT_EQ(openedByAnother(path_), static_cast<int>(ErrorCode::kPermission));
  }
  std::filesystem::remove(path_);
  umask(0777);
  const auto publisher = publisherOf({table.get()}, path_, 0644);
  umask(before);
  struct stat file {};
  ASSERT_EQ(stat(path_.c_str(), &file), 0);
  EXPECT_EQ(file.st_mode & 07777, 0644u);
  valueOrDie(publisher->publish());
  EXPECT_EQ(openedByAnother(path_), 0);
}

TEST_F(PublishedFile, WhoGoesOnSaysWhoMayReadFromThenOn) {
  const auto table = make("users");
  for (const mode_t mode : {0644u, 0600u, 0640u}) {
    const auto publisher = publisherOf({table.get()}, path_, mode);
    struct stat file {};
    ASSERT_EQ(stat(path_.c_str(), &file), 0);
    EXPECT_EQ(file.st_mode & 07777, mode);
    valueOrDie(publisher->publish());
  }
}

TEST_F(PublishedFile, AFileOfAnotherUserIsNotWritten) {
  const auto table = make("users");
  folder_.write("tables", "", std::filesystem::perms(0666));
  if (chown(path_.c_str(), 65534, static_cast<gid_t>(-1)) != 0) GTEST_SKIP() << "only root can";
  expectNoPublisher({table.get()}, ErrorCode::kPermission, "another user");
  EXPECT_EQ(std::filesystem::file_size(path_), 0u);
}

TEST_F(PublishedFile, ChildrenOfForkReadAndDoNotPublish) {
  const auto table = make("users");
  write(*table, 9, 4);
  const auto publisher = publisherOf({table.get()}, path_);
  valueOrDie(publisher->publish());
  const auto published = valueOrDie(Published::open(path_));
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    const bool reads = first(*published, 0, 9) == 4.0f;
    const auto refused = publisher->publish();
    _exit(reads && !refused && refused.error().code() == ErrorCode::kUnsupported ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  write(*table, 9, 5);
  ASSERT_EQ(valueOrDie(publisher->publish()), 2u);
  EXPECT_EQ(first(*published, 0, 9), 5.0f);
}

}  // namespace
}  // namespace tidepool
