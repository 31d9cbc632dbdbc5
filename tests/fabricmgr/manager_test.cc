// SPDX-License-Identifier: Apache-2.0
// The manager's verbs over emulated pools and SQLite: what each does, refuses and keeps over a
// restart.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <thread>

#include "tests/fabricmgr/manager_fixture.h"

namespace tidepool::fabric {
namespace {

using ::testing::HasSubstr;

class ManagerTest : public ManagerFixture {
 protected:
  void SetUp() override { open({"d1", "d2"}, {"h1", "h2"}); }
  Bytes sizeOf(RegionId region) { return infoOf(region).region.size; }
  /// The bytes of a region, as its host would see them.
  void writeRegion(RegionId region, char byte) {
    for (const Access& part : must(manager->access(infoOf(region).host, region)).parts) {
      std::fstream file(part.address, std::ios::in | std::ios::out | std::ios::binary);
      for (const Extent& extent : part.extents) {
        file.seekp(static_cast<std::streamoff>(extent.offset));
        file << std::string(extent.length.value(), byte);
      }
    }
  }
  std::string poolBytes(const std::string& device) {
    std::ifstream file(house.folder / (device + ".pool"), std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
  }
};

TEST_F(ManagerTest, AssignsAndReleasesWithProofOfErasure) {
  const RegionId region = assign("h1", 16);
  EXPECT_EQ(stateOf(region), RegionState::kAttached);
  EXPECT_EQ(freeGrains(), 112u);
  writeRegion(region, 'x');
  const Answer answer = release(region);
  EXPECT_NE(answer.operation, OperationId());
  EXPECT_EQ(codeOf(manager->showRegion(region)), ErrorCode::kNotFound);
  EXPECT_EQ(freeGrains(), 128u);
  const auto evidence = must(manager->evidence(region));
  ASSERT_EQ(evidence.size(), 1u);
  EXPECT_EQ(evidence[0].bytes, Bytes(16 * kGrain));
  EXPECT_EQ(evidence[0].nonzero, Bytes());
  EXPECT_EQ(evidence[0].digest.size(), 64u);
  EXPECT_EQ(stateOf(answer), OperationState::kDone);
  EXPECT_EQ(poolBytes("d1").find('x'), std::string::npos);
}

TEST_F(ManagerTest, KeepsEverythingOverARestart) {
  const RegionId region = assign("h1", 100);  // both devices
  const auto before = infoOf(region);
  reopen();
  const auto after = infoOf(region);
  EXPECT_EQ(after.region.extents, before.region.extents);
  EXPECT_EQ(after.region.state, RegionState::kAttached);
  EXPECT_EQ(after.host, "h1");
  EXPECT_EQ(freeGrains(), 28u);
  EXPECT_EQ(must(manager->verifyAudit()).first_bad, 0u);
}

TEST_F(ManagerTest, SaysWhatWouldFitInstead) {
  AssignSpec spec = want("h1", 80);
  spec.constraints.contiguity = Contiguity::kContiguous;
  const auto refused = manager->assign({}, spec);
  EXPECT_EQ(codeOf(refused), ErrorCode::kNoSpace);
  EXPECT_THAT(refused.error().text(), HasSubstr("if it need not be contiguous"));
  EXPECT_EQ(freeGrains(), 128u);
}

TEST_F(ManagerTest, ARepeatedKeyGetsTheSameAnswer) {
  Caller caller;
  caller.key = "once";
  const Answer first = must(manager->assign(caller, want("h1", 4)));
  EXPECT_EQ(must(manager->assign(caller, want("h1", 4))), first);
  EXPECT_EQ(codeOf(manager->assign(caller, want("h1", 5))), ErrorCode::kConflict);
  reopen();
  EXPECT_EQ(must(manager->assign(caller, want("h1", 4))), first);
  EXPECT_EQ(freeGrains(), 124u);
  Caller other = caller;
  other.actor = "other";
  EXPECT_NE(must(manager->assign(other, want("h1", 4))).id, first.id);
  // A day later the key is forgotten.
  house.wall.advance(kSecond * 90'000);
  manager->tick();
  EXPECT_NE(must(manager->assign(caller, want("h1", 4))).id, first.id);
}

TEST_F(ManagerTest, AStalePlanIsRefused) {
  const Plan plan = must(manager->plan(want("h1", 4)));
  const Plan same = plan;
  must(manager->apply({}, want("h1", 4), plan));
  EXPECT_EQ(codeOf(manager->apply({}, want("h1", 4), same)), ErrorCode::kConflict);
  Plan bad = must(manager->plan(want("h1", 4)));
  bad.extents[0].offset += 1;
  EXPECT_EQ(codeOf(manager->apply({}, want("h1", 4), bad)), ErrorCode::kInvalidArgument);
}

/// A plan comes from the client, which may have made it up.
TEST_F(ManagerTest, APlanThatWasMadeUpIsRefused) {
  const auto codeFor = [&](const Plan& plan, const AssignSpec& spec) {
    return codeOf(manager->apply({}, spec, plan));
  };
  DeviceSpec single = house.poolFile("d3", 64, 1);
  const DeviceId d3(must(manager->addDevice({}, single)).id);
  must(manager->addPool({}, "other", MemoryClass::kCxl));
  Plan plan{manager->index(), {{d3, 0, Bytes(4 * kGrain)}}};
  AssignSpec elsewhere = want("h1", 4);
  elsewhere.pool = "other";
  EXPECT_EQ(codeFor(plan, elsewhere), ErrorCode::kInvalidArgument);
  plan.index = plan.index + 1'000'000;
  EXPECT_EQ(codeFor(plan, want("h1", 4)), ErrorCode::kInvalidArgument) << "from the future";
  plan.index = manager->index();
  must(manager->apply({}, want("h1", 4), plan));
  plan = {manager->index(), {{d3, 16 * kGrain, Bytes(4 * kGrain)}}};
  EXPECT_EQ(codeFor(plan, want("h2", 4)), ErrorCode::kConflict) << "h1 has the only head";
  must(manager->cordonDevice({}, "d3"));
  plan.index = manager->index();
  EXPECT_EQ(codeFor(plan, want("h1", 4)), ErrorCode::kConflict) << "cordoned";
}

TEST_F(ManagerTest, AnOlderViewIsRefused) {
  const RegionId region = assign("h1", 4);
  Caller caller;
  caller.expected = infoOf(region).region.modified;
  must(manager->drainRegion({}, region, {}));
  EXPECT_EQ(codeOf(manager->resumeRegion(caller, region)), ErrorCode::kConflict);
  caller.expected = infoOf(region).region.modified;
  must(manager->resumeRegion(caller, region));
  EXPECT_EQ(stateOf(region), RegionState::kAttached);
}

TEST_F(ManagerTest, DryRunsChangeNothing) {
  const RegionId region = assign("h1", 4);
  const Index before = manager->index();
  Caller caller;
  caller.mode = Mode::kDryRun;
  caller.key = "dry";
  EXPECT_EQ(must(manager->assign(caller, want("h1", 4))).index, Index());
  must(manager->releaseRegion(caller, region, "h1", Force::kNo));
  must(manager->drainHost(caller, "h1", {}));
  must(manager->removeDevice(caller, "d1", Force::kForce));
  must(manager->addPool(caller, "p2", MemoryClass::kRemote));
  EXPECT_EQ(codeOf(manager->removeHost(caller, "h1")), ErrorCode::kRefused);
  EXPECT_EQ(manager->index(), before);
}

TEST_F(ManagerTest, GrowsAndShrinks) {
  const RegionId region = assign("h1", 8);
  must(manager->resize({}, region, Bytes(20 * kGrain), {}));
  EXPECT_EQ(sizeOf(region), Bytes(20 * kGrain));
  EXPECT_EQ(freeGrains(), 108u);
  writeRegion(region, 'y');
  const Answer answer = must(manager->resize({}, region, Bytes(6 * kGrain), {}));
  EXPECT_NE(answer.operation, OperationId());
  manager->settle();
  manager->tick();
  manager->settle();
  EXPECT_EQ(sizeOf(region), Bytes(6 * kGrain));
  EXPECT_EQ(freeGrains(), 122u);
  EXPECT_EQ(stateOf(answer), OperationState::kDone);
  const std::string bytes = poolBytes("d1") + poolBytes("d2");
  EXPECT_EQ(std::count(bytes.begin(), bytes.end(), 'y'), static_cast<int>(6 * kGrain));
  reopen();
  EXPECT_EQ(stateOf(region), RegionState::kAttached);
}

TEST_F(ManagerTest, AccessHasTheOrderInWhichARegionGrew) {
  must(manager->cordonDevice({}, "d2"));
  const RegionId region = assign("h1", 4);
  must(manager->uncordonDevice({}, "d2"));
  must(manager->cordonDevice({}, "d1"));
  must(manager->resize({}, region, Bytes(6 * kGrain), {}));
  must(manager->uncordonDevice({}, "d1"));
  must(manager->cordonDevice({}, "d2"));
  must(manager->resize({}, region, Bytes(7 * kGrain), {}));
  const RegionAccess access = must(manager->access("h1", region));
  ASSERT_EQ(access.parts.size(), 2u) << "one for each device";
  ASSERT_EQ(access.extents.size(), 3u);
  const DeviceId first = access.parts[0].device, second = access.parts[1].device;
  EXPECT_EQ(access.extents[0], (Extent{first, 0, Bytes(4 * kGrain)}));
  EXPECT_EQ(access.extents[1], (Extent{second, 0, Bytes(2 * kGrain)}));
  EXPECT_EQ(access.extents[2], (Extent{first, 4 * kGrain, Bytes(kGrain)}));
}

TEST_F(ManagerTest, ShrinksOnTheGranularityOfEachDevice) {
  DeviceSpec coarse = house.poolFile("d3", 64);
  coarse.granularity = Bytes(16 * kGrain);
  must(manager->addDevice({}, coarse));
  must(manager->cordonDevice({}, "d2"));
  const RegionId region = assign("h1", 64);
  const auto sizeAfter = [&](uint64_t grains) {
    must(manager->resize({}, region, Bytes(grains * kGrain), {}));
    return sizeOf(region);
  };
  EXPECT_EQ(sizeAfter(100), Bytes(112 * kGrain)) << "64 on d1, 48 on d3";
  EXPECT_EQ(sizeAfter(70), Bytes(80 * kGrain));
}

TEST_F(ManagerTest, TransfersBytesToAnotherHost) {
  const RegionId region = assign("h1", 8);
  const Epoch before = infoOf(region).region.epoch;
  writeRegion(region, 'z');
  EXPECT_EQ(codeOf(manager->transferRegion({}, region, "h2", Force::kNo)), ErrorCode::kRefused);
  must(manager->transferRegion({}, region, "h2", Force::kForce));
  manager->settle();
  const auto after = infoOf(region);
  EXPECT_EQ(after.host, "h2");
  EXPECT_EQ(after.region.state, RegionState::kAttached);
  EXPECT_GT(after.region.epoch, before);
  EXPECT_EQ(codeOf(manager->access("h1", region)), ErrorCode::kPermission);
  EXPECT_NE(poolBytes("d1").find('z'), std::string::npos);
}

TEST_F(ManagerTest, DrainsAHostUntilItHasNothing) {
  const RegionId first = assign("h1", 8), second = assign("h1", 8);
  const Answer answer = must(manager->drainHost({}, "h1", {}));
  EXPECT_EQ(stateOf(first), RegionState::kDraining);
  EXPECT_EQ(codeOf(manager->assign({}, want("h1", 1))), ErrorCode::kRefused);
  release(first);
  EXPECT_EQ(stateOf(answer), OperationState::kRunning);
  EXPECT_EQ(operation(answer).done, Bytes(8 * kGrain));
  release(second);
  EXPECT_EQ(stateOf(answer), OperationState::kDone);
  must(manager->removeHost({}, "h1"));
}

TEST_F(ManagerTest, DrainsADeviceUntilNothingIsOnIt) {
  const RegionId both = assign("h1", 100), other = assign("h2", 8);
  const bool first = must(manager->showDevice("d1")).free == Bytes();
  const std::string full = first ? "d1" : "d2";  // so that the small one is not on it
  ASSERT_EQ(must(manager->showDevice(full)).free, Bytes());
  Caller dry;
  dry.mode = Mode::kDryRun;
  must(manager->drainDevice(dry, full, {}));
  EXPECT_EQ(stateOf(both), RegionState::kAttached);
  must(manager->drainDevice({}, full, kSecond * 60));
  must(manager->drainDevice({}, full, {}));  // what is drained already is left to that
  EXPECT_EQ(stateOf(both), RegionState::kDraining);
  EXPECT_EQ(stateOf(other), RegionState::kAttached);
  EXPECT_EQ(codeOf(manager->assign({}, want("h1", 30))), ErrorCode::kNoSpace) << "cordoned";
  EXPECT_FALSE(must(manager->checkRemoveDevice(full)).safe);
  release(both);
  EXPECT_TRUE(must(manager->checkRemoveDevice(full)).safe);
  must(manager->removeDevice({}, full, Force::kNo));
  EXPECT_EQ(codeOf(manager->drainDevice({}, full, {})), ErrorCode::kNotFound);
}

TEST_F(ManagerTest, OldRecordsAreDroppedOnceAnHourAndNotAtTheStart) {
  house.wall.advance(kSecond * 86'400 * 2);
  reopen();
  const Index before = manager->index();
  manager->tick();
  EXPECT_EQ(manager->index(), before);
  house.wall.advance(kSecond * 3600);
  manager->tick();
  EXPECT_EQ(manager->index().value(), before.value() + 1);
  manager->tick();
  EXPECT_EQ(manager->index().value(), before.value() + 1);
}

TEST_F(ManagerTest, RemovingADeviceSaysWhoIsHurt) {
  const RegionId region = assign("h1", 100);
  const RemovalReport report = must(manager->checkRemoveDevice("d1"));
  EXPECT_FALSE(report.safe);
  ASSERT_EQ(report.hurt.size(), 1u);
  EXPECT_EQ(report.hurt[0].host, "h1");
  EXPECT_EQ(codeOf(manager->removeDevice({}, "d1", Force::kNo)), ErrorCode::kRefused);
  must(manager->removeDevice({}, "d1", Force::kForce));
  EXPECT_EQ(stateOf(region), RegionState::kLost);
  release(region);
  EXPECT_EQ(stateOf(region), RegionState::kFree);
  EXPECT_EQ(freeGrains(), 64u);
  must(manager->removeDevice({}, "d2", Force::kNo));
  must(manager->removePool({}, "pool"));
}

TEST_F(ManagerTest, AResizeThatMeetsAnotherNeverAnswersForASmallerRegion) {
  RegionId region;
  house.hooks.on_key = [&](const std::string& key) {
    if (key != "slow") return;
    must(manager->resize({}, region, Bytes(2 * kGrain), {}));
    manager->settle();
  };
  reopen();
  region = assign("h1", 8);
  Caller caller;
  caller.key = "slow";  // looked up after the manager saw that 6 is less than 8
  EXPECT_EQ(codeOf(manager->resize(caller, region, Bytes(6 * kGrain), {})), ErrorCode::kConflict);
  EXPECT_EQ(sizeOf(region), Bytes(2 * kGrain));
  manager->settle();
}

TEST_F(ManagerTest, APlanIsAppliedForWhatItWasMadeFor) {
  const Plan plan = must(manager->plan(want("h1", 100)));  // on both devices
  const auto applied = [&](const AssignSpec& spec) {
    const auto answer = manager->apply({}, spec, plan);
    return answer ? std::string("done") : answer.error().text();
  };
  EXPECT_THAT(applied(want("h1", 101)), HasSubstr("the plan has 409600 bytes, and 413696 are"));
  EXPECT_THAT(applied(want("h1", 99)), HasSubstr("and 405504 are asked for"));
  AssignSpec spec = want("h1", 100);
  spec.constraints.max_devices = 1;
  EXPECT_THAT(applied(spec), HasSubstr("on 2 devices, and fewer are asked for"));
  spec = want("h1", 100);
  spec.constraints.contiguity = Contiguity::kContiguous;
  EXPECT_THAT(applied(spec), HasSubstr("the plan has 2 extents"));
  spec = want("h1", 100);
  spec.size = spec.size - Bytes(1);
  EXPECT_EQ(applied(spec), "done") << "what was rounded up";
}

TEST_F(ManagerTest, WhatNobodyAskedForIsSaid) {
  const RegionId lost = assign("h1", 100);  // on both devices
  const RegionId forced = assign("h1", 8);
  must(manager->drainRegion({}, forced, kSecond));
  must(manager->removeDevice({}, "d1", Force::kForce));
  std::filesystem::rename(house.folder / "d2.pool", house.folder / "away");
  std::filesystem::rename(house.folder / "d2.pool.grants", house.folder / "away.grants");
  house.clock.advance(kSecond * 2);
  manager.reset();
  EXPECT_THAT(house.said(), HasSubstr("region " + std::to_string(lost.value()) +
                                      " of host h1 is lost: device d1 was removed by force"));
  std::filesystem::create_directory(house.folder / "d2.pool");
  manager = house.open();
  manager->tick();
  must(manager->fenceHost({}, "h1", Force::kForce));
  (void)manager->totals();
  for (const char* line : {"device d2 does not answer: cannot open the pool",
                           "host h1 is fenced by local: 2 regions of"}) {
    EXPECT_THAT(house.said(), HasSubstr(line));
  }
  std::filesystem::remove(house.folder / "d2.pool");
  std::filesystem::rename(house.folder / "away", house.folder / "d2.pool");
  manager->tick();
  EXPECT_THAT(house.said(), HasSubstr("device d2 answers again"));
  size_t told = 0;
  for (const Event& event : must(manager->eventsSince(Index(), 10'000, "")).events) {
    told += event.what == "reachable" || event.what == "unreachable";
  }
  EXPECT_EQ(told, 2u);
}

TEST_F(ManagerTest, ACordonedDeviceGetsNothingNew) {
  must(manager->cordonDevice({}, "d1"));
  const RegionId region = assign("h1", 4);
  EXPECT_EQ(must(manager->listRegions({}, {"", "d1", "", {}, {}})).items.size(), 0u);
  EXPECT_EQ(codeOf(manager->assign({}, want("h1", 70))), ErrorCode::kNoSpace);
  must(manager->uncordonDevice({}, "d1"));
  EXPECT_EQ(stateOf(region), RegionState::kAttached);
  assign("h1", 70);
}

TEST_F(ManagerTest, RefusesWhatMakesNoSense) {
  const RegionId region = assign("h1", 4);
  EXPECT_EQ(codeOf(manager->assign({}, want("nobody", 4))), ErrorCode::kNotFound);
  EXPECT_EQ(codeOf(manager->assign({}, want("h1", 0))), ErrorCode::kInvalidArgument);
  AssignSpec huge = want("h1", 1);
  huge.size = Bytes(~0ull);
  EXPECT_EQ(codeOf(manager->assign({}, huge)), ErrorCode::kInvalidArgument);
  EXPECT_EQ(codeOf(manager->addPool({}, "pool", MemoryClass::kCxl)), ErrorCode::kConflict);
  EXPECT_EQ(codeOf(manager->addPool({}, "../x", MemoryClass::kCxl)), ErrorCode::kInvalidArgument);
  EXPECT_EQ(codeOf(manager->addHost({}, hostSpec(""))), ErrorCode::kInvalidArgument);
  EXPECT_EQ(codeOf(manager->removePool({}, "pool")), ErrorCode::kRefused);
  EXPECT_EQ(codeOf(manager->releaseRegion({}, region, "h2", Force::kNo)), ErrorCode::kPermission);
  EXPECT_EQ(codeOf(manager->releaseRegion({}, region, "", Force::kNo)), ErrorCode::kRefused);
  EXPECT_EQ(codeOf(manager->releaseRegion({}, RegionId(99'999), "", Force::kForce)),
            ErrorCode::kNotFound);
  EXPECT_EQ(codeOf(manager->resumeRegion({}, region)), ErrorCode::kRefused);
  EXPECT_EQ(codeOf(manager->fenceHost({}, "h1", Force::kNo)), ErrorCode::kRefused);
  EXPECT_EQ(codeOf(manager->access("h2", region)), ErrorCode::kPermission);
  DeviceSpec twice = house.poolFile("d3", 64);
  twice.address = house.folder / "d1.pool";
  EXPECT_EQ(codeOf(manager->addDevice({}, twice)), ErrorCode::kConflict);
  Caller caller;
  caller.actor = "bell\a";
  EXPECT_EQ(codeOf(manager->addPool(caller, "p9", MemoryClass::kCxl)), ErrorCode::kInvalidArgument);
}

TEST_F(ManagerTest, HeadsBoundTheHostsOfADevice) {
  must(manager->addPool({}, "small", MemoryClass::kCxl));
  DeviceSpec spec = house.poolFile("one", 64, 1);
  spec.pool = "small";
  must(manager->addDevice({}, spec));
  AssignSpec first = want("h1", 4), second = want("h2", 4);
  first.pool = second.pool = "small";
  must(manager->assign({}, first));
  must(manager->assign({}, first));
  const auto refused = manager->assign({}, second);
  EXPECT_EQ(codeOf(refused), ErrorCode::kNoSpace);
  EXPECT_THAT(refused.error().text(), HasSubstr("without a free head"));
}

TEST_F(ManagerTest, ListsInPages) {
  for (int i = 0; i < 25; ++i) assign(i % 2 == 0 ? "h1" : "h2", 1);
  PageRequest page{0, 10};
  size_t seen = 0;
  for (;;) {
    const auto part = must(manager->listRegions(page, {}));
    seen += part.items.size();
    if (part.next == 0) break;
    page.cursor = part.next;
  }
  EXPECT_EQ(seen, 25u);
  EXPECT_EQ(must(manager->listRegions({0, 100}, {"h1", "", "", {}, {}})).items.size(), 13u);
  EXPECT_EQ(must(manager->listRegions({0, 100}, {"", "", "", RegionState::kLost, {}})).items.size(),
            0u);
  EXPECT_EQ(codeOf(manager->listRegions({0, 0}, {})), ErrorCode::kInvalidArgument);
  EXPECT_EQ(codeOf(manager->listRegions({}, {"nobody", "", "", {}, {}})), ErrorCode::kNotFound);
  EXPECT_EQ(must(manager->listHosts({})).items.size(), 2u);
  EXPECT_EQ(must(manager->listDevices({}, "pool")).items.size(), 2u);
  EXPECT_EQ(must(manager->listPools({})).items[0].capacity, Bytes(128 * kGrain));
}

TEST_F(ManagerTest, EventsTellEveryChangeOnce) {
  const Index start = manager->index();
  const RegionId region = assign("h1", 4);
  release(region);
  std::vector<std::string> told;
  Index since = start;
  for (;;) {
    const auto events = must(manager->eventsSince(since, 2, "h1"));
    if (events.events.empty()) break;
    for (const Event& event : events.events) {
      if (event.subject == Subject::kRegion) told.push_back(event.what);
    }
    EXPECT_GT(events.index, since);
    since = events.index;
  }
  EXPECT_EQ(told, (std::vector<std::string>{"reserve", "attach", "fence", "detach", "scrub",
                                            "scrubbed"}));
  EXPECT_TRUE(must(manager->eventsSince(start, 100, "h2")).events.empty());
}

TEST_F(ManagerTest, EventsOfWhatIsNotYetKnownToBeDurableWait) {
  std::atomic<uint64_t> known{UINT64_MAX};
  house.hooks.durable = [&](Index all) { return std::min(all, Index(known.load())); };
  reopen();
  assign("h1", 4);
  const Index first = manager->index();
  known = first.value();
  assign("h1", 4);
  const auto events = must(manager->eventsSince(Index(), 10'000, "h1"));
  EXPECT_EQ(events.index, first);
  EXPECT_EQ(events.events.back().index, first);
  EXPECT_TRUE(must(manager->eventsSince(events.index, 1, "h1")).events.empty());
  known = UINT64_MAX;
  EXPECT_GT(must(manager->eventsSince(events.index, 1, "h1")).index, first);
}

TEST_F(ManagerTest, ManyCallersNeverShareAByte) {
  std::vector<std::thread> callers;
  std::atomic<int> refused{0};
  for (int t = 0; t < 8; ++t) {
    callers.emplace_back([&, t] {
      for (int i = 0; i < 20; ++i) {
        const auto answer = manager->assign({}, want(t % 2 == 0 ? "h1" : "h2", 3));
        if (!answer) {
          EXPECT_EQ(answer.error().code(), ErrorCode::kNoSpace) << answer.error().text();
          ++refused;
        } else if (i % 2 == 0) {
          must(manager->releaseRegion({}, RegionId(answer->id), t % 2 == 0 ? "h1" : "h2",
                                      Force::kNo));
        }
      }
    });
  }
  for (std::thread& caller : callers) caller.join();
  manager->settle();
  uint64_t held = 0;
  for (const RegionInfo& info : must(manager->listRegions({0, 1000}, {})).items) {
    held += info.region.size.value() / kGrain;
    EXPECT_EQ(info.region.state, RegionState::kAttached);
  }
  EXPECT_EQ(held + freeGrains(), 128u);
  EXPECT_EQ(must(manager->verifyAudit()).first_bad, 0u);
  reopen();  // loading checks that no byte is held twice
  EXPECT_EQ(freeGrains(), 128 - held);
}

}  // namespace
}  // namespace tidepool::fabric
