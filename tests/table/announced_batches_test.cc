// SPDX-License-Identifier: Apache-2.0
// AnnouncedBatches: numbers, what is finished, and which are still known by their rows.
#include "allocator/table/announced_batches.h"

#include <gtest/gtest.h>

#include <vector>

namespace tidepool {
namespace {

using Rows = std::vector<RowNumber>;

TEST(AnnouncedBatches, AreNumberedAndFinishedInTheirOrder) {
  AnnouncedBatches batches;
  EXPECT_EQ(batches.newest(), 0u);
  for (BatchNumber number = 1; number <= AnnouncedBatches::kMost; ++number) {
    ASSERT_TRUE(batches.mayAnnounce());
    ASSERT_EQ(batches.announce(), number);
  }
  EXPECT_FALSE(batches.mayAnnounce());
  EXPECT_FALSE(batches.finish(AnnouncedBatches::kMost + 1)) << "it was never announced";
  EXPECT_FALSE(batches.finish(0));
  EXPECT_TRUE(batches.finish(3));
  EXPECT_FALSE(batches.finish(2)) << "it went with a later one";
  EXPECT_EQ(batches.finished(), 3u);
  EXPECT_TRUE(batches.mayAnnounce());
}

TEST(AnnouncedBatches, AreFoundByTheirRowsUntilTheyAreDropped) {
  AnnouncedBatches batches;
  const Rows rows[] = {{1, 2, 3}, {4, 5}, {1, 2, 3}, {6}};
  for (const Rows& its : rows) {
    batches.announce();
    batches.add(its);
  }
  ASSERT_NE(batches.find(rows[0]), nullptr);
  EXPECT_EQ(batches.find(rows[0])->number(), 1u);
  EXPECT_EQ(batches.find(Rows{1, 2}), nullptr);
  EXPECT_FALSE(batches.allKnown());

  batches.finish(1);
  batches.dropFinished();
  ASSERT_NE(batches.find(rows[0]), nullptr);
  EXPECT_EQ(batches.find(rows[0])->number(), 3u) << "the later one of the same rows";
  batches.dropWith([](RowNumber row) { return row == 5; });
  EXPECT_EQ(batches.find(rows[1]), nullptr);
  EXPECT_EQ(batches.waiting().size(), 2u);
  EXPECT_EQ(batches.newest(), 4u) << "it stays announced";
  batches.dropAll();
  EXPECT_TRUE(batches.allKnown());
}

TEST(AnnouncedBatches, KnowTheirRowsWhenPlacesAreForgotten) {
  AnnouncedBatches batches;
  const Rows rows{10, 20, 30};
  batches.announce();
  batches.add(rows);
  const Slot places[] = {7, kNoSlot, 9};
  batches.waiting().front().know(places, 1);
  EXPECT_TRUE(batches.allKnown());
  EXPECT_NE(batches.find(rows), nullptr);
  batches.forgetPlaces();
  EXPECT_FALSE(batches.allKnown());
  EXPECT_NE(batches.find(rows), nullptr);
}

}  // namespace
}  // namespace tidepool
