// SPDX-License-Identifier: Apache-2.0
// DramPlan for tables of every kind: what it divides is never more than the budget, and what it
// says that a table needs is enough for it.
#include "allocator/table/dram_plan.h"

#include <gtest/gtest.h>

#include <random>

#include "allocator/table/prefetch_buffer.h"
#include "allocator/table/row_cache.h"
#include "allocator/table/row_changes.h"
#include "allocator/table/row_link.h"

namespace tidepool {
namespace {

constexpr RowNumber kLeastSlots = 16;

TableOptions anyTable(std::mt19937_64& random) {
  TableOptions options;
  options.rows = random() % (random() % 2 == 0 ? 40 : 3'000'000) + 1;
  options.format = {static_cast<ElementType>(random() % 4), static_cast<Optimizer>(random() % 4),
                    static_cast<uint32_t>(random() % 300 + 1)};
  if (random() % 2 == 0) {
    options.ids = IdKind::kHashed;
    options.tracked = static_cast<Tracked>(random() % 4);
    options.admit_after = random() % 3;
  }
  return options;
}

Bytes costOf(const DramPlan& plan, const TableOptions& options, const DramPlan::Division& parts) {
  return plan.fixed() + parts.link + parts.prefetched +
         RowCache::memoryFor(options.format, parts.slots);
}

class DramPlans : public testing::Test {
 protected:
  /// Tries it with tables of many kinds.
  template <typename Try>
  void forMany(Try attempt) {
    std::mt19937_64 random(1);
    for (int i = 0; i < 2000 && !HasFatalFailure(); ++i) {
      const TableOptions options = anyTable(random);
      const TierKind tier = i % 2 == 0 ? TierKind::kFetch : TierKind::kDirect;
      SCOPED_TRACE(i);
      attempt(options, tier, random);
    }
  }
};

TEST_F(DramPlans, DivideNoMoreThanThereIs) {
  forMany([](const TableOptions& options, TierKind tier, std::mt19937_64& random) {
    DramPlan plan(options, tier, Bytes(random() % 3 * kMiB));
    plan.setAnnounces(tier == TierKind::kFetch && random() % 2 == 0);
    if (random() % 2 == 0) plan.reserveChanges();
    const Bytes whole(options.rows * options.format.stride());
    const Bytes dram = plan.least() + Bytes(random() % (2 * whole.value()));
    const auto parts = plan.divide(dram, std::nullopt);
    ASSERT_TRUE(parts) << parts.error().text();
    ASSERT_LE(costOf(plan, options, *parts), dram);
    ASSERT_GE(parts->slots, std::min(options.rows, kLeastSlots));
    ASSERT_LE(parts->slots, DramPlan::mostSlots(options));
    if (tier != TierKind::kFetch) return;
    ASSERT_GE(parts->link, RowLink::leastMemory(Bytes(options.format.stride())));
    ASSERT_EQ(parts->prefetched_rows > 0, plan.announces());
  });
}

TEST_F(DramPlans, SayWhatIsEnough) {
  forMany([](const TableOptions& options, TierKind tier, std::mt19937_64& random) {
    const uint64_t slots = random() % options.rows + 1;
    const DramPlan plan(options, tier, Bytes());
    for (const Bytes dram : {DramPlan::forSlots(options, tier, slots), plan.forSlots(slots)}) {
      if (dram < plan.least()) continue;  // of a table as it is; it needs some for a checkpoint yet
      const auto parts = plan.divide(dram, std::nullopt);
      ASSERT_TRUE(parts) << parts.error().text();
      ASSERT_GE(parts->slots, slots);
    }
    ASSERT_EQ(plan.least(), DramPlan::least(options, tier));
    const auto too_small = plan.divide(plan.least() - Bytes(1), std::nullopt);
    ASSERT_FALSE(too_small);
    ASSERT_EQ(too_small.error().code(), ErrorCode::kInvalidArgument);
  });
}

TEST_F(DramPlans, HaveRoomForACheckpointFromTheBeginning) {
  forMany([](const TableOptions& options, TierKind tier, std::mt19937_64&) {
    DramPlan plan(options, tier, Bytes());
    const Bytes least = plan.least();
    ASSERT_TRUE(plan.reserveChanges());
    ASSERT_FALSE(plan.reserveChanges());
    ASSERT_EQ(plan.least(), least);
    ASSERT_TRUE(plan.divide(least, std::nullopt));
  });
}

TEST_F(DramPlans, LeaveRowsThatWaitWhatTheyHave) {
  forMany([](const TableOptions& options, TierKind, std::mt19937_64& random) {
    DramPlan plan(options, TierKind::kFetch, Bytes());
    plan.setAnnounces(true);
    const Bytes whole(options.rows * options.format.stride());
    const Bytes before = plan.least() + Bytes(random() % whole.value());
    const auto held = plan.divide(before, std::nullopt);
    ASSERT_TRUE(held);
    const Bytes after = plan.least() + Bytes(random() % whole.value());
    const auto parts = plan.divide(after, *held);
    ASSERT_TRUE(parts);
    ASSERT_EQ(parts->link, held->link);
    ASSERT_EQ(parts->prefetched, held->prefetched);
    ASSERT_GE(parts->slots, std::min(options.rows, kLeastSlots));
    if (after < before) return;
    ASSERT_LE(costOf(plan, options, *parts), after);
  });
}

}  // namespace
}  // namespace tidepool
