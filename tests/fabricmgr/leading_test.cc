// SPDX-License-Identifier: Apache-2.0
// A manager whose store does not let it act for a while, and one that was elected: what it does not
// do then, and that its own silence costs no host anything.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>

#include "fabricmgr/device/leadership.h"
#include "tests/fabricmgr/crash_fixture.h"
#include "tests/fabricmgr/manager_fixture.h"

namespace tidepool::fabric {
namespace {

using ::testing::HasSubstr;

TEST(Leadership, WhoWasElectedMindsNoOlderTerm) {
  Leadership leadership(leaderOf(5));
  leadership.supersede(Term(4));
  EXPECT_EQ(leadership.supersededBy(), Term(4))
      << "who is alive with an older term may be the right one";
  leadership.elected();
  leadership.begin(leaderOf(5));
  leadership.supersede(Term(4));
  EXPECT_FALSE(leadership.superseded());
  leadership.supersede(Term(6));
  EXPECT_EQ(leadership.supersededBy(), Term(6));
}

class Suspension : public ManagerFixture {
 protected:
  void SetUp() override {
    house.hooks.may_act = [this]() -> Status {
      if (!away) return {};
      return fail(ErrorCode::kUnreachable, "the store at somewhere does not answer");
    };
    open({"d1"}, {"h1"});
    region = assign("h1", 4);
  }
  void pass(uint64_t seconds) {
    house.clock.advance(kSecond * seconds);
    manager->tick();
  }

  std::atomic<bool> away{false};
  RegionId region;
};

TEST_F(Suspension, NothingIsChangedAndWhatIsKnownIsShown) {
  away = true;
  const auto refused = manager->assign({}, want("h1", 4));
  ASSERT_EQ(codeOf(refused), ErrorCode::kUnreachable);
  EXPECT_THAT(refused.error().text(), HasSubstr("the store at somewhere"));
  EXPECT_EQ(codeOf(manager->addHost({}, hostSpec("h2"))), ErrorCode::kUnreachable);
  EXPECT_EQ(codeOf(manager->renewLease("h1")), ErrorCode::kUnreachable)
      << "another manager may have cut it off";
  EXPECT_EQ(stateOf(region), RegionState::kAttached);
  EXPECT_EQ(freeGrains(), 60u);
  manager->tick();
  EXPECT_THAT(house.said(), HasSubstr("nothing is changed, and no lease ends"));
  away = false;
  must(manager->assign({}, want("h1", 4)));
}

TEST_F(Suspension, NoLeaseEndsByIt) {
  away = true;
  pass(31);
  pass(300);
  EXPECT_EQ(stateOf("h1"), HostState::kActive);
  away = false;
  pass(1);
  EXPECT_EQ(stateOf("h1"), HostState::kActive) << "nobody could have renewed it";
  pass(29);
  EXPECT_EQ(stateOf("h1"), HostState::kActive);
  pass(2);
  EXPECT_EQ(stateOf("h1"), HostState::kFenced) << "it was not heard of since";
}

TEST_F(Suspension, WorkGoesOnAfterwards) {
  away = true;
  must(manager->showRegion(region));
  away = false;
  const auto released = manager->releaseRegion({}, region, "h1", Force::kNo);
  away = true;
  must(released);
  manager->settle();
  away = false;
  finishWork(*manager);
  EXPECT_EQ(codeOf(manager->showRegion(region)), ErrorCode::kNotFound) << "it is free";
}

}  // namespace
}  // namespace tidepool::fabric
