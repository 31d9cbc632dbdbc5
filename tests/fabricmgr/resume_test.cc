// SPDX-License-Identifier: Apache-2.0
// Many hosts resumed at once: who is named, what becomes of each (against a model), that it is done
// as a whole or not at all when the manager is killed, and that a key does it once.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <random>

#include "tests/fabricmgr/crash_fixture.h"
#include "tests/fabricmgr/faulty_driver.h"
#include "tests/fabricmgr/manager_fixture.h"

namespace tidepool::fabric {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class ResumeMany : public ManagerFixture {
 protected:
  void SetUp() override {
    house.drivers = faultyDrivers(house.wall, [this](const char* action, const Device&) {
      const bool erases = std::string_view(action) == "revoke";
      return erases && device_away.load() ? Fault::kBefore : Fault::kNone;
    });
    open({"d1"}, {"h1", "h2", "h3", "h4"});
    for (const std::string name : {"h1", "h2", "h3", "h4"}) {
      must(manager->labelHost({}, name, {{"rack", name < "h3" ? "r1" : "r2"}}));
      assign(name, 1);
    }
  }
  /// "h1 resumed", one for each host that the selector finds.
  std::vector<std::string> resume(const std::string& selector, const Caller& caller = {}) {
    const ResumedHosts all = must(manager->resumeHosts(caller, *Selector::parse(selector)));
    index = all.index;
    std::vector<std::string> lines;
    for (const ResumedHost& one : all.hosts) {
      lines.push_back(one.name + " " + std::string(nameOf(one.outcome)));
      EXPECT_EQ(one.text.empty(), one.outcome != Resumed::kRefused) << one.text;
    }
    return lines;
  }
  void fence(const std::string& name) { must(manager->fenceHost({}, name, Force::kForce)); }
  uint64_t held() { return must(manager->totals()).hosts_held; }

  std::atomic<bool> device_away{false};
  Index index;  // of the last resume()
};

TEST_F(ResumeMany, AfterAMassExpiryAllAreBackByOneVerb) {
  house.clock.advance(kSecond * 31);
  manager->tick();
  must(manager->expireLeases({}));
  manager->settle();
  EXPECT_EQ(must(manager->totals()).hosts_fenced, 4u);
  EXPECT_THAT(resume("rack=r1"), ElementsAre("h1 resumed", "h2 resumed"));
  EXPECT_EQ(must(manager->totals()).hosts_fenced, 2u);
  EXPECT_THAT(resume(""), ElementsAre("h1 unchanged", "h2 unchanged", "h3 resumed", "h4 resumed"));
  const auto audit = must(manager->listAudit({0, 1000})).items;
  EXPECT_EQ(audit.back().verb, "host.resume-many");
  EXPECT_EQ(audit.back().outcome, "2 unchanged, 2 resumed, 0 renewed, 0 refused");
  const Index before = must(manager->totals()).index;
  EXPECT_THAT(resume("rack=r2"), ElementsAre("h3 unchanged", "h4 unchanged"));
  EXPECT_EQ(index, Index());
  EXPECT_EQ(must(manager->totals()).index, before) << "nothing was to change";
  must(manager->assign({}, want("h3", 1)));
}

TEST_F(ResumeMany, WhileExpiryIsHeldWhoIsNamedGetsANewLease) {
  house.clock.advance(kSecond * 31);
  manager->tick();
  EXPECT_EQ(held(), 4u);
  Caller dry;
  dry.mode = Mode::kDryRun;
  EXPECT_THAT(resume("rack=r1", dry), ElementsAre("h1 renewed", "h2 renewed"));
  EXPECT_EQ(held(), 4u);
  EXPECT_THAT(resume("rack=r1"), ElementsAre("h1 renewed", "h2 renewed"));
  EXPECT_EQ(held(), 2u);
  EXPECT_EQ(must(manager->showHost("h1")).lease_left, kSecond * 30);
  EXPECT_EQ(must(manager->showHost("h3")).lease_left, Nanoseconds());
  EXPECT_THAT(resume(""), ElementsAre("h1 unchanged", "h2 unchanged", "h3 renewed", "h4 renewed"));
  EXPECT_EQ(held(), 0u);
}

TEST_F(ResumeMany, WhoMayNotIsRefusedAndTheOthersAreResumed) {
  device_away = true;
  fence("h1");
  manager->settle();
  must(manager->drainHost({}, "h2", {}));
  const auto all = must(manager->resumeHosts({}, *Selector::parse("rack=r1")));
  ASSERT_EQ(all.hosts.size(), 2u);
  EXPECT_EQ(all.hosts[0].outcome, Resumed::kRefused);
  EXPECT_THAT(all.hosts[0].text, HasSubstr("1 regions of it are not erased yet"));
  EXPECT_EQ(all.hosts[1].outcome, Resumed::kResumed);
  EXPECT_EQ(stateOf("h1"), HostState::kFenced);
  EXPECT_EQ(stateOf("h2"), HostState::kActive);
  device_away = false;
  manager->tick();
  manager->settle();
  EXPECT_THAT(resume(""),
              ElementsAre("h1 resumed", "h2 unchanged", "h3 unchanged", "h4 unchanged"));
}

TEST_F(ResumeMany, WhoWasModifiedSinceIsRefusedByItself) {
  must(manager->drainHost({}, "h1", {}));
  Caller seen;
  seen.expected = must(manager->totals()).index;
  must(manager->drainHost({}, "h2", {}));
  EXPECT_THAT(resume("rack=r1", seen), ElementsAre("h1 resumed", "h2 refused"));
  EXPECT_EQ(stateOf("h2"), HostState::kDraining);
}

TEST_F(ResumeMany, NobodyIsAnErrorUnlessAllWereMeant) {
  EXPECT_EQ(codeOf(manager->resumeHosts({}, *Selector::parse("rack=r9"))), ErrorCode::kNotFound);
  for (const char* name : {"h1", "h2", "h3", "h4"}) fence(name);
  manager->settle();
  for (const char* name : {"h1", "h2", "h3", "h4"}) must(manager->removeHost({}, name));
  EXPECT_THAT(resume(""), IsEmpty());
}

TEST_F(ResumeMany, AKeyDoesItOnceAndTellsTheSameAgain) {
  Caller keyed;
  keyed.key = "k1";
  must(manager->drainHost({}, "h1", {}));
  must(manager->drainHost({}, "h2", {}));
  const auto first = resume("rack=r1", keyed);
  EXPECT_THAT(first, ElementsAre("h1 resumed", "h2 resumed"));
  const Index done = index;
  must(manager->drainHost({}, "h2", {}));
  for (int life = 0; life < 2; ++life) {
    EXPECT_EQ(resume("rack=r1", keyed), first);
    EXPECT_EQ(index, done);
    EXPECT_EQ(stateOf("h2"), HostState::kDraining) << "a repeated key has done it again";
    reopen();
  }
  must(manager->drainHost({}, "h3", {}));
  must(manager->labelHost({}, "h3", {{"rack", "r1"}}));
  EXPECT_THAT(resume("rack=r1", keyed), ElementsAre("h1 resumed", "h2 resumed", "h3 refused"));
  EXPECT_EQ(codeOf(manager->resumeHosts(keyed, *Selector::parse("rack=r2"))), ErrorCode::kConflict);
}

/// Hosts in every state, at random; what becomes of each is what its own state says.
TEST_F(ResumeMany, IsWhatOneByOneWouldBe) {
  std::mt19937 random(5);
  const std::vector<std::string> names = {"h1", "h2", "h3", "h4"};
  const auto isNamed = [](const std::string& name, unsigned which) {
    return which == 2 || (name < "h3") == (which == 0);
  };
  const char* const selectors[] = {"rack=r1", "rack!=r1", ""};
  for (int round = 0; round < 60; ++round) {
    const std::string& name = names[random() % 4];
    if (random() % 2 == 0) {
      fence(name);
    } else if (stateOf(name) != HostState::kFenced) {
      must(manager->drainHost({}, name, {}));
    }
    manager->settle();
    const unsigned which = random() % 3;
    std::vector<std::string> wanted;
    std::map<std::string, HostState> after;
    for (const std::string& one : names) {
      const bool named = isNamed(one, which);
      after[one] = named ? HostState::kActive : stateOf(one);
      const bool active = stateOf(one) == HostState::kActive;
      if (named) wanted.push_back(one + (active ? " unchanged" : " resumed"));
    }
    EXPECT_EQ(resume(selectors[which]), wanted);
    for (const auto& [one, state] : after) EXPECT_EQ(stateOf(one), state) << one;
  }
  EXPECT_EQ(must(manager->verifyAudit()).first_bad, 0u);
}

TEST_F(ResumeMany, KilledAtEveryFaultPointItIsDoneAsAWholeOrNotAtAll) {
  for (const char* name : {"h1", "h2", "h3"}) must(manager->drainHost({}, name, {}));
  manager.reset();
  Folder saved;
  replaceFolder(house.folder.path(), saved.path());
  Caller keyed;
  keyed.key = "k1";
  for (long point = 1;; ++point) {
    ASSERT_LT(point, 400);
    SCOPED_TRACE("killed at fault point " + std::to_string(point));
    replaceFolder(saved.path(), house.folder.path());
    const Ending ending = runInChild(point, [&] {
      auto child = house.open();
      must(child->resumeHosts(keyed, Selector()));
      child.reset();
    });
    ASSERT_NE(ending, Ending::kFailed);
    recoverAndCheck(house, [&](Manager& next) {
      const auto hosts = must(next.listHosts({})).items;
      const auto active = std::count_if(hosts.begin(), hosts.end(), [](const HostInfo& info) {
        return info.host.state == HostState::kActive;
      });
      EXPECT_TRUE(active == 1 || active == 4) << active << " are active: something half done";
      const auto again = must(next.resumeHosts(keyed, Selector()));
      EXPECT_EQ(must(next.totals()).index, again.index);
      EXPECT_EQ(
          std::count_if(again.hosts.begin(), again.hosts.end(),
                        [](const ResumedHost& one) { return one.outcome == Resumed::kResumed; }),
          3);
    });
    if (HasFailure() || ending == Ending::kFinished) return;
  }
}

}  // namespace
}  // namespace tidepool::fabric
