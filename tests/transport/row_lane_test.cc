// SPDX-License-Identifier: Apache-2.0
// Rows of a region whichever way they take: over TCP, gathered by the server while pages take a
// lane, through a lane's double, and by RDMA verbs in machines that have it. Bytes, bounds, fences,
// and lanes that break in mid-batch. Order beside requests of other kinds: lane_test.cc.
#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "tests/transport/lane_house.h"

namespace tidepool {
namespace {

class RowLanes : public testing::TestWithParam<Way> {
 protected:
  House house_{GetParam()};
};
INSTANTIATE_TEST_SUITE_P(Transport, RowLanes, testing::ValuesIn(waysHere()), nameOfWay);

TEST_P(RowLanes, RowsTravelAsTheyShould) {
  auto client = house_.create();
  constexpr uint64_t kRow = 256, kRows = 512;
  std::vector<uint64_t> offsets;
  for (uint64_t i = 0; i < kRows; ++i) offsets.push_back((i * 37 + i / 512) % 1024 * kRow);
  const auto bytes = pattern(kRows * kRow, 11);
  std::vector<std::byte> back(bytes.size());
  ASSERT_EQ(finish(*client, client->submitWriteRows(1, offsets, Bytes(kRow), bytes)), kGood);
  const uint64_t before = house_.lanes.moved();
  ASSERT_EQ(finish(*client, client->submitReadRows(2, offsets, Bytes(kRow), back)), kGood);
  EXPECT_TRUE(back == bytes);
  EXPECT_EQ(house_.lanes.moved() - before, GetParam() == Way::kDoubleRows ? kRows : 0);
}

TEST_P(RowLanes, AdjacentRowsInTheirOrderGoTogether) {
  auto client = house_.create();
  constexpr uint64_t kRow = 1024, kRows = 200;  // more than a piece is
  std::vector<uint64_t> offsets;
  for (uint64_t i = 0; i < kRows; ++i) offsets.push_back(12 + i * kRow);
  const auto bytes = pattern(kRows * kRow, 12);
  ASSERT_EQ(finish(*client, client->submitWriteRows(1, offsets, Bytes(kRow), bytes)), kGood);
  const uint64_t pieces = (kRows * kRow + PageLane::kMostPiece - 1) / PageLane::kMostPiece;
  EXPECT_EQ(house_.lanes.moved(), GetParam() == Way::kDoubleRows ? pieces : 0);
  std::vector<std::byte> back(bytes.size());
  ASSERT_EQ(finish(*client, client->submitReadRows(2, offsets, Bytes(kRow), back)), kGood);
  EXPECT_TRUE(back == bytes);
}

/// A channel's scattered pages, with single ones asked for in between: all go the same way, and end
/// in their order.
TEST_P(RowLanes, ScatteredPagesAndSingleOnesShareAWay) {
  auto client = house_.create();
  client->setRows(RowsBy::kLane);
  std::vector<uint64_t> offsets;
  for (uint64_t i = 0; i < kPages; ++i) offsets.push_back(i * 37 % kPages * kPageSize);
  const auto bytes = pattern(kPages * kPageSize, 16);
  std::vector<std::byte> back(bytes.size()), alone(kPageSize);
  const uint64_t before = house_.lanes.moved();
  ASSERT_TRUE(client->submitWriteRows(1, offsets, Bytes(kPageSize), bytes));
  ASSERT_TRUE(client->submitRead(2, Bytes(offsets[5]), alone));
  ASSERT_TRUE(client->submitReadRows(3, offsets, Bytes(kPageSize), back));
  for (uint64_t tag = 1; tag <= 3; ++tag) {
    const FetchCompletion done = client->wait();
    EXPECT_EQ(done.tag, tag);
    EXPECT_EQ(done.error, kGood);
  }
  EXPECT_EQ(memcmp(alone.data(), &bytes[5 * kPageSize], kPageSize), 0);
  EXPECT_TRUE(back == bytes);
  EXPECT_EQ(house_.lanes.moved() - before, byDouble(GetParam()) ? 2 * kPages + 1 : 0);
}

/// One bad row of many: the server says so, nothing is written, and the rest goes on its way.
TEST_P(RowLanes, WhatIsOutsideIsRefusedAsAWhole) {
  auto client = house_.create();
  const uint64_t end = kPages * kPageSize;
  const auto bytes = pattern(3 * 64, 13);
  for (const uint64_t bad : {end - 63, end, UINT64_MAX - 63, UINT64_MAX}) {
    const uint64_t offsets[] = {0, bad, 128};
    std::vector<std::byte> back(bytes.size(), std::byte{0xcc});
    EXPECT_EQ(finish(*client, client->submitWriteRows(1, offsets, Bytes(64), bytes)),
              ErrorCode::kInvalidArgument);
    EXPECT_EQ(finish(*client, client->submitReadRows(2, offsets, Bytes(64), back)),
              ErrorCode::kInvalidArgument);
  }
  const uint64_t good[] = {0, end - 64, 128};
  std::vector<std::byte> back(bytes.size(), std::byte{0xcc});
  ASSERT_EQ(finish(*client, client->submitReadRows(3, good, Bytes(64), back)), kGood);
  EXPECT_EQ(std::count(back.begin(), back.end(), std::byte{}), std::ssize(back));
  EXPECT_EQ(client->pagesBy(), house_.expected());
}

TEST_P(RowLanes, AFenceShutsOldEpochsOut) {
  auto client = house_.create();
  const uint64_t offsets[] = {0, 4096, 256};
  const auto bytes = pattern(3 * 256, 14);
  ASSERT_EQ(finish(*client, client->submitWriteRows(1, offsets, Bytes(256), bytes)), kGood);
  const auto hello = attachTo(client->region());
  ASSERT_TRUE(house_.server().fence(hello.region, hello.epoch + 1));
  std::vector<std::byte> back(bytes.size());
  EXPECT_EQ(finish(*client, client->submitReadRows(2, offsets, Bytes(256), back)),
            ErrorCode::kStaleEpoch);
  EXPECT_EQ(finish(*client, client->submitWriteRows(3, offsets, Bytes(256), back)),
            ErrorCode::kStaleEpoch);
}

/// A lane that fails after so many pieces.
class FailingRows : public testing::TestWithParam<uint64_t> {};
INSTANTIATE_TEST_SUITE_P(Transport, FailingRows,
                         testing::Values(0, 1, 2, 17, 64, 149, 150, 151, 200, 299));

/// In the middle of a batch of rows that are written and read back.
TEST_P(FailingRows, ABatchOfRowsGoesOnFromItsBeginning) {
  House house(Way::kDoubleRows);
  house.lanes.pieces_until_failure = GetParam();
  auto client = house.create();
  constexpr uint64_t kRow = 128, kRows = 150;
  std::vector<uint64_t> offsets;
  for (uint64_t i = 0; i < kRows; ++i) offsets.push_back(i * 3 % kRows * 512);
  const auto bytes = pattern(kRows * kRow, 15);
  std::vector<std::byte> back(bytes.size());
  ASSERT_TRUE(client->submitWriteRows(1, offsets, Bytes(kRow), bytes));
  ASSERT_TRUE(client->submitReadRows(2, offsets, Bytes(kRow), back));
  EXPECT_EQ(client->wait().error, kGood);
  EXPECT_EQ(client->wait().error, kGood);
  std::vector<std::byte> expected(bytes.size());
  for (uint64_t i = 0; i < kRows; ++i) {
    uint64_t last = i;  // of a row that is named more than once the later one stays
    for (uint64_t j = i; j < kRows; ++j) last = offsets[j] == offsets[i] ? j : last;
    std::copy_n(&bytes[last * kRow], kRow, &expected[i * kRow]);
  }
  EXPECT_TRUE(back == expected);
}

}  // namespace
}  // namespace tidepool
