// SPDX-License-Identifier: Apache-2.0
// The trial of the two ways of rows: it leaves the client usable and with the way that it tells,
// whatever the area and the lane's luck. Which way is quicker here is no matter.
#include "runtime/tier/row_trial.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "tests/transport/lane_house.h"

namespace tidepool {
namespace {

RowArea areaOf(uint64_t rows, uint64_t row, uint64_t offset) {
  RowArea area;
  area.frames = {FrameIndex(0), PageCount(kPages)};
  area.offset = Bytes(offset);
  area.row = Bytes(row);
  area.rows = rows;
  return area;
}

TEST(RowTrial, TakesAnyAreaToItsLastRow) {
  House house(Way::kDoubleRows);
  auto client = house.create();
  const uint64_t all = kPages * kPageSize;
  for (const RowArea& area :
       {areaOf(1, 16, 0), areaOf(3, 4096, 0), areaOf(all / 16, 16, 0), areaOf(255, 1024, 0),
        areaOf(257, 1000, 8), areaOf((all - 100) / 260, 260, 100), areaOf(4, 65'536, 0)}) {
    const auto found = quickerRows(*client, area, area.offset);
    ASSERT_TRUE(found) << found.error().text();
    EXPECT_EQ(client->inFlight(), 0u);
    // Nothing was refused: that would have been an error.
    const uint64_t offset = area.offset.value();
    std::vector<std::byte> row(16);
    const uint64_t before = house.lanes.moved();
    ASSERT_EQ(finish(*client, client->submitReadRows(1, {&offset, 1}, Bytes(16), row)), kGood);
    EXPECT_EQ(house.lanes.moved() - before, *found == RowsBy::kLane ? 1u : 0u);
  }
}

TEST(RowTrial, ALaneThatBreaksMeanwhileIsNotTaken) {
  for (const uint64_t pieces : {0u, 1u, 300u, 3000u}) {
    House house(Way::kDoubleRows);
    house.lanes.pieces_until_failure = pieces;
    auto client = house.create();
    const auto found = quickerRows(*client, areaOf(1024, 64, 0), Bytes());
    ASSERT_TRUE(found) << found.error().text();
    EXPECT_EQ(*found, RowsBy::kServer) << pieces;
    EXPECT_EQ(client->pagesBy(), Transport::kTcp);
  }
}

TEST(RowTrial, AServerThatHasGoneIsAnError) {
  House house(Way::kDoubleRows);
  auto client = house.create();
  house.server().stop();
  EXPECT_FALSE(quickerRows(*client, areaOf(1024, 64, 0), Bytes()));
}

TEST(RowTrial, AFencedRegionIsAnError) {
  House house(Way::kDoubleRows);
  auto client = house.create();
  ASSERT_TRUE(house.server().fence(client->region().region, client->region().epoch + 1));
  const auto found = quickerRows(*client, areaOf(1024, 64, 0), Bytes());
  ASSERT_FALSE(found);
  EXPECT_EQ(found.error().code(), ErrorCode::kStaleEpoch);
}

}  // namespace
}  // namespace tidepool
