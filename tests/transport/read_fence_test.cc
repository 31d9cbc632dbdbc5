// SPDX-License-Identifier: Apache-2.0
// ReadFence against a model that remembers every read that may still be under way.
#include "runtime/transport/verbs/read_fence.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>

#include <rapidcheck.h>
#include <rapidcheck/gtest.h>

namespace tidepool::verbs {
namespace {

using Direction = LanePiece::Direction;
constexpr uint32_t kDepth = 256;

LanePiece piece(Direction direction, uint64_t offset, uint32_t bytes) {
  return {.direction = direction, .offset = offset, .memory = nullptr, .bytes = bytes};
}

TEST(ReadFence, OnlyWritesOfWhatIsBeingReadWait) {
  ReadFence fence(kDepth);
  EXPECT_FALSE(fence.holds(0, 0, piece(Direction::kWrite, 0, 4096)));
  EXPECT_FALSE(fence.holds(0, 1, piece(Direction::kRead, 4096, 256)));
  EXPECT_FALSE(fence.holds(0, 2, piece(Direction::kWrite, 0, 4096)));
  EXPECT_FALSE(fence.holds(0, 3, piece(Direction::kWrite, 4352, 256)));
  EXPECT_TRUE(fence.holds(0, 4, piece(Direction::kWrite, 4351, 1)));
  // It has been waited for.
  EXPECT_FALSE(fence.holds(0, 5, piece(Direction::kWrite, 4096, 256)));
  EXPECT_FALSE(fence.holds(0, 6, piece(Direction::kRead, 4096, 256)));
  // Or has ended.
  EXPECT_FALSE(fence.holds(7, 7, piece(Direction::kWrite, 4096, 256)));
}

TEST(ReadFence, AFloodOfReadsIsWaitedForOnce) {
  ReadFence fence(kDepth);
  uint64_t index = 0;
  for (; index < 200; ++index) {
    EXPECT_FALSE(fence.holds(0, index, piece(Direction::kRead, index * 256, 256)));
  }
  EXPECT_TRUE(fence.holds(0, index++, piece(Direction::kWrite, 1 << 20, 256)));
  for (; index < kDepth; ++index) {
    EXPECT_FALSE(fence.holds(0, index, piece(Direction::kWrite, index * 256, 256)));
  }
}

RC_GTEST_PROP(ReadFence, NoWriteOvertakesAReadOfItsBytes, (uint64_t seed)) {
  std::mt19937_64 random(seed);
  ReadFence fence(kDepth);
  std::map<uint64_t, LanePiece> reads;  // that may be under way, by their numbers
  uint64_t first = 0, compared_from = 0;
  const uint64_t spread = 1 + random() % 4096;
  const uint64_t often_read = 1 + random() % 8;
  for (uint64_t index = 0; index < 2000; ++index) {
    const bool full = index - first == kDepth;
    if (full || random() % 5 == 0) first += 1 + random() % (index - first + (full ? 0 : 1));
    first = std::min(first, index);
    reads.erase(reads.begin(), reads.lower_bound(first));
    const bool read = random() % 9 < often_read;
    const LanePiece next = piece(read ? Direction::kRead : Direction::kWrite,
                                 random() % spread * 16, 16 * (1 + random() % 8));
    const bool meets = std::any_of(reads.begin(), reads.end(), [&](const auto& entry) {
      return entry.second.offset < next.offset + next.bytes &&
             next.offset < entry.second.offset + entry.second.bytes;
    });
    const bool holds = fence.holds(first, index, next);
    compared_from = std::max(compared_from, first);
    if (read) {
      RC_ASSERT(!holds);
      reads.emplace(index, next);
      continue;
    }
    RC_ASSERT(holds || !meets);
    // Nor does it wait for nothing.
    RC_ASSERT(!holds || !reads.empty());
    RC_ASSERT(!holds || meets || index - compared_from > ReadFence::kMostCompared);
    if (!holds) continue;
    reads.clear();
    compared_from = index;
  }
}

}  // namespace
}  // namespace tidepool::verbs
