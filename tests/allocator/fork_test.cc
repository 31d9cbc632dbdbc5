// SPDX-License-Identifier: Apache-2.0
// fork() while other threads work in heaps: parent and child each go on with their own copy, far
// pages and pinned ones included, and the child can make and destroy heaps.
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cstring>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "tests/allocator/tables_fixture.h"
#include "tests/migrate/server_process.h"
#include "tests/scratch_folder.h"

namespace tidepool {
namespace {

constexpr uint64_t kSize = 24 * kMiB;
constexpr uint64_t kWords = kSize / sizeof(uint64_t);
constexpr uint64_t kStep = 256;

void fill(uint64_t* words, uint64_t with) {
  for (uint64_t i = 0; i < kWords; i += kStep) words[i] = i ^ with;
}
bool holds(const uint64_t* words, uint64_t with) {
  for (uint64_t i = 0; i < kWords; i += kStep) {
    if (words[i] != (i ^ with)) return false;
  }
  return true;
}

/// Exit status of a child that does this; a child says what is wrong by a number.
template <typename Act>
int inChild(Act act) {
  const pid_t child = fork();
  if (child == 0) _exit(act());
  int status = 0;
  waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 200;
}

int liveOn(tidepool_context* context, tidepool_heap* heap, uint64_t* words) {
  if (!holds(words, 1)) return 1;
  fill(words, 2);
  for (int i = 0; i < 1000; ++i) {
    char* block = static_cast<char*>(tidepool_alloc(heap, 100));
    if (block == nullptr) return 2;
    memset(block, 1, 100);
    if (i % 2 != 0 && tidepool_free(heap, block) != TIDEPOOL_OK) return 3;
  }
  tidepool_heap* mine = nullptr;
  if (tidepool_heap_create(context, nullptr, &mine) != TIDEPOOL_OK) return 4;
  if (tidepool_alloc(mine, kMiB) == nullptr) return 5;
  if (!holds(words, 2)) return 6;
  if (tidepool_heap_destroy(mine) != TIDEPOOL_OK) return 7;
  if (tidepool_free(heap, words) != TIDEPOOL_OK) return 8;
  return tidepool_heap_destroy(heap) == TIDEPOOL_OK ? 0 : 9;
}

void forkUnderLoad(const char* conf, tidepool_heap_params params) {
  tidepool_context* const context = TestContext::openWith(conf);
  tidepool_heap* heap = nullptr;
  ASSERT_EQ(tidepool_heap_create(context, &params, &heap), TIDEPOOL_OK) << tidepool_error_text();
  auto* const words = static_cast<uint64_t*>(tidepool_alloc(heap, kSize));
  ASSERT_NE(words, nullptr) << tidepool_error_text();
  fill(words, 1);
  std::atomic<bool> stop{false};
  std::array<std::atomic<uint64_t>, 2> turns{};
  std::vector<std::thread> threads;
  for (std::atomic<uint64_t>& of_thread : turns) {
    threads.emplace_back([&] {
      while (!stop) {
        void* blocks[40];
        for (size_t i = 0; i < 40; ++i) blocks[i] = tidepool_alloc(heap, 10 << (i % 12));
        for (void* block : blocks) tidepool_free(heap, block);
        of_thread.fetch_add(1, std::memory_order_relaxed);
      }
    });
  }
  // A fork is of interest once all are at work; and AddressSanitizer's allocator is not safe to
  // fork while a thread starts.
  for (std::atomic<uint64_t>& of_thread : turns) {
    while (of_thread.load() == 0) std::this_thread::yield();
  }
  for (int round = 0; round < 3; ++round) {
    EXPECT_EQ(inChild([&] { return liveOn(context, heap, words); }), 0);
    EXPECT_TRUE(holds(words, 1));
  }
  stop = true;
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(tidepool_heap_destroy(heap), TIDEPOOL_OK);
  EXPECT_EQ(tidepool_close(context), TIDEPOOL_OK);
}

constexpr const char* kConf = "budget_scope:managed,space:64G,dram:";

TEST(Fork, WithAnEmulatedPool) {
  forkUnderLoad((std::string(kConf) + "12M,far:cxl:256M").c_str(), TIDEPOOL_HEAP_PARAMS_INIT);
}

TEST(Fork, WithAMemoryServer) {
  ServerProcess server(Bytes(512 * kMiB));
  ASSERT_NE(server.port(), 0);
  forkUnderLoad(
      (std::string(kConf) + "12M,far:remote:127.0.0.1:" + std::to_string(server.port())).c_str(),
      TIDEPOOL_HEAP_PARAMS_INIT);
}

TEST(Fork, WithAHeapInLocalMemory) {
  tidepool_heap_params params = TIDEPOOL_HEAP_PARAMS_INIT;
  params.policy = TIDEPOOL_PINNED;
  params.tier = "local";
  forkUnderLoad((std::string(kConf) + "96M,far:cxl:256M").c_str(), params);
}

int useNoTableOfTheParent(tidepool_context* context, tidepool_table* table) {
  std::vector<float> out(kDim);
  if (lookUp(table, {1}, {0, 1}, out) != TIDEPOOL_UNSUPPORTED) return 1;
  if (strstr(tidepool_error_text(), "belongs to process") == nullptr) return 2;
  if (tidepool_table_close(table) != TIDEPOOL_OK) return 3;
  tidepool_table* own = nullptr;
  const tidepool_table_params params = tableParams("own");
  if (tidepool_table_create(context, &params, &own) != TIDEPOOL_OK) return 4;
  if (lookUp(own, {1}, {0, 1}, out) != TIDEPOOL_OK) return 5;
  return tidepool_table_close(own) == TIDEPOOL_OK ? 0 : 6;
}

/// A table stays its parent's, and is as it was.
void forkWithATable(const char* conf) {
  tidepool_context* const context = TestContext::openWith(conf);
  tidepool_table* const table = makeTable(context, tableParams("items"));
  const std::vector<int64_t> ids{1, 2, 3000}, offsets{0, 3};
  std::vector<float> before(kDim), after(kDim);
  ASSERT_OK(lookUp(table, ids, offsets, before));
  for (int round = 0; round < 3; ++round) {
    EXPECT_EQ(inChild([&] { return useNoTableOfTheParent(context, table); }), 0);
    ASSERT_OK(lookUp(table, ids, offsets, after));
    EXPECT_EQ(after, before);
    ASSERT_OK(update(table, ids, offsets, after));
    ASSERT_OK(lookUp(table, ids, offsets, before));
  }
  ASSERT_OK(tidepool_table_close(table));
  ASSERT_OK(tidepool_close(context));
}

TEST(ForkWithTables, InLocalMemory) { forkWithATable((std::string(kConf) + "32M").c_str()); }

TEST(ForkWithTables, InAnEmulatedPool) {
  forkWithATable((std::string(kConf) + "32M,far:cxl:64M").c_str());
}

TEST(ForkWithTables, InAMemoryServer) {
  ServerProcess server(Bytes(256 * kMiB));
  ASSERT_NE(server.port(), 0);
  forkWithATable(
      (std::string(kConf) + "32M,far:remote:127.0.0.1:" + std::to_string(server.port())).c_str());
}

TEST(ForkWithTables, AChildEndsItsCopyOfAPublisherInAnyOrder) {
  const ScratchFolder folder;
  const std::string path = folder / "published";
  tidepool_context* const context = TestContext::openWith((std::string(kConf) + "32M").c_str());
  tidepool_table* const table = makeTable(context, tableParams("items"));
  tidepool_publisher* publisher = nullptr;
  ASSERT_OK(tidepool_publisher_create(&table, 1, path.c_str(), nullptr, &publisher));
  ASSERT_OK(tidepool_publish(publisher, nullptr));
  EXPECT_EQ(inChild([&] {
              if (tidepool_publish(publisher, nullptr) != TIDEPOOL_UNSUPPORTED) return 1;
              if (tidepool_table_close(table) != TIDEPOOL_OK) return 2;
              if (tidepool_close(context) != TIDEPOOL_OK) return 3;
              tidepool_publisher_free(publisher);
              return 0;
            }),
            0);
  uint64_t generation = 0;
  ASSERT_OK(tidepool_publish(publisher, &generation));
  EXPECT_EQ(generation, 2u);
  tidepool_publisher_free(publisher);
  ASSERT_OK(tidepool_table_close(table));
  ASSERT_OK(tidepool_close(context));
}

/// Of a checkpoint that is under way, whose threads the child does not have.
TEST(ForkWithTables, AChildMayEndACheckpointAfterItsTables) {
  const ScratchFolder folder;
  tidepool_context* const context = TestContext::openWith((std::string(kConf) + "32M").c_str());
  tidepool_table* const table = makeTable(context, tableParams("items"));
  tidepool_checkpoint* checkpoint = nullptr;
  tidepool_checkpoint_params slow = TIDEPOOL_CHECKPOINT_PARAMS_INIT;
  slow.bytes_per_second = 1;
  ASSERT_OK(tidepool_checkpoint_start(&table, 1, (folder / "points").c_str(), &slow, &checkpoint));
  EXPECT_EQ(inChild([&] {
              if (tidepool_checkpoint_wait(checkpoint, nullptr) != TIDEPOOL_UNSUPPORTED) return 1;
              if (tidepool_checkpoint_cancel(checkpoint) != TIDEPOOL_UNSUPPORTED) return 4;
              tidepool_checkpoint_info info = {};
              info.struct_size = sizeof info;
              if (tidepool_checkpoint_progress(checkpoint, &info) != TIDEPOOL_UNSUPPORTED) return 5;
              if (tidepool_table_close(table) != TIDEPOOL_OK) return 2;
              if (tidepool_close(context) != TIDEPOOL_OK) return 3;
              tidepool_checkpoint_free(checkpoint);
              return 0;
            }),
            0);
  EXPECT_EQ(tidepool_table_close(table), TIDEPOOL_CONFLICT) << "the checkpoint is the parent's yet";
  tidepool_checkpoint_free(checkpoint);
  ASSERT_OK(tidepool_table_close(table));
  ASSERT_OK(tidepool_close(context));
}

/// Bytes of anonymous memory that this process has in pages of its own or of its parent's.
uint64_t anonymousBytes() {
  std::ifstream status("/proc/self/status");
  for (std::string word; status >> word;) {
    uint64_t kib = 0;
    if (word == "RssAnon:" && status >> kib) return kib * kKiB;
  }
  return 0;
}

/// What a program's helpers (a loader's workers) have for pages is not what its tables leave.
TEST(ForkWithTables, LeavesTheChildTheLocalMemoryThatTheyHave) {
  ServerProcess server(Bytes(256 * kMiB));
  ASSERT_NE(server.port(), 0);
  tidepool_context* const context = TestContext::openWith(
      (std::string(kConf) + "96M,far:remote:127.0.0.1:" + std::to_string(server.port())).c_str());
  tidepool_table_params params = tableParams("local");
  params.tier = "local";
  params.rows = 32 * kMiB / (params.dim * sizeof(float));
  tidepool_table* const local = makeTable(context, params);
  params.name = "far";
  params.tier = nullptr;
  tidepool_table* const far = makeTable(context, params);  // shares, so that half is theirs
  EXPECT_EQ(tidepool_tables_set_budget(context, 88 * kMiB), TIDEPOOL_NO_SPACE);
  const uint64_t before = anonymousBytes();
  EXPECT_GT(before, 32 * kMiB);
  EXPECT_EQ(inChild([&] {
              if (anonymousBytes() > before - 32 * kMiB) return 1;
              if (tidepool_tables_set_budget(context, 88 * kMiB) != TIDEPOOL_OK) return 2;
              if (tidepool_table_close(far) != TIDEPOOL_OK) return 3;
              if (tidepool_table_close(local) != TIDEPOOL_OK) return 4;
              if (tidepool_tables_set_budget(context, 88 * kMiB) != TIDEPOOL_OK) return 5;
              return tidepool_tables_set_budget(context, 97 * kMiB) == TIDEPOOL_NO_SPACE ? 0 : 6;
            }),
            0);
  ASSERT_OK(tidepool_table_close(far));
  ASSERT_OK(tidepool_table_close(local));
  ASSERT_OK(tidepool_close(context));
}

/// More of them than a tier opens connections.
constexpr size_t kSharing = 24;

tidepool_table* makeSharing(tidepool_context* context) {
  tidepool_table_params params = tableParams("items");
  params.dram_bytes = 64 * kKiB;  // of 125
  tidepool_table* table = nullptr;
  tidepool_table_create(context, &params, &table);
  return table;
}

/// Looks rows up that are not all at hand. False: they are not what they were.
bool keepsItsRows(tidepool_table* table, size_t turn, std::vector<float>& first) {
  std::vector<int64_t> ids(kRows / 2), offsets{0, static_cast<int64_t>(kRows / 2)};
  for (size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<int64_t>(2 * i + turn % 2);
  std::vector<float> out(kDim);
  if (lookUp(table, ids, offsets, out) != TIDEPOOL_OK) return false;
  if (turn % 2 != 0) return true;
  if (first.empty()) first = out;
  return out == first;
}

int useManyOfItsOwn(tidepool_context* context, tidepool_table* parents) {
  std::vector<tidepool_table*> own;
  std::vector<std::vector<float>> first(kSharing);
  for (size_t i = 0; i < kSharing; ++i) {
    own.push_back(makeSharing(context));
    if (own.back() == nullptr) return 1;
  }
  for (size_t turn = 0; turn < 4; ++turn) {
    for (size_t i = 0; i < kSharing; ++i) {
      if (!keepsItsRows(own[i], turn, first[i])) return 2;
    }
  }
  std::vector<float> out(kDim);
  if (lookUp(parents, {1}, {0, 1}, out) != TIDEPOOL_UNSUPPORTED) return 3;
  for (tidepool_table* table : own) {
    if (tidepool_table_close(table) != TIDEPOOL_OK) return 4;
  }
  return 0;
}

TEST(ForkWithTables, ThatShareConnectionsWhileThreadsUseThem) {
  ServerProcess server(Bytes(256 * kMiB));
  ASSERT_NE(server.port(), 0);
  tidepool_context* const context = TestContext::openWith(
      (std::string(kConf) + "32M,far:remote:127.0.0.1:" + std::to_string(server.port())).c_str());
  std::vector<tidepool_table*> tables;
  for (size_t i = 0; i < kSharing; ++i) {
    tables.push_back(makeSharing(context));
    ASSERT_NE(tables.back(), nullptr) << tidepool_error_text();
  }
  std::atomic<bool> stop{false};
  std::array<std::atomic<uint64_t>, 2> turns{};
  std::atomic<int> wrong{0};
  std::vector<std::thread> threads;
  for (size_t thread = 0; thread < 2; ++thread) {
    threads.emplace_back([&, thread] {
      std::vector<std::vector<float>> first(kSharing);
      while (!stop) {
        const uint64_t turn = turns[thread].fetch_add(1);
        for (size_t i = thread; i < kSharing; i += 2) {
          wrong += keepsItsRows(tables[i], turn, first[i]) ? 0 : 1;
        }
      }
    });
  }
  for (auto& of_thread : turns) {
    while (of_thread.load() == 0) std::this_thread::yield();
  }
  for (int round = 0; round < 3; ++round) {
    EXPECT_EQ(inChild([&] { return useManyOfItsOwn(context, tables[0]); }), 0);
  }
  stop = true;
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong.load(), 0);
  for (tidepool_table* table : tables) ASSERT_OK(tidepool_table_close(table));
  ASSERT_OK(tidepool_close(context));
}

}  // namespace
}  // namespace tidepool
