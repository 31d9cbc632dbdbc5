// SPDX-License-Identifier: Apache-2.0
// SlotMap against std::unordered_map, at its fullest, by every kind of look-up this processor has.
#include "allocator/table/slot_map.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <random>
#include <unordered_map>
#include <vector>

#include "allocator/table/find_slots.h"

namespace tidepool {
namespace {

using Model = std::unordered_map<RowNumber, Slot>;

std::vector<FindSlots> ways() {
  std::vector<FindSlots> found{findSlotsScalar};
  for (const FindSlots way : {findSlotsAvx2(), findSlotsAvx512()}) {
    if (way != nullptr) found.push_back(way);
  }
  return found;
}

void expectSame(const SlotMap& map, const Model& model, const std::vector<RowNumber>& asked) {
  ASSERT_EQ(map.count(), model.size());
  std::vector<Slot> wanted;
  for (const RowNumber row : asked) {
    const auto found = model.find(row);
    wanted.push_back(found == model.end() ? kNoSlot : found->second);
    ASSERT_EQ(map.find(row), wanted.back()) << "row " << row;
  }
  for (const FindSlots way : ways()) {
    std::vector<Slot> slots(asked.size());
    way(map.view(), asked.data(), asked.size(), slots.data());
    ASSERT_EQ(slots, wanted);
  }
}

SlotMap makeMap(size_t room, RowNumber rows = kRowLimit, Slot slots = kNoSlot) {
  return std::move(*SlotMap::create({.rows = rows, .slots = slots, .most = room}, room));
}

/// Rows whose searches begin at the same bucket.
std::vector<RowNumber> rowsOfOneHome(const SlotMap& map, size_t count) {
  const SlotMap::View view = map.view();
  const uint64_t home = view.home(view.mix(map.rows() / 2));
  std::vector<RowNumber> rows;
  for (RowNumber row = 0; row < map.rows() && rows.size() < count; ++row) {
    if (view.home(view.mix(row)) == home) rows.push_back(row);
  }
  return rows;
}

void churn(size_t room, RowNumber rows, size_t steps, uint64_t seed) {
  SlotMap map = makeMap(room, rows);
  Model model;
  std::vector<RowNumber> asked(rows);
  for (RowNumber row = 0; row < rows; ++row) asked[row] = row;
  std::mt19937_64 random(seed);
  for (size_t step = 0; step < steps; ++step) {
    const RowNumber row = random() % rows;
    if (model.contains(row)) {
      ASSERT_EQ(map.findOrInsert(row, 0), model[row]);
      map.erase(row);
      model.erase(row);
    } else if (map.count() < map.room()) {
      const Slot slot = random() % kNoSlot;
      if (step % 2 == 0) {
        map.insert(row, slot);
      } else {
        ASSERT_EQ(map.findOrInsert(row, slot), slot);
      }
      model[row] = slot;
    }
    if (step % (steps / 16) == 0) expectSame(map, model, asked);
  }
  expectSame(map, model, asked);
}

TEST(SlotMap, FullAndEmptiedAgain) {
  churn(1, 4, 64, 1);
  churn(48, 96, 20000, 2);
  churn(1000, 1400, 60000, 3);
}

TEST(SlotMap, AlwaysFull) {
  constexpr size_t kRoom = 600;
  SlotMap map = makeMap(kRoom, 2000, kRoom);
  Model model;
  std::vector<RowNumber> present, asked;
  for (RowNumber row = 0; row < 2000; ++row) asked.push_back(row);
  for (RowNumber row = 0; row < kRoom; ++row) {
    map.insert(row, row);
    model[row] = row;
    present.push_back(row);
  }
  std::mt19937_64 random(4);
  for (int step = 0; step < 40000; ++step) {
    RowNumber& out = present[random() % kRoom];
    RowNumber in = random() % 2000;
    while (model.contains(in)) in = random() % 2000;
    map.erase(out);
    model[in] = model[out];
    model.erase(out);
    map.insert(in, model[in]);
    out = in;
  }
  expectSame(map, model, asked);
}

TEST(SlotMap, LargestNumbers) {
  SlotMap map = makeMap(8);
  map.insert(kRowLimit - 1, kNoSlot - 1);
  map.insert(0, 0);
  const std::vector<RowNumber> asked{kRowLimit - 1, 0, kRowLimit - 2, 1};
  expectSame(map, {{kRowLimit - 1, kNoSlot - 1}, {0, 0}}, asked);
}

TEST(SlotMap, CostsWhatItSays) {
  SlotMap map = makeMap(1'000'000);
  EXPECT_LE(map.memory().value(), 9'900'000u);
}

/// What a look-up costs: buckets that searches go on from, in a map that has been full for long.
TEST(SlotMap, HardlyAnySearchGoesOnHoweverOftenRowsChange) {
  constexpr size_t kRoom = 20'000;
  constexpr RowNumber kRows = 1'000'000;
  SlotMap map = makeMap(kRoom, kRows, kRoom);
  std::vector<RowNumber> present;
  for (RowNumber row = 0; row < kRoom; ++row) {
    map.insert(row, static_cast<Slot>(row));
    present.push_back(row);
  }
  std::mt19937_64 random(5);
  for (int step = 0; step < 400'000; ++step) {
    const size_t slot = random() % kRoom;
    const RowNumber in = random() % kRows;
    if (map.find(in) != kNoSlot) continue;
    map.erase(present[slot]);
    map.insert(in, static_cast<Slot>(slot));
    present[slot] = in;
  }
  const SlotMap::View view = map.view();
  uint64_t passed = 0, buckets = 0;
  for (uint64_t bucket = 0; bucket < view.count; ++bucket) {
    passed += view.buckets[bucket].passed;
    buckets += view.buckets[bucket].passed > 0 ? 1 : 0;
  }
  EXPECT_LE(passed, kRoom * 4 / 100);
  EXPECT_LE(buckets, view.count / 10);
}

/// More than its bucket and the next ones hold, and more than searches go through.
TEST(SlotMap, RowsThatAllWantTheSameBucket) {
  constexpr size_t kRoom = 2000;
  SlotMap map = makeMap(kRoom, 3'000'000, kRoom);
  const std::vector<RowNumber> rows = rowsOfOneHome(map, kRoom);
  ASSERT_GT(rows.size(), 64 * SlotMap::kWays + 100);
  Model model;
  std::vector<RowNumber> present;
  for (size_t i = 0; i < rows.size(); ++i) {
    map.insert(rows[i], static_cast<Slot>(i));
    model[rows[i]] = static_cast<Slot>(i);
  }
  expectSame(map, model, rows);
  EXPECT_GT(map.memory(), SlotMap::memoryFor(kRoom));
  std::mt19937_64 random(6);
  for (size_t left = rows.size(); !model.empty();) {
    const RowNumber row = rows[random() % rows.size()];
    if (model.erase(row) != 0) map.erase(row);
    if (model.size() * 2 > left) continue;
    left = model.size();
    expectSame(map, model, rows);
    // Some come again, where there is room now.
    for (const RowNumber again : rows) {
      if (model.size() >= left + left / 4 || model.contains(again)) continue;
      map.insert(again, static_cast<Slot>(again % kRoom));
      model[again] = static_cast<Slot>(again % kRoom);
    }
    expectSame(map, model, rows);
    left = model.size();
    if (left < 8) break;
  }
  map.restart(kRoom);
  expectSame(map, {}, rows);
  EXPECT_EQ(map.memory(), SlotMap::memoryFor(kRoom));
}

/// A bucket's entries must tell its rows apart however many numbers rows may have.
TEST(SlotMap, FewSlotsForRowsOfHugeTables) {
  for (const size_t room : {1u, 30u, 500u, 20'000u}) {
    for (const RowNumber rows : {RowNumber{1} << 24, RowNumber{1} << 33, kRowLimit}) {
      for (const Slot slots : {static_cast<Slot>(room), Slot{1} << 22, kNoSlot}) {
        SlotMap map = makeMap(room, rows, slots);
        const SlotMap::View view = map.view();
        std::mt19937_64 random(7);
        Model model;
        std::vector<RowNumber> asked;
        while (model.size() < room) {
          const RowNumber row = random() % rows;
          if (!model.emplace(row, random() % slots).second) continue;
          map.insert(row, model[row]);
          asked.push_back(row);
          // One that has the same bits where the entry has some.
          asked.push_back((row + (RowNumber{1} << 20)) % rows);
          const uint64_t mixed = view.mix(row);
          EXPECT_EQ(view.mixedAt(view.home(mixed), view.wanted(mixed)) &
                        (view.reach > 0 ? ~uint64_t{0} : 0),
                    view.reach > 0 ? mixed : 0);
        }
        expectSame(map, model, asked);
      }
    }
  }
}

RC_GTEST_PROP(SlotMap, AnyOrderOfCalls, (const std::vector<uint16_t>& toggled)) {
  SlotMap map = makeMap(64, 128);
  Model model;
  std::vector<RowNumber> asked;
  for (const uint16_t value : toggled) {
    const RowNumber row = value % 128;
    asked.push_back(row);
    if (model.erase(row) != 0) {
      map.erase(row);
    } else if (map.count() < map.room()) {
      map.insert(row, value);
      model[row] = value;
    }
  }
  expectSame(map, model, asked);
}

}  // namespace
}  // namespace tidepool
