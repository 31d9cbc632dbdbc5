// SPDX-License-Identifier: Apache-2.0
// What a process writes when its connections lose their lanes: a line about pages and one about
// rows, whichever way scattered pages go. A program of its own, since each is said once.
#include <gtest/gtest.h>

#include "tests/transport/lane_house.h"

namespace tidepool {
namespace {

/// What is written while a connection that was made for `rows` loses its lane.
std::string said(House& house, RowsBy rows) {
  wire::ClientHello hello;
  hello.size = Bytes(kPages * kPageSize);
  auto client = RemoteClient::connect(
      loopback(house.server().port()), hello,
      {.timeout = kLong, .transport = Transport::kVerbs, .rows = rows, .lanes = &house.lanes});
  EXPECT_TRUE(client) << client.error().text();
  (*client)->setRows(RowsBy::kLane);  // as a channel of pages does
  std::vector<std::byte> page(kPageSize);
  testing::internal::CaptureStderr();
  EXPECT_EQ(finish(**client, (*client)->submitRead(1, Bytes(), page)), kGood);
  return testing::internal::GetCapturedStderr();
}

TEST(LaneLog, SaysWhetherPagesOrRowsGoOverTcp) {
  House house(Way::kDouble);
  house.lanes.pieces_until_failure = 0;
  EXPECT_TRUE(said(house, RowsBy::kServer).starts_with("tidepool: pages of "));
  EXPECT_TRUE(said(house, RowsBy::kLane).starts_with("tidepool: rows of "));
  EXPECT_EQ(said(house, RowsBy::kServer), "");
}

}  // namespace
}  // namespace tidepool
