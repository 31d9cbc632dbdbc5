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

void churn(size_t room, RowNumber rows, size_t steps, uint64_t seed) {
  SlotMap map = std::move(*SlotMap::create(room));
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
  SlotMap map = std::move(*SlotMap::create(kRoom));
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
  SlotMap map = std::move(*SlotMap::create(8));
  map.insert(kRowLimit - 1, kNoSlot - 1);
  map.insert(0, 0);
  const std::vector<RowNumber> asked{kRowLimit - 1, 0, kRowLimit - 2, 1};
  expectSame(map, {{kRowLimit - 1, kNoSlot - 1}, {0, 0}}, asked);
}

TEST(SlotMap, CostsWhatItSays) {
  SlotMap map = std::move(*SlotMap::create(1'000'000));
  EXPECT_LE(map.memory().value(), 11'000'000u);
}

RC_GTEST_PROP(SlotMap, AnyOrderOfCalls, (const std::vector<uint16_t>& toggled)) {
  SlotMap map = std::move(*SlotMap::create(64));
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
