// SPDX-License-Identifier: Apache-2.0
// The C API's publishers and published tables: what readers get, what is charged, and a precise
// error for each wrong argument.
#include <time.h>

#include <cstring>
#include <utility>

#include "tests/allocator/tables_fixture.h"
#include "tests/scratch_folder.h"

namespace tidepool {
namespace {

bool says(const char* part) { return strstr(tidepool_error_text(), part) != nullptr; }
#define EXPECT_REFUSED(call, part)                                     \
  EXPECT_EQ(call, TIDEPOOL_INVALID_ARGUMENT) << tidepool_error_text(); \
  EXPECT_TRUE(says(part)) << tidepool_error_text()

uint64_t now() {
  timespec time{};
  EXPECT_EQ(clock_gettime(CLOCK_REALTIME, &time), 0);
  return static_cast<uint64_t>(time.tv_sec) * 1'000'000'000 + static_cast<uint64_t>(time.tv_nsec);
}

class Publications : public testing::TestWithParam<FarMemory> {
 protected:
  Publications() {
    users_ = makeTable(test_.context, tableParams("users"));
    tidepool_table_params hashed = tableParams("items");
    hashed.id_kind = TIDEPOOL_HASHED;
    items_ = makeTable(test_.context, hashed);
    EXPECT_EQ(update(items_, ids_, offsets_, gradients_), TIDEPOOL_OK);
  }
  ~Publications() override {
    tidepool_published_close(published_);
    tidepool_publisher_free(publisher_);
    EXPECT_EQ(tidepool_table_close(users_), TIDEPOOL_OK) << tidepool_error_text();
    EXPECT_EQ(tidepool_table_close(items_), TIDEPOOL_OK) << tidepool_error_text();
  }
  void publish() {
    tidepool_table* const tables[] = {users_, items_};
    ASSERT_OK(tidepool_publisher_create(tables, 2, path_.c_str(), nullptr, &publisher_));
    ASSERT_OK(tidepool_publish(publisher_, nullptr));
    ASSERT_OK(tidepool_published_open(path_.c_str(), &published_));
  }
  uint64_t localBytes() const {
    tidepool_context_info info{};
    info.struct_size = sizeof info;
    EXPECT_EQ(tidepool_context_get_info(test_.context, &info), TIDEPOOL_OK);
    return info.charged_bytes;
  }

  TestContext test_ = TestContext::open(GetParam(), Bytes(32 * kMiB), Bytes(32 * kMiB));
  const ScratchFolder folder_{ScratchFolder::inMemory()};
  const std::string path_ = folder_ / "published";
  const std::vector<int64_t> ids_{1, 2, 3}, offsets_{0, 1, 3};
  const std::vector<float> gradients_ = std::vector<float>(2 * kDim, 1);
  tidepool_table *users_ = nullptr, *items_ = nullptr;
  tidepool_publisher* publisher_ = nullptr;
  tidepool_published* published_ = nullptr;
  const uint64_t began_ = now();
};

TEST_P(Publications, LookUpsAreThoseOfTheTables) {
  publish();
  tidepool_bags bags[] = {bagsOf(nullptr, ids_, offsets_), bagsOf(nullptr, ids_, offsets_)};
  bags[1].flags = TIDEPOOL_INSERT_NOTHING;
  std::vector<float> got[2] = {std::vector<float>(2 * kDim), std::vector<float>(2 * kDim)};
  float* const outs[] = {got[0].data(), got[1].data()};
  const size_t floats[] = {got[0].size(), got[1].size()};
  tidepool_published_table users{}, items{};
  users.struct_size = items.struct_size = sizeof users;
  ASSERT_OK(tidepool_published_find(published_, "users", &users));
  ASSERT_OK(tidepool_published_find(published_, "items", &items));
  EXPECT_EQ(users.rows, kRows);
  EXPECT_EQ(users.dim, kDim);
  EXPECT_EQ(users.id_kind, TIDEPOOL_DENSE);
  EXPECT_EQ(items.id_kind, TIDEPOOL_HASHED);
  const size_t tables[] = {users.table, items.table};
  for (uint64_t generation = 1; generation <= 3; ++generation) {
    uint64_t seen = 0;
    ASSERT_OK(tidepool_published_lookup(published_, tables, bags, 2, outs, floats, &seen));
    EXPECT_EQ(seen, generation);
    std::vector<float> wanted(2 * kDim);
    ASSERT_OK(lookUp(users_, ids_, offsets_, wanted));
    EXPECT_EQ(got[0], wanted);
    ASSERT_OK(lookUp(items_, ids_, offsets_, wanted));
    EXPECT_EQ(got[1], wanted);
    std::vector<float> row(kDim), of_table(kDim);
    ASSERT_OK(tidepool_published_read_rows(published_, tables[1], &ids_[1], 1, row.data(), kDim,
                                           nullptr));
    ASSERT_OK(tidepool_table_read_rows(items_, &ids_[1], 1, of_table.data(), kDim));
    EXPECT_EQ(row, of_table);
    ASSERT_OK(update(users_, ids_, offsets_, gradients_));
    ASSERT_OK(update(items_, ids_, offsets_, gradients_));
    uint64_t published = 0;
    ASSERT_OK(tidepool_publish(publisher_, &published));
    EXPECT_EQ(published, generation + 1);
  }
  tidepool_published_info info{};
  info.struct_size = sizeof info;
  ASSERT_OK(tidepool_published_get_info(published_, &info));
  EXPECT_EQ(info.generation, 4u);
  EXPECT_EQ(info.tables, 2u);
  EXPECT_EQ(info.repeated, 0u);
  EXPECT_GE(info.published_at, began_);
  EXPECT_LE(info.published_at, now());
}

TEST_P(Publications, TablesStayAndTheirBitsAreCharged) {
  const uint64_t before = localBytes();
  publish();
  // Two bits a row, of both tables, a word for 64.
  EXPECT_EQ(localBytes(), before + 2 * 2 * ((kRows + 63) / 64 * 8));
  EXPECT_EQ(tidepool_table_close(users_), TIDEPOOL_CONFLICT);
  EXPECT_TRUE(says("publisher")) << tidepool_error_text();
  tidepool_publisher_free(std::exchange(publisher_, nullptr));
  EXPECT_EQ(localBytes(), before);
  int64_t id = 1;
  std::vector<float> row(kDim);
  ASSERT_OK(tidepool_published_read_rows(published_, 0, &id, 1, row.data(), kDim, nullptr));
}

TEST_P(Publications, WrongArguments) {
  publish();
  tidepool_table* const tables[] = {users_, users_};
  tidepool_publisher* publisher = nullptr;
  const std::string path = folder_ / "other";
  EXPECT_REFUSED(tidepool_publisher_create(nullptr, 1, path.c_str(), nullptr, &publisher), "NULL");
  EXPECT_REFUSED(tidepool_publisher_create(tables, 0, path.c_str(), nullptr, &publisher), "none");
  EXPECT_REFUSED(tidepool_publisher_create(tables, 2, path.c_str(), nullptr, &publisher), "twice");
  EXPECT_REFUSED(tidepool_publisher_create(tables, 1, nullptr, nullptr, &publisher), "path");
  EXPECT_REFUSED(tidepool_publisher_create(tables, 1, path.c_str(), nullptr, nullptr), "out");
  tidepool_publisher_params params = TIDEPOOL_PUBLISHER_PARAMS_INIT;
  params.mode = 07777;
  EXPECT_REFUSED(tidepool_publisher_create(tables, 1, path.c_str(), &params, &publisher), "mode");
  params.struct_size = 3;
  EXPECT_REFUSED(tidepool_publisher_create(tables, 1, path.c_str(), &params, &publisher), "_INIT");
  EXPECT_EQ(tidepool_publisher_create(tables, 1, path.c_str(), nullptr, &publisher),
            TIDEPOOL_CONFLICT);
  EXPECT_REFUSED(tidepool_publish(nullptr, nullptr), "publisher");
  tidepool_publisher_free(nullptr);

  tidepool_published* published = nullptr;
  EXPECT_REFUSED(tidepool_published_open(nullptr, &published), "path");
  EXPECT_REFUSED(tidepool_published_open(path_.c_str(), nullptr), "out");
  EXPECT_EQ(tidepool_published_open(path.c_str(), &published), TIDEPOOL_NOT_FOUND);
  tidepool_published_close(nullptr);
  tidepool_published_table found{};
  EXPECT_REFUSED(tidepool_published_find(published_, "users", &found), "struct_size");
  EXPECT_REFUSED(tidepool_published_find(published_, nullptr, &found), "name");
  EXPECT_REFUSED(tidepool_published_find(nullptr, "users", &found), "published");
  EXPECT_EQ(tidepool_published_find(published_, "nobody", &found), TIDEPOOL_NOT_FOUND);
  EXPECT_TRUE(says("users, items")) << tidepool_error_text();
}

TEST_P(Publications, WrongLookUps) {
  publish();
  const auto look = [this](size_t table, const tidepool_bags& bags, float* out, size_t floats) {
    return tidepool_published_lookup(published_, &table, &bags, 1, &out, &floats, nullptr);
  };
  std::vector<float> out(2 * kDim, -7);
  const tidepool_bags good = bagsOf(nullptr, ids_, offsets_);
  EXPECT_REFUSED(look(2, good, out.data(), out.size()), "no table 2");
  EXPECT_REFUSED(look(0, good, out.data(), out.size() - 1), "floats");
  EXPECT_REFUSED(look(0, good, nullptr, out.size()), "outs");
  tidepool_bags bags = good;
  bags.flags = 2;
  EXPECT_REFUSED(look(0, bags, out.data(), out.size()), "flags 2");
  bags = good;
  bags.pooling = 9;
  EXPECT_REFUSED(look(0, bags, out.data(), out.size()), "tidepool_pooling");
  bags = good;
  bags.struct_size = 5;
  EXPECT_REFUSED(look(0, bags, out.data(), out.size()), "struct_size");
  bags = good;
  bags.ids = reinterpret_cast<const int64_t*>(out.data());
  EXPECT_REFUSED(look(0, bags, out.data(), out.size()), "that of out");
  const std::vector<int64_t> wrong_ids{1, 2, kRows}, wrong_offsets{0, 2, 1};
  EXPECT_REFUSED(look(0, bagsOf(nullptr, wrong_ids, offsets_), out.data(), out.size()), "4000");
  EXPECT_REFUSED(look(0, bagsOf(nullptr, ids_, wrong_offsets), out.data(), out.size()), "offsets");
  EXPECT_REFUSED(
      tidepool_published_lookup(published_, nullptr, &good, 1, nullptr, nullptr, nullptr), "NULL");
  EXPECT_EQ(tidepool_published_lookup(published_, nullptr, nullptr, 0, nullptr, nullptr, nullptr),
            TIDEPOOL_OK);
  EXPECT_REFUSED(
      tidepool_published_read_rows(published_, 7, ids_.data(), 1, out.data(), kDim, nullptr),
      "no table 7");
  EXPECT_REFUSED(tidepool_published_read_rows(published_, 0, nullptr, 1, out.data(), kDim, nullptr),
                 "ids is NULL");
  EXPECT_EQ(out, std::vector<float>(2 * kDim, -7));
}

INSTANTIATE_TEST_SUITE_P(Far, Publications,
                         testing::Values(FarMemory::kNone, FarMemory::kCxl, FarMemory::kRemote),
                         farName);

}  // namespace
}  // namespace tidepool
