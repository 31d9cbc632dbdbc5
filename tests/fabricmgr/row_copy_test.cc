// SPDX-License-Identifier: Apache-2.0
// The memory server's gather and scatter of rows against byte-by-byte copies: any size, any place,
// cut anywhere, overlapping, and never a byte beside what was asked for.
#include "fabricmgr/memserver/row_copy.h"

#include <gtest/gtest.h>

#include <cstring>
#include <random>
#include <vector>

namespace tidepool::memserver {
namespace {

constexpr size_t kRegion = 256 * kKiB;

std::vector<std::byte> randomBytes(std::mt19937_64& random, size_t size) {
  std::vector<std::byte> bytes(size);
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
  return bytes;
}

class RowCopy : public testing::TestWithParam<uint64_t> {
 protected:
  std::vector<uint64_t> someOffsets(size_t count) {
    std::vector<uint64_t> offsets(count);
    for (uint64_t& offset : offsets) offset = random_() % (kRegion - row_ + 1);
    offsets.front() = 0;
    offsets.back() = kRegion - row_;
    return offsets;
  }

  const uint64_t row_ = GetParam();
  std::mt19937_64 random_{row_};
};

TEST_P(RowCopy, GathersWhatIsThere) {
  const auto region = randomBytes(random_, kRegion);
  for (const size_t count : {1u, 2u, 3u, 31u, 33u, 300u}) {
    const auto offsets = someOffsets(count);
    std::vector<std::byte> to(count * row_ + 1, std::byte{0x77});
    gatherRows(to.data(), region.data(), offsets, Bytes(row_));
    for (size_t i = 0; i < count; ++i) {
      ASSERT_EQ(memcmp(to.data() + i * row_, region.data() + offsets[i], row_), 0) << i;
    }
    EXPECT_EQ(to.back(), std::byte{0x77});
  }
}

TEST_P(RowCopy, ScattersInOrderHoweverItArrives) {
  auto region = randomBytes(random_, kRegion);
  auto expected = region;
  for (int round = 0; round < 8; ++round) {
    const auto offsets = someOffsets(1 + random_() % 200);
    const auto from = randomBytes(random_, offsets.size() * row_);
    for (size_t i = 0; i < offsets.size(); ++i) {
      memcpy(expected.data() + offsets[i], from.data() + i * row_, row_);
    }
    for (size_t done = 0; done < from.size();) {
      const size_t piece = std::min(from.size() - done, 1 + random_() % (5 * row_));
      scatterRows(region.data(), offsets, Bytes(row_), Bytes(done),
                  std::span(from).subspan(done, piece));
      done += piece;
    }
    ASSERT_TRUE(region == expected) << round;
  }
}

TEST_P(RowCopy, NothingToScatterChangesNothing) {
  auto region = randomBytes(random_, kRegion);
  const auto before = region;
  const auto offsets = someOffsets(3);
  scatterRows(region.data(), offsets, Bytes(row_), Bytes(3 * row_), {});
  scatterRows(region.data(), offsets, Bytes(row_), Bytes(row_ + 1), {});
  EXPECT_TRUE(region == before);
}

INSTANTIATE_TEST_SUITE_P(Sizes, RowCopy, testing::Values(16, 17, 64, 100, 256, 1000, 1024, 4096));

}  // namespace
}  // namespace tidepool::memserver
