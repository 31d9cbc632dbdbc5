// SPDX-License-Identifier: Apache-2.0
// What time does in a manager: leases that end, one by one or for too many hosts at once, and
// deadlines of drains, over restarts, steps of the clock and absences of the manager itself.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "tests/fabricmgr/manager_fixture.h"

namespace tidepool::fabric {
namespace {

using ::testing::HasSubstr;

class LeasesTest : public ManagerFixture {
 protected:
  void SetUp() override { open({"d1", "d2"}, {"h1", "h2"}); }
  /// These hosts are heard of at the end of it.
  void pass(Nanoseconds time, const std::vector<std::string>& heard = {}) {
    house.clock.advance(time);
    for (const std::string& name : heard) must(manager->renewLease(name));
    manager->tick();
    manager->settle();
  }
  auto leaseLeft(const std::string& host) { return must(manager->showHost(host)).lease_left; }
  auto drainLeft(RegionId region) { return infoOf(region).drain_left; }
};

TEST_F(LeasesTest, ADrainsDeadlineTakesByForce) {
  const RegionId region = assign("h1", 8);
  must(manager->drainRegion({}, region, kSecond * 60));
  must(manager->renewLease("h1"));
  manager->tick();
  EXPECT_EQ(stateOf(region), RegionState::kDraining);
  EXPECT_EQ(drainLeft(region), kSecond * 60);
  must(manager->drainHost({}, "h1", kSecond * 30));
  EXPECT_EQ(drainLeft(region), kSecond * 30) << "the earlier one counts";
  must(manager->resumeHost({}, "h1"));
  house.clock.advance(kSecond * 61);
  must(manager->renewLease("h1"));
  EXPECT_EQ(drainLeft(region), Nanoseconds(1)) << "it is over: that is not the same as never";
  manager->tick();
  manager->settle();
  EXPECT_EQ(stateOf(region), RegionState::kFree);
}

TEST_F(LeasesTest, AStepOfTheTimeOfDayForcesNoDrain) {
  const RegionId region = assign("h1", 8);
  const OperationId drain = must(manager->drainRegion({}, region, kSecond * 3600)).operation;
  house.wall.advance(kSecond * 7200);
  pass({}, {"h1"});
  EXPECT_EQ(stateOf(region), RegionState::kDraining);
  EXPECT_EQ(drainLeft(region), kSecond * 3600);
  EXPECT_EQ(must(manager->showOperation(drain)).deadline, house.wall.now() + kSecond * 3600);
  for (int minute = 0; minute < 30; ++minute) pass(kSecond * 60, {"h1"});
  EXPECT_EQ(drainLeft(region), kSecond * 1800);
  house.wall.advance(kSecond * 7200);
  reopen();
  EXPECT_GE(drainLeft(region), kSecond * 1800) << "never early";
  EXPECT_LE(drainLeft(region), kSecond * 2000) << "what was left is known to a tenth";
  for (int minute = 0; minute < 34; ++minute) pass(kSecond * 60, {"h1"});
  EXPECT_EQ(stateOf(region), RegionState::kFree);
  EXPECT_EQ(must(manager->verifyAudit()).first_bad, 0u);
}

TEST_F(LeasesTest, ADeadlineThatWasOverIsOverAfterARestart) {
  const RegionId region = assign("h1", 8);
  must(manager->drainRegion({}, region, kSecond * 10));
  pass(kSecond * 9);
  reopen();
  pass(kSecond);
  EXPECT_EQ(stateOf(region), RegionState::kFree);
}

TEST_F(LeasesTest, AnExpiredLeaseFencesTheHostAndFreesItsMemory) {
  const RegionId region = assign("h1", 8), other = assign("h2", 8);
  pass(kSecond * 31, {"h2"});
  EXPECT_EQ(stateOf(region), RegionState::kFree);
  EXPECT_EQ(stateOf(other), RegionState::kAttached);
  EXPECT_EQ(codeOf(manager->renewLease("h1")), ErrorCode::kStaleEpoch);
  EXPECT_EQ(codeOf(manager->assign({}, want("h1", 1))), ErrorCode::kRefused);
  must(manager->resumeHost({}, "h1"));
  assign("h1", 1);
}

TEST_F(LeasesTest, TheManagersOwnAbsenceIsNotTheHosts) {
  house.longest_gap = kSecond / 4;
  reopen();
  const RegionId region = assign("h1", 8);
  const auto run = [&](Nanoseconds time) {
    for (Nanoseconds passed; passed < time; passed += kSecond / 10) {
      house.clock.advance(kSecond / 10);
      manager->pulse();
    }
    manager->tick();
  };
  run(kSecond * 10);
  EXPECT_EQ(leaseLeft("h1"), kSecond * 20);
  house.clock.advance(kSecond * 3600);  // stopped, or suspended
  manager->tick();
  EXPECT_EQ(leaseLeft("h1"), kSecond * 20 - kSecond / 4);
  EXPECT_EQ(stateOf(region), RegionState::kAttached);
  EXPECT_THAT(house.said(), HasSubstr("did not run for 3599.8 s"));
  run(kSecond * 20);
  manager->settle();
  EXPECT_EQ(stateOf(region), RegionState::kFree) << "what the host does not say while we listen";
}

/// Four hosts with a region each.
class ManyHosts : public LeasesTest {
 protected:
  void SetUp() override {
    open({"d1"}, {"h1", "h2", "h3", "h4"});
    for (const char* name : {"h1", "h2", "h3", "h4"}) regions.push_back(assign(name, 1));
  }
  /// After more than a lease in which only these were heard of.
  void silenceBut(const std::vector<std::string>& names) { pass(kSecond * 31, names); }
  size_t attached() {
    return static_cast<size_t>(std::count_if(regions.begin(), regions.end(), [this](RegionId id) {
      return stateOf(id) == RegionState::kAttached;
    }));
  }
  size_t eventsOf(const std::string& what) {
    const auto events = must(manager->eventsSince(Index(), 10'000, "")).events;
    return static_cast<size_t>(std::count_if(
        events.begin(), events.end(), [&](const Event& event) { return event.what == what; }));
  }
  uint64_t held() { return must(manager->totals()).hosts_held; }
  std::vector<RegionId> regions;
};

TEST_F(ManyHosts, WhoIsSilentAloneIsCutOff) {
  silenceBut({"h2", "h3", "h4"});
  EXPECT_EQ(attached(), 3u);
  EXPECT_EQ(held(), 0u);
  EXPECT_EQ(must(manager->totals()).leases_expired, 1u);
  EXPECT_THAT(house.said(), HasSubstr("host h1 was not heard of for its lease of 30 s"));
}

TEST_F(ManyHosts, WhereTooManyAreSilentNobodyIsCutOffUntilTheyAreHeardOf) {
  silenceBut({"h3", "h4"});
  EXPECT_EQ(attached(), 4u);
  EXPECT_EQ(held(), 2u);
  EXPECT_EQ(eventsOf("expiry-held"), 2u);
  EXPECT_THAT(house.said(), HasSubstr("2 of 4 hosts with memory are silent"));
  manager->tick();
  EXPECT_EQ(eventsOf("expiry-held"), 2u) << "said once";
  must(manager->renewLease("h1"));
  manager->tick();
  EXPECT_EQ(held(), 0u);
  EXPECT_EQ(leaseLeft("h2"), kSecond * 30) << "it may be late";
  silenceBut({"h1", "h3", "h4"});
  EXPECT_EQ(attached(), 3u) << "it was not";
}

TEST_F(ManyHosts, HostsThatFallSilentTogetherNeedNotRunOutTogether) {
  pass(kSecond * 10, {"h2", "h3", "h4"});
  pass(kSecond * 21);  // the first is over, the others have 9 s left
  EXPECT_EQ(held(), 1u);
  pass(kSecond * 10);
  EXPECT_EQ(held(), 4u);
  EXPECT_EQ(attached(), 4u);
}

TEST_F(ManyHosts, ExpiryThatIsHeldIsResumed) {
  silenceBut({});
  EXPECT_EQ(attached(), 4u);
  Caller dry;
  dry.mode = Mode::kDryRun;
  EXPECT_EQ(must(manager->resumeLeases(dry)).index, Index());
  EXPECT_EQ(held(), 4u);
  EXPECT_NE(must(manager->resumeLeases({})).index, Index());
  EXPECT_EQ(held(), 0u);
  EXPECT_EQ(eventsOf("expiry-resumed"), 4u);
  manager->tick();
  EXPECT_EQ(leaseLeft("h2"), kSecond * 30);
  EXPECT_EQ(must(manager->resumeLeases({})).index, Index()) << "nothing to do";
}

TEST_F(ManyHosts, ExpiryThatIsHeldIsConfirmed) {
  EXPECT_EQ(must(manager->expireLeases({})).index, Index()) << "nothing is held";
  silenceBut({"h4"});
  EXPECT_EQ(attached(), 4u);
  Caller ann;
  ann.actor = "operator:ann";
  must(manager->expireLeases(ann));
  manager->settle();
  EXPECT_EQ(attached(), 1u);
  EXPECT_EQ(stateOf(regions[3]), RegionState::kAttached);
  EXPECT_EQ(held(), 0u);
  EXPECT_EQ(must(manager->totals()).hosts_fenced, 3u);
  EXPECT_EQ(must(manager->verifyAudit()).first_bad, 0u);
}

TEST_F(LeasesTest, LeasesStartAfreshAfterARestart) {
  const RegionId region = assign("h1", 8);
  house.clock.advance(kSecond * 29);
  reopen();
  pass(kSecond * 29);
  EXPECT_EQ(stateOf(region), RegionState::kAttached);
}

}  // namespace
}  // namespace tidepool::fabric
