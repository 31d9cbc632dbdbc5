// SPDX-License-Identifier: Apache-2.0
// The row policy against a simple model: never gives up what is needed, knows what is resident,
// gives slots up when its share shrinks, keeps to its metadata, in any order of calls.
#include "allocator/policy/row_policy.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <thread>
#include <vector>

namespace tidepool {
namespace {

constexpr SlotIndex slot(uint64_t value) { return SlotIndex(value); }

class Policy : public testing::Test {
 protected:
  RowPolicy& make(uint64_t most, uint64_t capacity) {
    RowPolicyConfig config;
    config.most = SlotCount(most);
    config.capacity = SlotCount(capacity);
    config.seed = 7;
    memory_.assign(RowPolicy::memoryFor(config.most).value(), std::byte{0});
    policy_.emplace(config, memory_);
    return *policy_;
  }
  /// Fills slots 0..capacity-1 with rows 0..capacity-1, and lets trials pass.
  RowPolicy& makeFull(uint64_t capacity) {
    RowPolicy& policy = make(capacity, capacity);
    for (uint64_t i = 0; i < capacity; ++i) {
      EXPECT_EQ(policy.onMiss(RowIndex(i)), Admission::kAdmit) << "there is room";
      policy.onInsert(slot(i), RowIndex(i), Admission::kAdmit);
    }
    return policy;
  }
  std::vector<std::byte> memory_;
  std::optional<RowPolicy> policy_;
};

TEST_F(Policy, TakesAboutNineBytesASlot) {
  for (const uint64_t slots : {1000u, 20'000u, 1'000'000u}) {
    RowPolicy& policy = make(slots, slots);
    EXPECT_LE(policy.metadataBytes().value(), slots * 91 / 10 + 512);
    EXPECT_LE(RowPolicy::memoryFor(SlotCount(slots)).value(), slots * 91 / 10 + 1024);
  }
}

TEST_F(Policy, DoesNotTouchTheMemoryOfSlotsThatAreNotUsed) {
  RowPolicy& policy = make(1'000'000, 1000);
  for (uint64_t i = 0; i < 1000; ++i) policy.onInsert(slot(i), RowIndex(i), Admission::kAdmit);
  for (uint64_t i = 0; i < 50'000; ++i) policy.onMiss(RowIndex(1000 + i));
  const auto touched =
      std::count_if(memory_.begin(), memory_.end(), [](std::byte b) { return b != std::byte{0}; });
  EXPECT_LE(touched, 10'000);
}

TEST_F(Policy, RefusesARowSeenOnceWhenResidentsAreUsed) {
  RowPolicy& policy = makeFull(1000);
  for (int turn = 0; turn < 20'000; ++turn) {
    for (uint64_t i = 0; i < 4; ++i) policy.onHit(slot((turn * 4 + i) % 1000));
    EXPECT_EQ(policy.onMiss(RowIndex(10'000 + turn)), Admission::kRefuse);
  }
  EXPECT_EQ(policy.stats().refused, 20'000u);
}

TEST_F(Policy, AdmitsARowThatIsMissedAgainAndAgain) {
  RowPolicy& policy = makeFull(1000);
  uint64_t misses = 0;
  while (policy.onMiss(RowIndex(5000)) == Admission::kRefuse) ASSERT_LE(++misses, 8u);
}

TEST_F(Policy, GivesUpWhatIsNotUsed) {
  RowPolicy& policy = makeFull(640);
  for (int turn = 0; turn < 8000; ++turn) {
    for (uint64_t i = 0; i < 640; ++i) {
      if (i % 64 != 5) policy.onHit(slot(i));
    }
    policy.onMiss(RowIndex(1000 + turn % 3000));
    if (turn < 7000) continue;
    const std::optional<SlotIndex> victim = policy.nextVictim();
    ASSERT_TRUE(victim);
    ASSERT_EQ(victim->value() % 64, 5u);
  }
}

TEST_F(Policy, NeverGivesUpWhatIsNeeded) {
  RowPolicy& policy = makeFull(200);
  for (uint64_t i = 0; i < 200; ++i) {
    if (i != 17) policy.needUntil(slot(i), Step(3));
  }
  EXPECT_EQ(policy.nextVictim(), slot(17));
  policy.needUntil(slot(17), Step(5));
  policy.needUntil(slot(17), Step(4));
  EXPECT_EQ(policy.nextVictim(), std::nullopt);
  policy.finished(Step(2));
  EXPECT_EQ(policy.nextVictim(), std::nullopt) << "step 3 is underway";
  policy.finished(Step(3));
  for (uint64_t i = 0; i < 199; ++i) {
    const std::optional<SlotIndex> victim = policy.nextVictim();
    ASSERT_TRUE(victim);
    ASSERT_NE(victim->value(), 17u);
    policy.onRemove(*victim, RowIndex(victim->value()));
  }
  EXPECT_EQ(policy.nextVictim(), std::nullopt);
  policy.finished(Step(5));
  EXPECT_EQ(policy.nextVictim(), slot(17));
}

TEST_F(Policy, PassingRowsGoFirstButNotWhileNeeded) {
  RowPolicy& policy = makeFull(500);
  for (uint64_t i = 0; i < 500; ++i) {
    for (int k = 0; k < 9; ++k) policy.onHit(slot(i));
  }
  for (uint64_t i = 0; i < 20; ++i) {
    policy.onRemove(slot(i), RowIndex(i));
    policy.onInsert(slot(i), RowIndex(1000 + i), Admission::kRefuse);
    policy.needUntil(slot(i), Step(i % 2));
  }
  policy.finished(Step(0));
  for (uint64_t i = 0; i < 20; i += 2) {
    EXPECT_EQ(policy.nextVictim(), slot(i));
    policy.onRemove(slot(i), RowIndex(1000 + i));
  }
  ASSERT_TRUE(policy.nextVictim());
  EXPECT_GE(policy.nextVictim()->value(), 20u) << "the other passing ones are needed";
  policy.finished(Step(1));
  for (int i = 0; i < 10; ++i) {
    const SlotIndex victim = *policy.nextVictim();
    EXPECT_LT(victim.value(), 20u);
    policy.onRemove(victim, RowIndex(1000 + victim.value()));
  }
}

TEST_F(Policy, WithAKnownFutureTheLastUsedGoesFirst) {
  RowPolicy& policy = makeFull(65);  // the last one to come is on trial
  for (uint64_t i = 0; i < 64; ++i) policy.willUse(slot(i), Step(1 + i));
  EXPECT_EQ(policy.nextVictim(), slot(63));
  EXPECT_EQ(policy.onMiss(RowIndex(900), NextUse(Step(70))), Admission::kRefuse);
  EXPECT_EQ(policy.onMiss(RowIndex(900), NextUse(Step(60))), Admission::kAdmit);
  EXPECT_EQ(policy.onMiss(RowIndex(900)), Admission::kRefuse) << "all others have a use in sight";
  policy.onHit(slot(9), NextUse());  // the last use in sight
  policy.onRemove(slot(63), RowIndex(63));
  EXPECT_EQ(policy.nextVictim(), slot(9)) << "its last use has passed";
}

TEST_F(Policy, StepsThatPassedAreNotTakenForTheFuture) {
  RowPolicy& policy = makeFull(300);
  for (uint64_t i = 0; i < 300; ++i) {
    policy.needUntil(slot(i), Step(10));
    policy.willUse(slot(i), Step(10));
  }
  for (uint64_t step = 10; step < 1000; ++step) {
    policy.finished(Step(step));
    for (uint64_t i = 0; i < 300; ++i) ASSERT_FALSE(policy.needed(slot(i))) << step;
  }
  policy.finished(Step(5));  // late news change nothing
  policy.needUntil(slot(1), Step(1001));
  policy.finished(Step(100'000));
  EXPECT_FALSE(policy.needed(slot(1)));
}

TEST_F(Policy, AShareThatShrinksIsGivenUpSlotBySlot) {
  RowPolicy& policy = makeFull(1000);
  policy.setCapacity(SlotCount(300));
  std::vector<uint64_t> row_of(1000);
  for (uint64_t i = 0; i < 1000; ++i) row_of[i] = i;
  while (policy.used() > policy.capacity()) {
    const std::optional<SlotIndex> victim = policy.nextVictim();
    ASSERT_TRUE(victim && policy.resident(*victim));
    policy.onRemove(*victim, RowIndex(row_of[victim->value()]));
  }
  uint64_t to = 0;
  for (uint64_t from = 300; from < 1000; ++from) {
    if (!policy.resident(slot(from))) continue;
    while (policy.resident(slot(to))) ++to;
    policy.onMove(slot(from), slot(to));
  }
  for (uint64_t i = 0; i < 1000; ++i) EXPECT_EQ(policy.resident(slot(i)), i < 300);
  EXPECT_LE(policy.metadataBytes().value(), 300 * 91 / 10 + 512u);
  policy.setCapacity(SlotCount(1000));
  EXPECT_EQ(policy.onMiss(RowIndex(77)), Admission::kAdmit);
}

TEST_F(Policy, MovingKeepsWhatIsKnownOfARow) {
  RowPolicy& policy = make(128, 128);
  for (uint64_t i = 0; i < 100; ++i) policy.onInsert(slot(i), RowIndex(i), Admission::kAdmit);
  policy.needUntil(slot(3), Step(4));
  policy.onMove(slot(3), slot(120));
  EXPECT_TRUE(policy.needed(slot(120)));
  EXPECT_FALSE(policy.needed(slot(3)));
  EXPECT_FALSE(policy.resident(slot(3)));
  EXPECT_EQ(policy.used(), SlotCount(100));
}

// Any order of calls, beside a model that knows only what is resident and needed.
TEST_F(Policy, KeepsItsPromisesInAnyOrderOfCalls) {
  for (uint64_t seed = 0; seed < 12; ++seed) {
    std::mt19937_64 random(seed);
    const uint64_t most = 20 + random() % 400;
    RowPolicy& policy = make(most, 1 + random() % most);
    std::map<uint64_t, uint64_t> row_of;     // by slot
    std::map<uint64_t, uint64_t> needed_to;  // by slot
    uint64_t step = 0, row = 0;
    const auto anySlot = [&] {
      return std::next(row_of.begin(), static_cast<ptrdiff_t>(random() % row_of.size()))->first;
    };
    const auto remove = [&](uint64_t s) {
      policy.onRemove(slot(s), RowIndex(row_of[s]));
      row_of.erase(s);
      needed_to.erase(s);
    };
    for (int i = 0; i < 8000; ++i) {
      const uint64_t what = random() % 100;
      if (what < 40) {
        const uint64_t s = random() % most;
        const NextUse next = random() % 3 ? NextUse() : NextUse(Step(step + random() % 100));
        const Admission answer = policy.onMiss(RowIndex(row), next);
        if (!row_of.contains(s)) {
          policy.onInsert(slot(s), RowIndex(row), answer, next);
          row_of[s] = row;
        }
        row = random() % 2000;
      } else if (what < 60 && !row_of.empty()) {
        policy.onHit(slot(anySlot()));
      } else if (what < 70 && !row_of.empty()) {
        const uint64_t s = anySlot(), until = step + random() % 20;
        policy.needUntil(slot(s), Step(until));
        needed_to[s] = std::max(needed_to[s], until);
      } else if (what < 75 && !row_of.empty()) {
        policy.willUse(slot(anySlot()), Step(step + random() % 120));
      } else if (what < 80) {
        step += 1 + random() % 3;
        policy.finished(Step(step - 1));
      } else if (what < 82) {
        policy.setCapacity(SlotCount(1 + random() % most));
      } else if (what < 86 && !row_of.empty()) {
        remove(anySlot());
      } else if (what < 90 && !row_of.empty()) {
        const uint64_t from = anySlot(), to = random() % most;
        if (row_of.contains(to)) continue;
        policy.onMove(slot(from), slot(to));
        row_of[to] = row_of[from];
        row_of.erase(from);
        if (needed_to.contains(from)) needed_to[to] = needed_to[from];
        needed_to.erase(from);
      } else {
        const std::optional<SlotIndex> victim = policy.nextVictim();
        const auto needed = [&](uint64_t s) {
          return needed_to.contains(s) && needed_to[s] >= step;
        };
        const bool any = std::any_of(row_of.begin(), row_of.end(),
                                     [&](const auto& entry) { return !needed(entry.first); });
        ASSERT_EQ(victim.has_value(), any);
        if (!victim) continue;
        ASSERT_TRUE(row_of.contains(victim->value()));
        ASSERT_FALSE(needed(victim->value()));
        remove(victim->value());
      }
      ASSERT_EQ(policy.used().value(), row_of.size());
    }
    for (uint64_t s = 0; s < most; ++s) ASSERT_EQ(policy.resident(slot(s)), row_of.contains(s));
  }
}

// Sixteen slots are looked at in one step: against looking at them one by one.
TEST_F(Policy, GivesUpTheFirstOfTheWorstNeighbours) {
  constexpr uint64_t kSlots = 64;
  constexpr uint32_t kUnknown = 1000;
  std::mt19937_64 random(12);
  for (int round = 0; round < 300; ++round) {
    RowPolicy& policy = makeFull(kSlots);
    const uint64_t step = random() % 600;
    if (step > 0) policy.finished(Step(step - 1));
    std::optional<uint64_t> worst;
    uint32_t most = 0;
    const uint64_t most_hits = 1 + random() % 24, held = random() % 5, known = random() % 5;
    for (uint64_t s = 0; s < kSlots; ++s) {
      const auto hits = static_cast<uint32_t>(random() % most_hits);
      for (uint32_t i = 0; i < hits; ++i) policy.onHit(slot(s));
      const bool kept = random() % 4 < held, foreseen = random() % 4 < known;
      const auto ahead = static_cast<uint32_t>(random() % (NextUse::kMostAhead + 1));
      if (kept) policy.needUntil(slot(s), Step(step + random() % NextUse::kMostAhead));
      if (foreseen) policy.willUse(slot(s), Step(step + ahead));
      if (kept || s == kSlots - 1) continue;  // the last one is on trial
      const uint32_t bad = foreseen ? ahead : kUnknown - std::min(hits, 16u);
      if (worst && bad <= most) continue;
      worst = s;
      most = bad;
    }
    const std::optional<SlotIndex> victim = policy.nextVictim();
    if (!worst) continue;  // whether the one on trial may go is for others to test
    ASSERT_TRUE(victim) << round;
    ASSERT_EQ(victim->value(), *worst) << round;
  }
}

TEST_F(Policy, TheSameCallsGiveTheSameAnswers) {
  std::vector<uint64_t> first;
  for (int run = 0; run < 2; ++run) {
    std::mt19937_64 random(9);
    RowPolicy& policy = makeFull(256);
    std::vector<uint64_t> victims;
    for (uint64_t i = 0; i < 5000; ++i) {
      policy.onHit(slot(random() % 256));
      if (policy.onMiss(RowIndex(random() % 700)) == Admission::kRefuse) continue;
      const SlotIndex victim = *policy.nextVictim();
      victims.push_back(victim.value());
      policy.onRemove(victim, RowIndex(1'000'000 + i));
      policy.onInsert(victim, RowIndex(i), Admission::kAdmit);
    }
    if (run == 0) first = victims;
    EXPECT_EQ(victims, first);
  }
}

TEST_F(Policy, HitsMayComeFromAnyThread) {
  RowPolicy& policy = makeFull(512);
  std::vector<std::thread> threads;
  for (uint64_t t = 0; t < 2; ++t) {
    threads.emplace_back([&policy, t] {
      for (uint64_t i = 0; i < 100'000; ++i) policy.onHit(slot((i * 7 + t) % 512), NextUse());
    });
  }
  for (uint64_t i = 0; i < 20'000; ++i) {
    if (policy.onMiss(RowIndex(i % 900)) == Admission::kRefuse) continue;
    const SlotIndex victim = *policy.nextVictim();
    policy.onRemove(victim, RowIndex(i));
    policy.onInsert(victim, RowIndex(i % 900), Admission::kAdmit);
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(policy.used(), SlotCount(512));
}

}  // namespace
}  // namespace tidepool
