// SPDX-License-Identifier: Apache-2.0
// Checks of batches: every id that is not a row is found, wherever it stands, and named.
#include "allocator/table/batch.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

namespace tidepool {
namespace {

constexpr int64_t kLeast = std::numeric_limits<int64_t>::min();
constexpr int64_t kMost = std::numeric_limits<int64_t>::max();

TEST(DenseIds, RowsAreAccepted) {
  for (const RowNumber rows : {RowNumber{1}, RowNumber{1000}, kRowLimit}) {
    for (size_t count = 0; count < 20; ++count) {
      std::vector<int64_t> ids(count, static_cast<int64_t>(rows - 1));
      if (count > 3) ids[3] = 0;
      EXPECT_TRUE(checkDenseIds(ids, rows, "t")) << rows << " rows, " << count << " ids";
    }
  }
  EXPECT_TRUE(checkDenseIds({}, 0, "t"));
}

TEST(DenseIds, OneThatIsNoRowIsNamedWhereverItStands) {
  for (const RowNumber rows : {RowNumber{1}, RowNumber{1000}, kRowLimit}) {
    const auto end = static_cast<int64_t>(rows);
    for (const int64_t wrong : {int64_t{-1}, kLeast, kLeast + 1, end, end + 1, kMost}) {
      for (size_t count = 1; count < 20; ++count) {
        for (size_t at = 0; at < count; ++at) {
          std::vector<int64_t> ids(count, 0);
          ids[at] = wrong;
          const Status status = checkDenseIds(ids, rows, "users");
          ASSERT_FALSE(status) << wrong << " of " << rows << " rows";
          EXPECT_EQ(status.error().code(), ErrorCode::kInvalidArgument);
          EXPECT_EQ(status.error().text(), "table users: ids[" + std::to_string(at) + "] is " +
                                               std::to_string(wrong) + ", not from 0 to " +
                                               std::to_string(rows - 1));
        }
      }
    }
  }
}

TEST(DenseIds, ATableWithoutRowsHasNone) {
  for (const int64_t id : {int64_t{0}, int64_t{-1}, kMost}) {
    const std::vector<int64_t> ids{id};
    EXPECT_FALSE(checkDenseIds(ids, 0, "t")) << id;
  }
}

}  // namespace
}  // namespace tidepool
