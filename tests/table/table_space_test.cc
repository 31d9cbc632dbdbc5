// SPDX-License-Identifier: Apache-2.0
// Far tiers of tables, by the rows of their kinds.
#include "allocator/table/table_space.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "runtime/tier/far_kind.h"

namespace tidepool {
namespace {

/// Opens as an emulated pool does.
Result<std::unique_ptr<Tier>> openPool(const FarSpec& spec, const Patience& patience) {
  return farKind("cxl")->open(spec, patience);
}
constexpr FarKind kPagesOnly{.name = "tape",
                             .form = "tape:SIZE",
                             .help = "For pages alone.",
                             .parse = nullptr,
                             .open = openPool,
                             .check = nullptr};

TEST(TableSpace, AKindThatLendsNoRowsIsRefused) {
  FarSpec tape;
  tape.kind = &kPagesOnly;
  tape.size = Bytes(16 * kMiB);
  auto space = TableSpace::create(std::span(&tape, 1), 1, Nanoseconds(1'000'000'000));
  ASSERT_TRUE(space) << space.error().text();
  TableOptions options;
  options.name = "t";
  options.rows = 1000;
  options.format = {ElementType::kFloat32, Optimizer::kSgd, 8};
  options.dram = Bytes(4 * kMiB);
  for (const auto& error :
       {(*space)->createTable(options, 1).error(), (*space)->leastDram(options, 1).error(),
        (*space)->leastShare(options, 1).error()}) {
    EXPECT_EQ(error.code(), ErrorCode::kUnsupported);
    EXPECT_STREQ(error.text(), "table t: far tier 1 (tape) lends no rows: name another tier");
  }
  EXPECT_TRUE((*space)->createTable(options, 0));
}

TEST(TableSpace, TablesAreWhereTheKindSaysTheyAre) {
  const auto pool = parseFarSpec("cxl:16M");
  ASSERT_TRUE(pool);
  auto space = TableSpace::create(std::span(&*pool, 1), 1, Nanoseconds(1'000'000'000));
  ASSERT_TRUE(space);
  TableOptions options;
  options.rows = 1000;
  options.format = {ElementType::kFloat32, Optimizer::kSgd, 8};
  options.dram = Bytes(4 * kMiB);
  const auto table = (*space)->createTable(options, 1);
  EXPECT_TRUE(table) << table.error().text();
  const auto tier = (*space)->farTier(1);
  ASSERT_TRUE(tier) << tier.error().text();
  EXPECT_EQ((*tier)->kind(), *pool->kind->tables);
  EXPECT_GT((*tier)->used(), Bytes());
}

}  // namespace
}  // namespace tidepool
