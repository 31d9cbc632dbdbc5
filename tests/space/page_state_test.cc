// SPDX-License-Identifier: Apache-2.0
// The page word and its table of transitions: packing, the allowed changes one by one, and that a
// change outside the table ends the process rather than the page.
#include "runtime/space/page_state.h"
#include "tests/space/change_page.h"

#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <set>
#include <utility>

#include "runtime/space/managed_space.h"

namespace tidepool {
namespace {

using enum PageState;

PageState stateAt(int index) { return static_cast<PageState>(index); }

/// A word of that state which names what it has to.
PageWord wordOf(PageState state) {
  const bool has_frame = state == kFar || state == kFetching || state == kDirect;
  return PageWord(state, 0, has_frame ? 1 : 0, has_frame || state == kEvicting ? 5 : 0);
}

TEST(PageState, TheTableAllowsExactlyWhatIsListed) {
  const std::set<std::pair<PageState, PageState>> allowed = {
      {kZero, kEmpty},     {kZero, kLocal},     {kZero, kDirect},    {kEvicting, kZero},
      {kEmpty, kLocal},    {kEmpty, kDirect},   {kLocal, kEmpty},    {kLocal, kEvicting},
      {kLocal, kDirect},   {kEvicting, kEmpty}, {kEvicting, kLocal}, {kEvicting, kFar},
      {kFar, kEmpty},      {kFar, kFetching},   {kFar, kLost},       {kFetching, kEmpty},
      {kFetching, kLocal}, {kFetching, kFar},   {kFetching, kLost},  {kDirect, kEmpty},
      {kDirect, kLocal},   {kDirect, kLost},    {kLost, kEmpty}};
  for (int from = 0; from < kPageStates; ++from) {
    for (int to = 0; to < kPageStates; ++to) {
      EXPECT_EQ(transitionAllowed(stateAt(from), stateAt(to)),
                allowed.contains({stateAt(from), stateAt(to)}))
          << from << " -> " << to;
    }
  }
}

TEST(PageState, EveryStateCanBecomeEmptyAndBeReached) {
  for (int state = 1; state < kPageStates; ++state) {
    EXPECT_TRUE(transitionAllowed(stateAt(state), kEmpty)) << state;
    bool reached = false;
    for (int from = 0; from < kPageStates; ++from) {
      reached |= from != state && transitionAllowed(stateAt(from), stateAt(state));
    }
    EXPECT_TRUE(reached) << state;
  }
}

TEST(PageWord, KeepsWhatItIsGiven) {
  EXPECT_TRUE(rc::check([] {
    const auto state = stateAt(*rc::gen::inRange(0, kPageStates));
    const auto flags = static_cast<uint8_t>(*rc::gen::inRange(0, 16) << 4);
    const auto tier = *rc::gen::arbitrary<uint8_t>();
    const auto index = *rc::gen::inRange<uint64_t>(0, uint64_t{1} << 48);
    const PageWord word(state, flags, tier, index);
    RC_ASSERT(word.state() == state);
    RC_ASSERT(word.tier() == tier);
    RC_ASSERT(word.index() == index);
    for (const PageFlag flag : {kFlagShadow, kFlagUnproven, kFlagProbed, kFlagFarCopy}) {
      RC_ASSERT(word.has(flag) == ((flags & flag) != 0));
      RC_ASSERT(word.with(flag).has(flag) && !word.without(flag).has(flag));
      RC_ASSERT(word.with(flag).state() == state && word.without(flag).index() == index);
    }
    RC_ASSERT(PageWord(word.raw()) == word);
  }));
  EXPECT_EQ(PageWord(), PageWord(kEmpty, 0, 0, 0));
}

TEST(PageWord, IsWellFormedIfItsFieldsAgreeWithItsState) {
  for (int state = 0; state < kPageStates; ++state) {
    EXPECT_TRUE(wellFormed(wordOf(stateAt(state)))) << state;
    // Only what is local may have been armed, and only that and what is fetched be a guess.
    EXPECT_EQ(wellFormed(wordOf(stateAt(state)).with(kFlagProbed)), stateAt(state) == kLocal);
    EXPECT_EQ(wellFormed(wordOf(stateAt(state)).with(kFlagUnproven)),
              stateAt(state) == kLocal || stateAt(state) == kFetching);
  }
  for (const PageState state : {kFar, kFetching, kDirect}) {
    EXPECT_FALSE(wellFormed(PageWord(state, 0, 0, 5))) << "whose frame?";
  }
  for (const PageState state : {kEmpty, kLocal, kLost, kZero}) {
    EXPECT_FALSE(wellFormed(PageWord(state, 0, 1, 5))) << "it has none";
  }
  EXPECT_FALSE(wellFormed(PageWord(kEvicting, 0, 1, 5))) << "it is in no tier yet";
  for (const PageFlag flag : {kFlagShadow, kFlagFarCopy}) {
    EXPECT_TRUE(wellFormed(PageWord(kLocal, flag | kFlagProbed, 1, 5)));
    EXPECT_FALSE(wellFormed(PageWord(kLocal, flag, 0, 5)));
    EXPECT_FALSE(wellFormed(PageWord(kFar, flag, 1, 5)));
  }
  EXPECT_FALSE(wellFormed(PageWord(kLocal, kFlagShadow | kFlagFarCopy, 1, 5))) << "one index";
}

class PageWords : public testing::Test {
 protected:
  void SetUp() override {
    auto space = ManagedSpace::create(Bytes(4 * kGranuleSize));
    ASSERT_TRUE(space) << space.error().text();
    space_ = std::move(*space);
  }
  /// Puts page 0 into a state along allowed changes.
  void enter(PageState state) {
    static const std::vector<std::vector<PageState>> kWays = {{},
                                                              {kLocal},
                                                              {kLocal, kEvicting},
                                                              {kLocal, kEvicting, kFar},
                                                              {kLocal, kEvicting, kFar, kFetching},
                                                              {kDirect},
                                                              {kLocal, kEvicting, kFar, kLost},
                                                              {kLocal, kEvicting, kZero}};
    for (const PageState next : kWays[static_cast<size_t>(state)]) {
      ASSERT_TRUE(changePage(*space_, PageIndex(0), space_->word(PageIndex(0)), wordOf(next)));
    }
  }
  std::unique_ptr<ManagedSpace> space_;
};

TEST_F(PageWords, AChangeFromAnotherWordDoesNothing) {
  enter(kLocal);
  const PageWord stale(kLocal, kFlagProbed, 0, 0);
  EXPECT_FALSE(changePage(*space_, PageIndex(0), stale, PageWord(kEvicting, 0, 0, 7)));
  EXPECT_EQ(space_->word(PageIndex(0)), PageWord(kLocal, 0, 0, 0));
  EXPECT_EQ(space_->word(PageIndex(1)), PageWord());
}

TEST_F(PageWords, ThePageIsOfTheGranuleThatIsLocked) {
  testing::FLAGS_gtest_death_test_style = "threadsafe";
  const GranuleLock other(*space_, GranuleIndex(1));
  EXPECT_DEATH(space_->change(other, PageIndex(0), PageWord(), PageWord(kLocal, 0, 0, 0)),
               "broken invariant");
}

TEST_F(PageWords, IllegalChangesAbort) {
  testing::FLAGS_gtest_death_test_style = "threadsafe";
  // One of each kind: content out of nowhere, home skipped, resurrection, two homes at once.
  const std::pair<PageState, PageState> illegal[] = {
      {kEmpty, kFar},       {kLocal, kFar},  {kEvicting, kFetching}, {kFar, kLocal},
      {kFar, kDirect},      {kLost, kLocal}, {kLost, kFar},          {kDirect, kFar},
      {kFetching, kDirect}, {kEmpty, kZero}, {kLocal, kZero},        {kZero, kFar}};
  for (const auto& [from, to] : illegal) {
    space_ = std::move(*ManagedSpace::create(Bytes(4 * kGranuleSize)));
    enter(from);
    const PageWord now = space_->word(PageIndex(0));
    EXPECT_DEATH(changePage(*space_, PageIndex(0), now, wordOf(to)), "broken invariant")
        << static_cast<int>(from) << " -> " << static_cast<int>(to);
  }
}

}  // namespace
}  // namespace tidepool
