// SPDX-License-Identifier: Apache-2.0
// Next uses in the known batches against a plain search; the one-byte code of a step.
#include "bench/row_future.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <optional>
#include <random>
#include <vector>

namespace tidepool {
namespace {

TEST(NextUse, TellsDistancesApart) {
  for (uint64_t now = 0; now < 1000; now += 7) {
    for (uint64_t ahead = 0; ahead <= NextUse::kMostAhead; ++ahead) {
      ASSERT_EQ(NextUse(Step(now + ahead)).ahead(Step(now)), ahead);
    }
    for (uint64_t ago = 1; ago <= std::min<uint64_t>(now, 130); ++ago) {
      ASSERT_EQ(NextUse(Step(now - ago)).ahead(Step(now)), NextUse::kUnknown) << ago;
    }
  }
  EXPECT_EQ(NextUse().ahead(Step(3)), NextUse::kUnknown);
  EXPECT_FALSE(NextUse().known());
}

class Future : public testing::Test {
 protected:
  void make(uint64_t most) {
    memory_.assign(RowFuture::memoryFor(most).value(), std::byte{0});
    future_.emplace(most, 3, memory_);
  }
  std::vector<std::byte> memory_;
  std::optional<RowFuture> future_;
};

TEST_F(Future, ChainsTheUsesOfARow) {
  make(16);
  EXPECT_TRUE(future_->announce(RowIndex(7), Step(1)));
  EXPECT_TRUE(future_->announce(RowIndex(8), Step(1)));
  EXPECT_FALSE(future_->announce(RowIndex(7), Step(4)));
  EXPECT_EQ(future_->use(), NextUse(Step(4)));
  EXPECT_EQ(future_->use(), NextUse());
  EXPECT_TRUE(future_->announce(RowIndex(8), Step(5))) << "its last use is over";
  EXPECT_FALSE(future_->announce(RowIndex(7), Step(6)));
  EXPECT_EQ(future_->use(), NextUse(Step(6)));
  EXPECT_EQ(future_->pending(), 2u);
}

TEST_F(Future, HasRoomForWhatItWasMadeFor) {
  make(5);
  for (uint64_t i = 0; i < 5; ++i) {
    EXPECT_TRUE(future_->room());
    future_->announce(RowIndex(i), Step(i));
  }
  EXPECT_FALSE(future_->room());
  future_->use();
  EXPECT_TRUE(future_->room());
}

// Skewed lookups, always a window of them known; what it says against a search of the window.
TEST_F(Future, FindsNearlyAllNextUses) {
  constexpr size_t kWindow = 4096, kAll = 60'000, kStep = 64;
  make(kWindow);
  std::mt19937_64 random(4);
  std::vector<uint64_t> rows(kAll);
  for (uint64_t& row : rows) row = random() % 60 * (random() % 60);
  size_t announced = 0;
  uint64_t wrong = 0, missed = 0, known = 0, first_wrong = 0;
  for (size_t i = 0; i < kAll; ++i) {
    for (; announced < std::min(i + kWindow, kAll); ++announced) {
      const bool first = future_->announce(RowIndex(rows[announced]), Step(announced / kStep));
      const auto begin = rows.begin() + static_cast<ptrdiff_t>(i);
      const auto end = rows.begin() + static_cast<ptrdiff_t>(announced);
      if (announced % 97 == 0) first_wrong += first != (std::find(begin, end, *end) == end);
    }
    const auto begin = rows.begin() + static_cast<ptrdiff_t>(i);
    const auto end = rows.begin() + static_cast<ptrdiff_t>(announced);
    const auto next = std::find(begin + 1, end, *begin);
    const NextUse said = future_->use();
    if (next == end) {
      wrong += said.known();
      continue;
    }
    ++known;
    const Step step(static_cast<uint64_t>(next - rows.begin()) / kStep);
    missed += !said.known();
    wrong += said.known() && said != NextUse(step);
  }
  EXPECT_GT(known, kAll / 2);
  EXPECT_LE(wrong * 1000, kAll) << "rows that look alike";
  EXPECT_LE(missed * 200, known) << "full buckets";
  EXPECT_LE(first_wrong, 5u);
}

// Rows that never come again fill every bucket: nothing but hints is lost.
TEST_F(Future, SurvivesMoreRowsThanItHasPlacesFor) {
  make(1000);
  for (uint64_t i = 0; i < 20'000; ++i) {
    if (!future_->room()) {
      EXPECT_FALSE(future_->use().known() && i < 1000);
    }
    future_->announce(RowIndex(i), Step(i / 100));
  }
  EXPECT_EQ(future_->pending(), 1000u);
}

TEST_F(Future, TakesAboutSixBytesALookup) {
  EXPECT_LE(RowFuture::memoryFor(1 << 20).value(), 6u << 20);
}

}  // namespace
}  // namespace tidepool
