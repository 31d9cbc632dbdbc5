// SPDX-License-Identifier: Apache-2.0
// Slots of arenas: however threads come and go, two of them share one only when there are more
// threads than slots, and then as evenly as those that ended allow.
#include "shim/arena_slots.h"

#include <gtest/gtest.h>
#include <rapidcheck.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <vector>

namespace tidepool {
namespace {

TEST(ArenaSlots, ThreadsThatEndedDoNotCount) {
  ArenaSlots slots;
  slots.setCount(8);
  const unsigned main_thread = slots.join();
  for (int i = 0; i < 100; ++i) {
    const unsigned other = slots.join();
    EXPECT_NE(other, main_thread);
    slots.leave(other);
  }
}

TEST(ArenaSlots, MakesNoMoreThanAreNeeded) {
  ArenaSlots slots;
  slots.setCount(8);
  for (int i = 0; i < 100; ++i) {
    const unsigned slot = slots.join();
    EXPECT_EQ(slot, 0u);
    slots.leave(slot);
  }
}

TEST(ArenaSlots, ForkedChildStartsWithOneThread) {
  ArenaSlots slots;
  slots.setCount(2);
  for (int i = 0; i < 9; ++i) slots.join();
  slots.keepOnly(1);
  EXPECT_EQ(slots.join(), 0u);
  slots.leave(1);
  EXPECT_EQ(slots.join(), 1u);
}

TEST(ArenaSlots, CountIsKeptInBounds) {
  ArenaSlots slots;
  slots.setCount(0);
  EXPECT_EQ(slots.join(), 0u);
  EXPECT_EQ(slots.join(), 0u);
  ArenaSlots many;
  many.setCount(100'000);
  for (unsigned i = 0; i < 2 * ArenaSlots::kMost; ++i)
    EXPECT_EQ(many.join(), i % ArenaSlots::kMost);
}

RC_GTEST_PROP(ArenaSlots, JoinsTheLeastUsed, ()) {
  const unsigned count = *rc::gen::inRange(1u, 20u);
  ArenaSlots slots;
  slots.setCount(count);
  std::vector<unsigned> threads;
  std::vector<unsigned> users(count, 0);
  const auto steps = *rc::gen::container<std::vector<unsigned>>(rc::gen::inRange(0u, 1000u));
  for (const unsigned step : steps) {
    if (step % 3 != 0 || threads.empty()) {
      const unsigned slot = slots.join();
      RC_ASSERT(slot < count);
      RC_ASSERT(users[slot] == *std::min_element(users.begin(), users.end()));
      ++users[slot];
      threads.push_back(slot);
    } else {
      const auto ends = threads.begin() + static_cast<long>(step % threads.size());
      slots.leave(*ends);
      --users[*ends];
      threads.erase(ends);
    }
  }
}

TEST(ArenaSlotsDeathTest, LeavingTwiceIsCaught) {
  ArenaSlots slots;
  const unsigned slot = slots.join();
  slots.leave(slot);
  EXPECT_DEATH(slots.leave(slot), "arena_slots");
}

}  // namespace
}  // namespace tidepool
