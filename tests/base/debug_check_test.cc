// SPDX-License-Identifier: Apache-2.0
// Debug builds make the dear checks, others do not even evaluate them.
#include "runtime/base/debug_check.h"

#include <gtest/gtest.h>

namespace tidepool {
namespace {

TEST(DebugCheck, IsMadeInDebugBuildsAlone) {
  int asked = 0;
  TP_DCHECK(++asked > 0);
  TP_DCHECK_OP(++asked, >, 0);
#ifdef TIDEPOOL_DEBUG_CHECKS
  EXPECT_GE(asked, 2);
  testing::FLAGS_gtest_death_test_style = "threadsafe";
  EXPECT_DEATH(TP_DCHECK(asked < 0), "broken invariant");
  EXPECT_DEATH(TP_DCHECK_OP(asked, <, 0), "broken invariant");
#else
  EXPECT_EQ(asked, 0);
#endif
}

}  // namespace
}  // namespace tidepool
