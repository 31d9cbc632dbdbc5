// SPDX-License-Identifier: Apache-2.0
// Placements of granules, and the count of pages by where they are, against a plain count.
#include <gtest/gtest.h>

#include <random>

#include "runtime/space/managed_space.h"
#include "runtime/space/residency.h"
#include "tests/space/change_page.h"

namespace tidepool {
namespace {

TEST(Placement, NamesATierOrLocalMemoryOrNothing) {
  EXPECT_TRUE(Placement().isFree());
  EXPECT_EQ(Placement().tier(), 0);
  EXPECT_TRUE(Placement::local().isLocal());
  EXPECT_FALSE(Placement::local().isFree());
  EXPECT_EQ(Placement::local().tier(), 0);
  EXPECT_EQ(Placement::in(3).tier(), 3);
  EXPECT_EQ(Placement::fromRaw(Placement::local().raw()), Placement::local());
}

TEST(Placement, IsKeptByGranule) {
  auto space = ManagedSpace::create(Bytes(64 * kGranuleSize));
  ASSERT_TRUE(space);
  Placements& placements = (*space)->placements();
  for (uint64_t i = 0; i < 64; ++i) EXPECT_TRUE(placements.of(GranuleIndex(i)).isFree());
  placements.set(GranuleIndex(7), Placement::in(2));
  placements.set(GranuleIndex(8), Placement::local());
  EXPECT_TRUE(placements.of(GranuleIndex(6)).isFree());
  EXPECT_EQ(placements.of(GranuleIndex(7)), Placement::in(2));
  placements.set(GranuleIndex(7), Placement());
  EXPECT_TRUE(placements.of(GranuleIndex(7)).isFree());
  EXPECT_TRUE(placements.of(GranuleIndex(8)).isLocal());
}

TEST(Residency, CountsPagesByTheirState) {
  auto made = ManagedSpace::create(Bytes(8 * kGranuleSize));
  ASSERT_TRUE(made);
  ManagedSpace& space = **made;
  std::mt19937_64 random(20261122);
  const PageWord words[] = {
      PageWord(),
      PageWord(PageState::kLocal, 0, 0, 0),
      PageWord(PageState::kEvicting, 0, 0, 5),
      PageWord(PageState::kFar, 0, 2, 9),
      PageWord(PageState::kFetching, 0, 3, 9),
      PageWord(PageState::kDirect, 0, 1, 9),
      PageWord(PageState::kLost, 0, 0, 0),
  };
  // The ways by which the table of transitions leads there.
  const std::vector<size_t> ways[] = {{}, {1}, {1, 2}, {1, 2, 3}, {1, 2, 3, 4}, {5}, {5, 6}};
  std::vector<size_t> state(space.pageEnd().value());
  for (uint64_t page = 0; page < state.size(); ++page) {
    // Some granules stay as they are: those are passed over.
    state[page] = page / kPagesPerGranule % 3 == 1 ? 0 : random() % 7;
    PageWord now;
    for (const size_t step : ways[state[page]]) {
      ASSERT_TRUE(changePage(space, PageIndex(page), now, words[step]));
      now = words[step];
    }
  }
  for (int round = 0; round < 50; ++round) {
    const uint64_t first = random() % state.size();
    const uint64_t count = random() % (state.size() - first + 1);
    uint64_t expected[7] = {};
    for (uint64_t i = 0; i < count; ++i) ++expected[state[first + i]];
    const Residency found = residencyOf(space, PageIndex(first), PageCount(count));
    EXPECT_EQ(found.empty.value(), expected[0]);
    EXPECT_EQ(found.local.value(), expected[1]);
    EXPECT_EQ(found.leaving.value(), expected[2]);
    EXPECT_EQ(found.far[2].value(), expected[3]);
    EXPECT_EQ(found.coming.value(), expected[4]);
    EXPECT_EQ(found.far[3].value(), expected[4]);
    EXPECT_EQ(found.far[1].value(), expected[5]);
    EXPECT_EQ(found.in_place.value(), expected[5]);
    EXPECT_EQ(found.lost.value(), expected[6]);
    EXPECT_EQ(found.farPages().value(), expected[3] + expected[4] + expected[5]);
    Residency twice = found;
    twice += found;
    EXPECT_EQ(twice.farPages(), found.farPages() * 2);
    EXPECT_EQ(twice.empty, found.empty * 2);
  }
}

}  // namespace
}  // namespace tidepool
