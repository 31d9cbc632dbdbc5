// SPDX-License-Identifier: Apache-2.0
// Tables in the statistics of a run, which is played here: what stands there is what the tables say
// themselves after each call, and a table that found no room gets some later.
#include "allocator/table/listed_table.h"

#include <gtest/gtest.h>

#include <cstring>
#include <list>
#include <string>

#include "tests/table/table_fixture.h"

namespace tidepool {
namespace {

struct Listed {
  std::string name, tier;
  uint64_t rows, row_bytes;
  std::atomic<uint64_t> counts[4] = {};
};
std::list<Listed> listed;
size_t room = 0;
uint64_t more = 0;

std::atomic<uint64_t>* listHere(const TidepoolRunTable* table) {
  if (listed.size() == room) {
    ++more;
    return nullptr;
  }
  listed.emplace_back().name = table->name;
  listed.back().tier = table->tier;
  listed.back().rows = table->rows;
  listed.back().row_bytes = table->row_bytes;
  return listed.back().counts;
}

void strikeHere(const std::atomic<uint64_t>* counts) {
  if (counts == nullptr) --more;
  listed.remove_if([counts](const Listed& one) { return one.counts == counts; });
}

class ListedTables : public testing::Test {
 protected:
  ListedTables() {
    room = 8;
    run_.listTable = listHere;
    run_.strikeTable = strikeHere;
  }
  ~ListedTables() override {
    EXPECT_TRUE(listed.empty());
    EXPECT_EQ(more, 0u);
  }

  std::unique_ptr<EmbeddingTable> table(Places& places, Bytes dram) {
    TableOptions options;
    options.name = "users";
    options.rows = 5000;
    options.format = {ElementType::kFloat32, Optimizer::kAdagrad, 16};
    options.dram = dram;
    return places.table(options, workers_);
  }
  void train(EmbeddingTable& table) {
    const RandomBatch batch(random_, 5000, 200, 20, 16);
    std::vector<float> out(200 * 16);
    const EmbeddingTable::BagCall look_up{&table, batch.view(Pooling::kSum, false), out.data(), 16};
    ASSERT_TRUE(EmbeddingTable::bags({&look_up, 1}, workers_));
    expectTold(table);
    const EmbeddingTable::UpdateCall step{&table, look_up.batch, batch.gradients.data(), 16};
    ASSERT_TRUE(EmbeddingTable::updates({&step, 1}, workers_));
    expectTold(table);
    out.resize(batch.ids.size() * 16);
    ASSERT_TRUE(table.gatherRows(batch.ids, out.data()));
    expectTold(table);
    ASSERT_TRUE(table.gatherRows({}, nullptr)) << "no rows, for no ids";
    ASSERT_TRUE(table.scatterRows(batch.ids, out.data()));
    expectTold(table);
  }
  static void expectTold(EmbeddingTable& table) {
    const TableCounts counts = table.counts();
    EXPECT_GT(counts.lookups, 0u);
    EXPECT_EQ(listed.front().counts[0].load(), counts.lookups);
    EXPECT_EQ(listed.front().counts[1].load(), counts.hits);
    EXPECT_EQ(listed.front().counts[2].load(), counts.dram.value());
    EXPECT_EQ(listed.front().counts[3].load(), table.dram().value());
  }

  TidepoolRunApi run_{};
  Workers workers_{2};
  std::mt19937_64 random_{7};
};

TEST_F(ListedTables, SayWhatTheTablesSay) {
  for (const Place place : {Place::kLocal, Place::kDirect, Place::kRemote}) {
    Places places(place);
    const auto users = table(places, Bytes(256 * kKiB));
    users->listIn(run_, placeName(place));
    ASSERT_EQ(listed.size(), 1u);
    EXPECT_EQ(listed.front().name, "users");
    EXPECT_EQ(listed.front().tier, placeName(place));
    EXPECT_EQ(listed.front().rows, 5000u);
    EXPECT_EQ(listed.front().row_bytes, 128u);
    EXPECT_GT(listed.front().counts[2].load(), 0u);
    train(*users);
    ASSERT_TRUE(users->setDram(Bytes(512 * kKiB)));
    expectTold(*users);
    EXPECT_EQ(listed.front().counts[3].load(), place == Place::kLocal ? 0 : 512 * kKiB);
  }
}

TEST_F(ListedTables, OneWithoutRoomIsCountedUntilThereIsSome) {
  Places places(Place::kDirect);
  room = 1;
  auto first = table(places, Bytes(256 * kKiB));
  first->listIn(run_, "pool");
  const auto second = table(places, Bytes(256 * kKiB));
  second->listIn(run_, "pool");
  EXPECT_EQ(more, 1u);
  first.reset();
  EXPECT_TRUE(listed.empty());
  ASSERT_TRUE(second->setDram(Bytes(300 * kKiB)));
  EXPECT_EQ(more, 0u);
  ASSERT_EQ(listed.size(), 1u);
  train(*second);
}

TEST(RunThatListsTables, IsNoneOutsideRuns) { EXPECT_EQ(runThatListsTables(), nullptr); }

}  // namespace
}  // namespace tidepool
