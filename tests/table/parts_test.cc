// SPDX-License-Identifier: Apache-2.0
// The small parts of a table: ids and their rows, look-ups ordered by row, first values, workers.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cmath>
#include <map>
#include <numeric>
#include <random>
#include <set>
#include <thread>
#include <unordered_map>
#include <vector>

#include "allocator/table/id_map.h"
#include "allocator/table/initializer.h"
#include "allocator/table/occurrences.h"
#include "allocator/table/workers.h"

namespace tidepool {
namespace {

TEST(IdMap, AgainstAModel) {
  constexpr size_t kRows = 3000;
  IdMap map = std::move(*IdMap::create(kRows));
  std::unordered_map<uint64_t, RowNumber> model;
  std::mt19937_64 random(1);
  std::vector<int64_t> ids;
  // Ids that look alike: multiples of large powers of two, small numbers, negative ones.
  for (int i = 0; i < 6000; ++i) {
    const uint64_t small = random() % 1200;
    ids.push_back(static_cast<int64_t>(i % 3 == 0 ? small << 48 : i % 3 == 1 ? small : ~small));
  }
  for (const int64_t id : ids) {
    const auto key = static_cast<uint64_t>(id);
    const auto known = model.find(key);
    ASSERT_EQ(map.find(key), known == model.end() ? IdMap::kNone : known->second);
    if (known == model.end() && map.count() < map.capacity()) {
      ASSERT_EQ(map.insert(key), model.size());
      model.emplace(key, model.size());
    }
  }
  std::vector<RowNumber> rows(ids.size());
  map.findMany(ids, rows.data());
  for (size_t i = 0; i < ids.size(); ++i) {
    const auto known = model.find(static_cast<uint64_t>(ids[i]));
    ASSERT_EQ(rows[i], known == model.end() ? IdMap::kNone : known->second);
  }
  for (const auto& [id, row] : model) ASSERT_EQ(map.id(row), id);
}

/// Ids that have rows, and which rows no id has.
void expectAsModel(const IdMap& map, const std::map<uint64_t, RowNumber>& model, RowNumber end) {
  ASSERT_EQ(map.count(), model.size());
  ASSERT_EQ(map.end(), end);
  std::vector<bool> live(end);
  std::map<RowNumber, int64_t> by_row;
  for (const auto& [id, row] : model) {
    ASSERT_EQ(map.find(id), row);
    ASSERT_EQ(map.id(row), id);
    live[row] = true;
    by_row.emplace(row, static_cast<int64_t>(id));
  }
  for (RowNumber row = 0; row < end; ++row) ASSERT_EQ(map.live(row), live[row]) << row;
  std::vector<int64_t> wanted, listed(model.size() + 1);
  for (const auto& [row, id] : by_row) wanted.push_back(id);
  for (size_t first = 0; first <= model.size(); first += model.size() / 3 + 1) {
    listed.resize(map.list(first, listed));
    ASSERT_EQ(listed,
              std::vector<int64_t>(wanted.begin() + static_cast<ptrdiff_t>(first), wanted.end()));
    listed.resize(model.size() + 1);
  }
}

// Ids of few values in a map that is nearly full, so that searches are long, go round its end and
// cross places that were given up; rows that no id has are given out again before new ones.
TEST(IdMap, ErasesAsAModelDoes) {
  for (const size_t capacity : {1, 2, 63, 64, 200, 1000}) {
    IdMap map = std::move(*IdMap::create(capacity));
    std::map<uint64_t, RowNumber> model;
    std::set<RowNumber> free;
    std::mt19937_64 random(capacity);
    RowNumber end = 0;
    for (int i = 0; i < 20'000; ++i) {
      const uint64_t id = random() % (capacity + capacity / 4 + 1) << 40;
      const auto known = model.find(id);
      ASSERT_EQ(map.find(id), known == model.end() ? IdMap::kNone : known->second);
      if (known != model.end() && random() % 2 == 0) {
        map.erase(known->second);
        free.insert(known->second);
        model.erase(known);
      } else if (known == model.end() && model.size() < capacity) {
        const RowNumber row = map.insert(id);
        ASSERT_TRUE(free.empty() ? row == end : free.erase(row) == 1) << row;
        end = std::max(end, row + 1);
        model.emplace(id, row);
      }
      if (i % 997 == 0) expectAsModel(map, model, end);
    }
    map.clear();
    expectAsModel(map, {}, 0);
    ASSERT_EQ(map.insert(5), 0u);
  }
}

TEST(IdMap, UndoesWhatItInsertedLast) {
  IdMap map = std::move(*IdMap::create(100));
  std::map<uint64_t, RowNumber> model;
  for (uint64_t id = 0; id < 60; ++id) model.emplace(id * 7, map.insert(id * 7));
  for (const uint64_t id : {3, 50, 20}) map.erase(id), model.erase(id * 7);
  std::vector<RowNumber> rows;
  for (uint64_t id = 1000; id < 1025; ++id) rows.push_back(map.insert(id));
  EXPECT_EQ(map.end(), 82u);
  map.undo(rows, 60);
  expectAsModel(map, model, 60);
  EXPECT_EQ(map.insert(1), rows[0]);
}

TEST(IdMap, IsPutTogetherRowByRow) {
  IdMap map = std::move(*IdMap::create(10));
  map.append(70);
  map.appendFree();
  map.append(71);
  map.appendFree();
  expectAsModel(map, {{70, 0}, {71, 2}}, 4);
  std::set<RowNumber> given{map.insert(1), map.insert(2)};
  EXPECT_EQ(given, (std::set<RowNumber>{1, 3}));
  EXPECT_EQ(map.insert(3), 4u);
}

TEST(IdMap, CostsAtMostSixteenBytesARow) {
  constexpr size_t kRows = 200'000;
  IdMap map = std::move(*IdMap::create(kRows));
  for (uint64_t id = 0; id < kRows; ++id) map.insert(id << 20);
  EXPECT_LE(map.memory().value(), 16 * kRows);
}

TEST(IdMap, RefusesWhatItCannotNumber) {
  EXPECT_EQ(IdMap::create(0).error().code(), ErrorCode::kInvalidArgument);
  EXPECT_EQ(IdMap::create(size_t{1} << 32).error().code(), ErrorCode::kInvalidArgument);
}

void expectOrdered(const std::vector<RowNumber>& batch) {
  Occurrences occurrences;
  occurrences.order(batch);
  size_t seen = 0;
  for (size_t i = 0; i < occurrences.rows().size(); ++i) {
    if (i > 0) {
      ASSERT_LT(occurrences.rows()[i - 1], occurrences.rows()[i]);
    }
    ASSERT_FALSE(occurrences.positions(i).empty());
    for (size_t k = 0; k < occurrences.positions(i).size(); ++k) {
      ASSERT_EQ(batch[occurrences.positions(i)[k]], occurrences.rows()[i]);
      if (k > 0) {
        ASSERT_LT(occurrences.positions(i)[k - 1], occurrences.positions(i)[k]);
      }
      ++seen;
    }
  }
  ASSERT_EQ(seen, batch.size());
}

TEST(Occurrences, EveryLookupOnceInItsOrder) {
  std::mt19937_64 random(2);
  expectOrdered({});
  expectOrdered({5});
  expectOrdered({0, 0, 0});
  for (const RowNumber rows : {1ull, 7ull, 2048ull, 2049ull, 5'000'000ull, 1ull << 35}) {
    std::vector<RowNumber> batch(3000);
    for (RowNumber& row : batch) row = random() % rows;
    expectOrdered(batch);
  }
}

TEST(Initializer, DependsOnSeedAndIdAlone) {
  const Initializer one{Initializer::Kind::kUniform, -0.5f, 0.5f, 7};
  std::vector<float> a(64), b(64), shorter(10);
  one.fill(123, a);
  one.fill(123, b);
  one.fill(123, shorter);
  EXPECT_EQ(a, b);
  EXPECT_TRUE(std::equal(shorter.begin(), shorter.end(), a.begin()));
  one.fill(124, b);
  EXPECT_NE(a, b);
  Initializer{Initializer::Kind::kUniform, -0.5f, 0.5f, 8}.fill(123, b);
  EXPECT_NE(a, b);
}

TEST(Initializer, DistributedAsItSays) {
  std::vector<float> values(200'000);
  Initializer{Initializer::Kind::kUniform, -1.0f, 3.0f, 1}.fill(1, values);
  for (const float value : values) ASSERT_TRUE(value >= -1.0f && value <= 3.0f);
  double sum = std::accumulate(values.begin(), values.end(), 0.0);
  EXPECT_NEAR(sum / values.size(), 1.0, 0.02);
  Initializer{Initializer::Kind::kNormal, 2.0f, 0.5f, 1}.fill(1, values);
  sum = std::accumulate(values.begin(), values.end(), 0.0);
  double squares = 0;
  for (const float value : values) squares += (value - 2.0) * (value - 2.0);
  EXPECT_NEAR(sum / values.size(), 2.0, 0.01);
  EXPECT_NEAR(std::sqrt(squares / values.size()), 0.5, 0.01);
}

TEST(Workers, EveryTaskOnce) {
  for (const size_t threads : {1u, 2u, 5u}) {
    Workers workers(threads);
    EXPECT_EQ(workers.threads(), threads);
    for (const size_t tasks : {0u, 1u, 2u, 3u, 1000u}) {
      std::vector<std::atomic<int>> done(tasks);
      workers.run(tasks, [&](size_t task, size_t worker) {
        ASSERT_LT(worker, threads);
        done[task].fetch_add(1, std::memory_order_relaxed);
      });
      for (auto& count : done) ASSERT_EQ(count.load(), 1);
    }
  }
}

TEST(Workers, WhatTakesLessTimeThanToWakeOneUpIsDoneAlone) {
  Workers workers(3, 100);
  std::atomic<int> waiting{0};
  size_t done = 0;
  workers.run(
      8,
      [&](size_t, size_t worker) {
        EXPECT_EQ(worker, 0u);
        ++done;  // one thread's alone
      },
      99);
  EXPECT_EQ(done, 8u);
  // Tasks that each wait for the others need as many threads.
  workers.run(
      3,
      [&](size_t, size_t) {
        waiting.fetch_add(1);
        while (waiting.load() < 3) std::this_thread::yield();
      },
      100);
  EXPECT_EQ(waiting.load(), 3);
}

/// Threads made for each run: `came` of those that are asked for.
struct FakeTeam {
  static inline thread_local size_t number = 0;
  static inline size_t size = 3, came = 3;
  static inline std::atomic<size_t> runs{0};

  static void run(void (*act)(void*), void* argument, size_t threads) {
    ++runs;
    EXPECT_EQ(threads, size);
    std::vector<std::thread> others;
    for (size_t i = 1; i < came; ++i) {
      others.emplace_back([=] {
        number = i;
        act(argument);
      });
    }
    act(argument);
    for (std::thread& other : others) other.join();
  }
  static constexpr ThreadTeam kTeam{run, [] { return number; }, [] { return size; }};
};

TEST(Workers, BorrowTheThreadsOfATeamThatHasEnough) {
  Workers workers(3, 0);
  const auto every = [&](size_t runs) {
    const size_t before = FakeTeam::runs;
    std::vector<std::atomic<int>> done(100);
    workers.run(done.size(), [&](size_t task, size_t worker) {
      ASSERT_LT(worker, workers.threads());
      done[task].fetch_add(1, std::memory_order_relaxed);
    });
    for (auto& count : done) EXPECT_EQ(count.load(), 1);
    EXPECT_EQ(FakeTeam::runs - before, runs);
  };
  Workers::borrow(&FakeTeam::kTeam);
  every(1);
  FakeTeam::size = FakeTeam::came = 7;  // more than are wanted
  every(1);
  FakeTeam::came = 1;  // within one of its loops: only who calls
  every(1);
  FakeTeam::size = 2;
  every(0);
  FakeTeam::size = FakeTeam::came = 3;
  const pid_t child = fork();
  if (child == 0) {
    every(0);  // by the caller: these workers' threads are the parent's
    _exit(testing::Test::HasFailure() ? 1 : 0);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  Workers::borrow(nullptr);
  every(0);
}

// With no threads at the time of the fork: ThreadSanitizer ends children of other ones that start
// any.
TEST(Workers, OfAChildDoNotBorrowItsParentsTeam) {
  Workers::borrow(&FakeTeam::kTeam);
  const pid_t child = fork();
  if (child == 0) {
    const size_t before = FakeTeam::runs;
    std::atomic<int> done{0};
    Workers(2, 0).run(2, [&](size_t, size_t) { ++done; });
    _exit(FakeTeam::runs == before && done == 2 ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  Workers::borrow(nullptr);
}

TEST(Workers, CallersTakeTurns) {
  Workers workers(3, 0);
  std::vector<std::thread> callers;
  std::atomic<size_t> sum{0};
  for (int caller = 0; caller < 4; ++caller) {
    callers.emplace_back([&] {
      for (int round = 0; round < 500; ++round) {
        size_t plain[8] = {};
        workers.run(8, [&](size_t task, size_t) { plain[task] = task + 1; });
        for (const size_t value : plain) sum.fetch_add(value);
      }
    });
  }
  for (std::thread& caller : callers) caller.join();
  EXPECT_EQ(sum.load(), 4u * 500 * 36);
}

}  // namespace
}  // namespace tidepool
