// SPDX-License-Identifier: Apache-2.0
// A tier's number becomes another's only after the fault service has seen both that the old tier
// goes and that it is gone.
#include "runtime/migrate/core/tier_retirement.h"

#include <gtest/gtest.h>

namespace tidepool {
namespace {

using Stage = TierRetirement::Stage;
constexpr uint32_t kFirst = 1u << 1, kSecond = 1u << 2 | 1u << 3;

/// What the fault service closes when it is asked.
uint32_t answer(TierRetirement& retirement) {
  uint32_t closed = 0;
  retirement.answer([&](uint32_t tiers) { closed = tiers; });
  return closed;
}

TEST(TierRetirement, GoesThroughItsStagesInOrder) {
  TierRetirement retirement;
  EXPECT_EQ(retirement.stage(kFirst), Stage::kNone);
  retirement.begin(kFirst);
  EXPECT_EQ(retirement.stage(kFirst), Stage::kAsked);
  EXPECT_EQ(answer(retirement), kFirst);
  EXPECT_EQ(retirement.stage(kFirst), Stage::kLetGo);
  retirement.end(kFirst);
  EXPECT_EQ(retirement.stage(kFirst), Stage::kEnding);
  EXPECT_EQ(answer(retirement), 0u) << "it has been closed before";
  EXPECT_EQ(retirement.stage(kFirst), Stage::kNone);
}

TEST(TierRetirement, EachSetGoesItsOwnWay) {
  TierRetirement retirement;
  retirement.begin(kFirst);
  EXPECT_EQ(answer(retirement), kFirst);
  retirement.begin(kSecond);
  EXPECT_EQ(retirement.stage(kSecond), Stage::kAsked);
  EXPECT_EQ(retirement.stage(kFirst), Stage::kLetGo);
  retirement.end(kFirst);
  EXPECT_EQ(answer(retirement), kSecond);
  EXPECT_EQ(retirement.stage(kFirst), Stage::kNone);
  EXPECT_EQ(retirement.stage(kSecond), Stage::kLetGo);
}

TEST(TierRetirement, AnswersOnceToEachChange) {
  TierRetirement retirement;
  const auto nothing = [](uint32_t) { FAIL(); };
  EXPECT_FALSE(retirement.answer(nothing));
  retirement.begin(kFirst);
  EXPECT_EQ(answer(retirement), kFirst);
  EXPECT_FALSE(retirement.answer(nothing));
}

TEST(TierRetirement, AChildForgetsWhatItsParentWasDoing) {
  TierRetirement retirement;
  retirement.begin(kFirst);
  retirement.forget();
  EXPECT_EQ(retirement.stage(kFirst), Stage::kNone);
  EXPECT_EQ(answer(retirement), 0u);
}

TEST(TierRetirementDeathTest, NoStageIsLeftOut) {
  TierRetirement retirement;
  EXPECT_DEATH(retirement.end(kFirst), "kLetGo");
  retirement.begin(kFirst);
  EXPECT_DEATH(retirement.begin(kFirst), "kNone");
  EXPECT_DEATH(retirement.end(kFirst), "kLetGo");
}

}  // namespace
}  // namespace tidepool
