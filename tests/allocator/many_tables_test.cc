// SPDX-License-Identifier: Apache-2.0
// Thousands of small tables in a memory server, by a process with few file descriptors: against a
// model, coming and going, from several threads, and when the server is killed.
#include <sys/resource.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <optional>
#include <random>
#include <thread>
#include <vector>

#include "tests/allocator/tables_fixture.h"
#include "tests/entries.h"
#include "tests/migrate/server_process.h"

namespace tidepool {
namespace {

constexpr uint64_t kSmall = 10;
constexpr uint32_t kWide = 16;

/// A table of 10 rows, and what is in it.
class Small {
 public:
  Small(tidepool_context* context, uint64_t seed) : random_(seed) {
    tidepool_table_params params = tableParams("small");
    params.rows = kSmall;
    params.dim = kWide;
    params.id_kind = seed % 3 == 0 ? TIDEPOOL_HASHED : TIDEPOOL_DENSE;
    params.optimizer = seed % 2 == 0 ? TIDEPOOL_ADAGRAD : TIDEPOOL_SGD;
    params.dram_bytes = 64 * kKiB;
    table_ = makeTable(context, params);
    // Others had its memory before.
    for (int64_t id = 0; table_ != nullptr && id < static_cast<int64_t>(kSmall); ++id) write(id);
  }
  Small(const Small&) = delete;
  Small& operator=(const Small&) = delete;
  ~Small() {
    if (table_ == nullptr) return;
    check();
    EXPECT_EQ(tidepool_table_close(table_), TIDEPOOL_OK) << tidepool_error_text();
  }
  bool made() const { return table_ != nullptr; }
  void write(int64_t id) {
    float* const row = rows_[id];
    for (uint32_t i = 0; i < kWide; ++i) row[i] = static_cast<float>(random_() % 1000);
    EXPECT_EQ(tidepool_table_write_rows(table_, &id, 1, row, kWide), TIDEPOOL_OK)
        << tidepool_error_text();
  }
  void writeOne() { write(static_cast<int64_t>(random_() % kSmall)); }
  /// Sums of small whole numbers are exact.
  void check() {
    std::vector<int64_t> ids(1 + random_() % 12);
    std::vector<float> wanted(kWide), out(kWide, -1);
    for (int64_t& id : ids) {
      id = static_cast<int64_t>(random_() % kSmall);
      for (uint32_t i = 0; i < kWide; ++i) wanted[i] += rows_[id][i];
    }
    EXPECT_EQ(lookUp(table_, ids, {0, static_cast<int64_t>(ids.size())}, out), TIDEPOOL_OK)
        << tidepool_error_text();
    EXPECT_EQ(out, wanted);
  }

 private:
  tidepool_table* table_ = nullptr;
  std::mt19937_64 random_;
  float rows_[kSmall][kWide] = {};
};

class ManyTables : public testing::Test {
 protected:
  void open(Bytes size) {
    server_.emplace(size);
    ASSERT_NE(server_->port(), 0);
    const std::string conf = "budget_scope:managed,space:64G,dram:2G,far:remote:127.0.0.1:" +
                             std::to_string(server_->port());
    context_ = TestContext::openWith(conf.c_str());
    getrlimit(RLIMIT_NOFILE, &before_);
    rlimit few = before_;
    few.rlim_cur = 256;
    setrlimit(RLIMIT_NOFILE, &few);
  }
  void TearDown() override {
    setrlimit(RLIMIT_NOFILE, &before_);
    EXPECT_EQ(tidepool_close(context_), TIDEPOOL_OK) << tidepool_error_text();
  }
  std::unique_ptr<Small> make() { return std::make_unique<Small>(context_, ++made_); }

  std::optional<ServerProcess> server_;
  tidepool_context* context_ = nullptr;
  rlimit before_{};
  std::atomic<uint64_t> made_{0};
};

TEST_F(ManyTables, MoreOfThemThanThereAreDescriptors) {
  open(Bytes(256 * kMiB));
  std::vector<std::unique_ptr<Small>> tables;
  for (int i = 0; i < 2500; ++i) {
    tables.push_back(make());
    ASSERT_TRUE(tables.back()->made()) << i;
  }
  std::mt19937_64 random(1);
  for (int i = 0; i < 5000; ++i) {
    Small& table = *tables[random() % tables.size()];
    table.writeOne();
    table.check();
  }
  std::shuffle(tables.begin(), tables.end(), random);
  while (!tables.empty()) {
    tables.pop_back();
    if (!tables.empty()) tables[random() % tables.size()]->check();
  }
}

TEST_F(ManyTables, ThatComeAndGoLeaveNothingBehind) {
  open(Bytes(4 * kMiB));  // pages of a thousand tables
  std::vector<std::unique_ptr<Small>> tables;
  const auto kept = make();
  size_t descriptors = 0;
  std::mt19937_64 random(2);
  for (int round = 0; round < 1000; ++round) {
    for (int i = 0; i < 5; ++i) tables.push_back(make());
    ASSERT_TRUE(tables.back()->made()) << round;
    std::shuffle(tables.begin(), tables.end(), random);
    tables.resize(random() % 3);
    if (round % 100 != 99) continue;
    tables.clear();
    kept->check();
    if (descriptors == 0) descriptors = entries("/proc/self/fd");
    EXPECT_EQ(entries("/proc/self/fd"), descriptors) << round;
  }
}

TEST_F(ManyTables, ComingAndGoingBesideLookUps) {
  open(Bytes(64 * kMiB));
  std::vector<std::unique_ptr<Small>> stay;
  for (int i = 0; i < 20; ++i) stay.push_back(make());
  std::atomic<bool> stop{false};
  std::vector<std::thread> threads;
  for (size_t thread = 0; thread < 2; ++thread) {
    threads.emplace_back([&, thread] {
      while (!stop) {
        for (size_t i = thread; i < stay.size(); i += 2) {
          stay[i]->writeOne();
          stay[i]->check();
        }
      }
    });
  }
  std::vector<std::thread> changing;
  for (size_t thread = 0; thread < 2; ++thread) {
    changing.emplace_back([&, thread] {
      std::mt19937_64 random(thread);
      std::vector<std::unique_ptr<Small>> own;
      for (int round = 0; round < 150; ++round) {
        own.push_back(make());
        own[random() % own.size()]->writeOne();
        if (own.size() > 12) own.erase(own.begin() + static_cast<ptrdiff_t>(random() % own.size()));
      }
    });
  }
  for (std::thread& thread : changing) thread.join();
  stop = true;
  for (std::thread& thread : threads) thread.join();
}

TEST_F(ManyTables, SayAllThatTheirServerWasKilled) {
  open(Bytes(256 * kMiB));
  std::vector<tidepool_table*> tables;
  for (int i = 0; i < 60; ++i) {
    tidepool_table_params params = tableParams("large");
    params.dram_bytes = 64 * kKiB;  // of 125
    tables.push_back(makeTable(context_, params));
    ASSERT_NE(tables.back(), nullptr) << i;
  }
  std::vector<int64_t> ids(kRows);
  for (size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<int64_t>(i);
  const std::vector<int64_t> offsets{0, static_cast<int64_t>(kRows)};
  std::vector<float> out(kDim);
  const std::vector<float> rows(kRows * kDim, 1.0f);  // or nobody would need the server
  for (tidepool_table* table : tables) {
    ASSERT_OK(tidepool_table_write_rows(table, ids.data(), ids.size(), rows.data(), rows.size()));
    ASSERT_OK(lookUp(table, ids, offsets, out));
  }
  server_.reset();
  for (tidepool_table* table : tables) {
    for (int again = 0; again < 2; ++again) {
      EXPECT_EQ(lookUp(table, ids, offsets, out), TIDEPOOL_UNREACHABLE) << tidepool_error_text();
    }
  }
  for (tidepool_table* table : tables) ASSERT_OK(tidepool_table_close(table));
}

}  // namespace
}  // namespace tidepool
