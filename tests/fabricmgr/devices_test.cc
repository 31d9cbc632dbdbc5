// SPDX-License-Identifier: Apache-2.0
// What the manager does when devices fail, are away, come back changed, or hold what they should
// not.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <mutex>
#include <thread>

#include "tests/fabricmgr/crash_fixture.h"
#include "tests/fabricmgr/faulty_driver.h"
#include "tests/fabricmgr/manager_fixture.h"

namespace tidepool::fabric {
namespace {

using ::testing::HasSubstr;

class DevicesTest : public ManagerFixture {
 protected:
  void SetUp() override {
    house.drivers = faultyDrivers(house.wall, [this](const char* action, const Device& device) {
      return fault(action, device.name);
    });
    manager = house.open();
    must(manager->addPool({}, "pool", MemoryClass::kCxl));
    must(manager->addDevice({}, house.poolFile("d1", 32, 0, "d1")));
    must(manager->addDevice({}, house.poolFile("d2", 32, 0, "d2")));
    must(manager->addHost({}, hostSpec("h1")));
  }
  /// From now on `action` on `device` fails so; each is asked under the mutex.
  void breakAction(const std::string& action, const std::string& device, Fault how) {
    std::lock_guard<std::mutex> lock(mutex);
    faults[{action, device}] = how;
  }
  void mend() {
    std::lock_guard<std::mutex> lock(mutex);
    faults.clear();
  }
  Fault fault(const std::string& action, const std::string& device) {
    if (action == "progress" && on_progress) on_progress();
    std::lock_guard<std::mutex> lock(mutex);
    ++asked[{action, device}];
    const auto found = faults.find({action, device});
    return found == faults.end() ? Fault::kNone : found->second;
  }
  uint64_t timesAsked(const std::string& action, const std::string& device) {
    std::lock_guard<std::mutex> lock(mutex);
    return asked[{action, device}];
  }
  /// The regions, of so many grains, were growing on d2, which had granted it to all, when the
  /// manager died; and d2 is away when the next one starts.
  void dieGrowing(const std::vector<RegionId>& regions, uint64_t grains) {
    static std::atomic<size_t> left;
    left = regions.size();
    manager.reset();
    const Ending ending = runInChild(0, [&] {
      manager = house.open();
      fault_hook = [](FaultPoint point) {
        if (point != FaultPoint::kGrantDeviceDone) return;
        if (--left == 0) kill(getpid(), SIGKILL);
        for (;;) pause();  // until the last one has come so far
      };
      Constraints on_d2;
      on_d2.avoid_domains = {"d1"};
      std::vector<std::thread> callers;
      for (const RegionId region : regions) {
        Caller caller;
        caller.key = "grow" + std::to_string(region.value());
        callers.emplace_back([this, caller, region, grains, on_d2] {
          (void)manager->resize(caller, region, Bytes((grains + 4) * kGrain), on_d2);
        });
      }
      for (std::thread& caller : callers) caller.join();
    });
    ASSERT_EQ(ending, Ending::kKilled);
    breakAction("open", "d2", Fault::kBefore);
    manager = house.open();
  }
  /// The last word that the device's record has of the region: "granted" ...; empty: none.
  std::string grantOn(const std::string& device, RegionId region) {
    std::ifstream record(house.folder / (device + ".pool.grants"));
    std::string word;
    for (std::string line; std::getline(record, line);) {
      if (line.find(" region=" + std::to_string(region.value()) + " ") == std::string::npos)
        continue;
      word = line.substr(17, line.find(' ', 17) - 17);
    }
    return word;
  }
  /// The pool's first grain, for a region that no manager has given.
  void holdBehindItsBack(const std::string& pool) {
    Device device = {};
    device.address = house.folder / pool;
    device.capacity = Bytes(8 * kGrain);
    Grant grant;
    grant.region = RegionId(999);
    grant.epoch = Epoch(1);
    grant.extents = {{DeviceId(), 0, Bytes(kGrain)}};
    Leadership leadership(leaderOf(1));
    auto driver = must(openPoolFile(device, leadership, house.wall));
    must(driver->attach(grant));
    // Nobody's log, as those of earlier versions are: any fabric may adopt it.
    driver.reset();
    disown(device.address + ".grants");
  }
  /// Over, in a state that holds. The manager is closed.
  void finishAndCheck() {
    mend();
    finishWork(*manager);
    manager.reset();
    house.drivers = nullptr;
    recoverAndCheck(house);
  }

  std::mutex mutex;
  std::map<std::pair<std::string, std::string>, Fault> faults;
  std::map<std::pair<std::string, std::string>, uint64_t> asked;
  std::function<void()> on_progress;
};

TEST_F(DevicesTest, ProgressDoesNotRunBackwards) {
  // It takes both devices, and not as much of each.
  for (const char* other : {"d1", "d2"}) {
    AssignSpec spec = want("h1", 20);
    spec.constraints.avoid_domains = {other};
    const RegionId beside(must(manager->assign({}, spec)).id);
    const RegionId region = assign("h1", 40);
    Bytes shown;
    uint64_t looks = 0;
    on_progress = [&] {
      const auto running = must(manager->listOperations({0, 1000})).items;
      const auto own = std::find_if(running.rbegin(), running.rend(), [&](const Operation& one) {
        return one.region == region && one.state == OperationState::kRunning;
      });
      ASSERT_NE(own, running.rend());
      EXPECT_GE(own->done, shown);
      shown = own->done;
      ++looks;
    };
    release(region);
    on_progress = nullptr;
    EXPECT_EQ(stateOf(region), RegionState::kFree);
    EXPECT_EQ(looks, 2u);
    EXPECT_GT(shown, Bytes(20 * kGrain));
    release(beside);
  }
}

TEST_F(DevicesTest, AGrantThatFailsHalfwayIsTakenBack) {
  for (const Fault how : {Fault::kBefore, Fault::kAfter}) {
    breakAction("attach", "d2", how);
    breakAction("open", "d2", Fault::kBefore);
    EXPECT_FALSE(manager->assign({}, want("h1", 40)));
    EXPECT_EQ(must(manager->showDevice("d2")).health, DeviceHealth::kUnreachable);
    manager->settle();
    EXPECT_EQ(freeGrains(), 24u) << "not given to others while a device may hold it";
    mend();
    finishWork(*manager);
    EXPECT_EQ(freeGrains(), 64u);
  }
  finishAndCheck();
}

TEST_F(DevicesTest, AGrowthThatFailsHalfwayIsTakenBackAtOnceThatCan) {
  const RegionId region = assign("h1", 30);
  breakAction("attach", "d2", Fault::kAfter);
  Caller caller;
  caller.key = "grow";
  EXPECT_FALSE(manager->resize(caller, region, Bytes(50 * kGrain), {}));
  EXPECT_FALSE(manager->resize(caller, region, Bytes(50 * kGrain), {})) << "the same answer again";
  mend();
  finishWork(*manager);
  EXPECT_EQ(freeGrains(), 34u);
  EXPECT_EQ(infoOf(region).region.size, Bytes(30 * kGrain));
  must(manager->resize({}, region, Bytes(50 * kGrain), {}));
  finishAndCheck();
}

/// The device granted the growth, the manager died, and the region goes before the device is back:
/// what it holds for the region must not outlive it.
TEST_F(DevicesTest, ARegionThatWasGrowingCanBeTakenWhileADeviceIsAway) {
  const RegionId region = assign("h1", 30);
  dieGrowing({region}, 30);
  EXPECT_EQ(codeOf(manager->resize({}, region, Bytes(8 * kGrain), {})), ErrorCode::kConflict);
  release(region);
  EXPECT_EQ(stateOf(region), RegionState::kFenced) << "d1 refuses the host, d2 is to be told yet";
  reopen();
  finishAndCheck();
}

TEST_F(DevicesTest, RegionsThatWereGrowingDoNotWaitForEachOther) {
  const std::vector<RegionId> regions = {assign("h1", 10), assign("h1", 10)};
  dieGrowing(regions, 10);
  for (const RegionId region : regions) {
    must(manager->releaseRegion({}, region, "h1", Force::kNo));
  }
  manager->settle();
  for (const RegionId region : regions) EXPECT_EQ(grantOn("d1", region), "revoked");
  mend();
  finishWork(*manager);
  EXPECT_EQ(freeGrains(), 64u);
  finishAndCheck();
}

TEST_F(DevicesTest, ALostRegionThatWasGrowingLeavesNothingBehind) {
  const RegionId region = assign("h1", 30);
  dieGrowing({region}, 30);
  must(manager->removeDevice({}, "d1", Force::kForce));
  EXPECT_EQ(stateOf(region), RegionState::kLost);
  must(manager->releaseRegion({}, region, "h1", Force::kNo));
  EXPECT_EQ(stateOf(region), RegionState::kFenced) << "d2 is to be told yet";
  mend();
  finishWork(*manager);
  EXPECT_EQ(stateOf(region), RegionState::kFree);
  EXPECT_EQ(freeGrains(), 32u);
  finishAndCheck();
}

TEST_F(DevicesTest, ADeviceThatNeverComesBackCanBeRemovedWithWhatItWasToGive) {
  const RegionId region = assign("h1", 30);
  dieGrowing({region}, 30);
  EXPECT_EQ(codeOf(manager->removeDevice({}, "d2", Force::kNo)), ErrorCode::kRefused);
  must(manager->removeDevice({}, "d2", Force::kForce));
  finishWork(*manager);
  EXPECT_EQ(stateOf(region), RegionState::kAttached);
  EXPECT_EQ(freeGrains(), 2u);
  must(manager->resize({}, region, Bytes(31 * kGrain), {}));
  finishAndCheck();
}

TEST_F(DevicesTest, ADeviceThatIsAwayKeepsNoOtherFromCuttingTheHostOff) {
  const RegionId region = assign("h1", 40);
  for (const char* device : {"d1", "d2"}) EXPECT_EQ(grantOn(device, region), "granted");
  // The first one that is told.
  breakAction("revoke", "d1", Fault::kBefore);
  breakAction("open", "d1", Fault::kBefore);
  must(manager->fenceHost({}, "h1", Force::kForce));
  manager->settle();
  EXPECT_EQ(grantOn("d2", region), "revoked");
  finishAndCheck();
}

TEST_F(DevicesTest, WhatIsErasedIsNotErasedAgainWhileAnotherDeviceIsAway) {
  const RegionId region = assign("h1", 40);
  breakAction("scrub", "d1", Fault::kBefore);
  breakAction("open", "d1", Fault::kBefore);
  must(manager->releaseRegion({}, region, "h1", Force::kNo));
  finishWork(*manager);
  EXPECT_EQ(stateOf(region), RegionState::kScrubbing);
  mend();
  finishWork(*manager);
  EXPECT_EQ(stateOf(region), RegionState::kFree);
  EXPECT_EQ(timesAsked("scrub", "d2"), 1u);
  EXPECT_EQ(must(manager->evidence(region)).size(), 2u);
  finishAndCheck();
}

/// However long it runs.
TEST_F(DevicesTest, TheRecordOfGrantsStaysShort) {
  Device device = {};
  device.address = house.folder / "d9.pool";
  device.capacity = Bytes(8 * kGrain);
  Leadership leadership(leaderOf(1));
  auto driver = must(openPoolFile(device, leadership, house.wall));
  Grant grant;
  grant.region = RegionId(7);
  grant.extents = {{DeviceId(), 0, Bytes(kGrain)}};
  constexpr uint64_t kChanges = 8000;
  for (uint64_t epoch = 1; epoch <= kChanges; ++epoch) {
    grant.epoch = Epoch(epoch);
    must(driver->attach(grant));
  }
  EXPECT_LT(std::filesystem::file_size(device.address + ".grants"), 260 * kKiB);
  driver.reset();
  const auto held = must(must(openPoolFile(device, leadership, house.wall))->inspect());
  ASSERT_EQ(held.size(), 1u);
  EXPECT_EQ(held[0].grant.epoch, Epoch(kChanges));
  EXPECT_EQ(held[0].grant.extents, grant.extents);
}

TEST_F(DevicesTest, AReleaseWaitsForItsDevice) {
  const RegionId region = assign("h1", 8);
  for (const char* action : {"revoke", "scrub", "verify"}) {
    breakAction(action, "d1", Fault::kBefore);
  }
  breakAction("open", "d1", Fault::kBefore);
  const Answer answer = release(region);
  EXPECT_EQ(stateOf(region), RegionState::kFenced);
  const Operation waiting = operation(answer);
  EXPECT_EQ(waiting.state, OperationState::kRunning);
  EXPECT_THAT(waiting.text, HasSubstr("cable"));
  mend();
  finishWork(*manager);
  EXPECT_EQ(stateOf(answer), OperationState::kDone);
  EXPECT_EQ(freeGrains(), 64u);
  finishAndCheck();
}

TEST_F(DevicesTest, WhatIsNotZeroIsErasedAgain) {
  const RegionId region = assign("h1", 8);
  breakAction("verify", "d1", Fault::kNonzero);
  release(region);
  EXPECT_EQ(stateOf(region), RegionState::kDirty);
  EXPECT_EQ(codeOf(manager->evidence(region)), ErrorCode::kNotFound);
  EXPECT_EQ(freeGrains(), 56u);
  mend();
  finishWork(*manager);
  EXPECT_EQ(must(manager->evidence(region))[0].nonzero, Bytes());
  finishAndCheck();
}

TEST_F(DevicesTest, ADeviceThatIsAwayAtTheStartIsBroughtInLater) {
  const RegionId region = assign("h1", 8);
  manager.reset();
  breakAction("open", "d2", Fault::kBefore);
  manager = house.open();
  EXPECT_EQ(stateOf(region), RegionState::kAttached);
  EXPECT_EQ(must(manager->totals()).unreachable, 1u);
  const auto refused = manager->assign({}, want("h1", 30));
  EXPECT_EQ(codeOf(refused), ErrorCode::kNoSpace);
  EXPECT_THAT(refused.error().text(), HasSubstr("unreachable"));
  mend();
  manager->tick();
  assign("h1", 30);
  finishAndCheck();
}

TEST_F(DevicesTest, ARegionIsLostWhenItsDeviceForgotIt) {
  const RegionId region = assign("h1", 8);
  manager.reset();
  std::filesystem::remove(house.folder / "d1.pool.grants");
  manager = house.open();
  EXPECT_EQ(stateOf(region), RegionState::kLost);
  EXPECT_EQ(codeOf(manager->access("h1", region)), ErrorCode::kRefused);
  must(manager->releaseRegion({}, region, "h1", Force::kNo));
  finishWork(*manager);
  EXPECT_EQ(freeGrains(), 64u);
  finishAndCheck();
}

TEST_F(DevicesTest, WhatAnOldStoreDoesNotKnowIsErased) {
  manager.reset();
  std::filesystem::copy(house.folder / "store.db", house.folder / "old.db");
  manager = house.open();
  const RegionId region = assign("h1", 40);
  fillRegion(*manager, region);
  manager.reset();
  std::filesystem::remove(house.folder / "store.db-wal");
  std::filesystem::remove(house.folder / "store.db-shm");
  std::filesystem::rename(house.folder / "old.db", house.folder / "store.db");
  house.take_over = TakeOver::kYes;  // not by `fabricmgr restore`, which would note that
  manager = house.open();
  house.take_over = TakeOver::kNo;
  finishWork(*manager);
  EXPECT_EQ(stateOf(region), RegionState::kFree);
  EXPECT_EQ(freeGrains(), 64u);
  EXPECT_EQ(must(manager->evidence(region)).size(), 2u);
  EXPECT_GT(assign("h1", 8), region) << "ids are never reused";
  finishAndCheck();
}

TEST_F(DevicesTest, ADeviceThatContradictsTheStoreIsLeftOutAndTheOthersAreUsed) {
  const RegionId region = assign("h1", 8);
  manager.reset();
  // The same bytes, held for a region that the store does not know.
  std::filesystem::remove(house.folder / "d1.pool.grants");
  holdBehindItsBack("d1.pool");
  manager = house.open();
  manager->tick();
  const DeviceInfo device = must(manager->showDevice("d1"));
  EXPECT_EQ(device.health, DeviceHealth::kUnreachable);
  EXPECT_THAT(device.trouble, HasSubstr("was an old store put back?"));
  EXPECT_THAT(house.said(), HasSubstr("device d1 does not answer: device d1 holds bytes"));
  EXPECT_EQ(stateOf(region), RegionState::kAttached) << "nothing of it is touched";
  must(manager->renewLease("h1"));
  const RegionId other = assign("h1", 8);
  EXPECT_EQ(must(manager->showRegion(other)).region.extents[0].device,
            must(manager->showDevice("d2")).device.id);
}

TEST_F(DevicesTest, AFileIsOneDeviceHoweverItIsCalled) {
  std::filesystem::create_symlink("d1.pool", house.folder / "symbolic.pool");
  std::filesystem::create_hard_link(house.folder / "d1.pool", house.folder / "hard.pool");
  for (const char* name : {"symbolic", "hard", "./d1"}) {
    DeviceSpec spec = house.poolFile("d3", 64);
    spec.address = house.folder / (std::string(name) + ".pool");
    EXPECT_EQ(codeOf(manager->addDevice({}, spec)), ErrorCode::kConflict) << name;
  }
  reopen();
  EXPECT_EQ(must(manager->showDevice("d1")).health, DeviceHealth::kReachable);
}

TEST_F(DevicesTest, AWrongPathMakesNoPool) {
  DeviceSpec spec = house.poolFile("typo", 0);
  const auto missing = manager->addDevice({}, spec);
  EXPECT_EQ(codeOf(missing), ErrorCode::kUnreachable);
  EXPECT_FALSE(std::filesystem::exists(spec.address));
  EXPECT_FALSE(std::filesystem::exists(spec.address + ".grants"));
  std::ofstream(spec.address).close();
  const auto empty = manager->addDevice({}, spec);
  EXPECT_EQ(codeOf(empty), ErrorCode::kInvalidArgument);
  EXPECT_THAT(empty.error().text(), HasSubstr("is empty: make it as large"));
}

TEST_F(DevicesTest, ANewDeviceMustHoldNothing) {
  holdBehindItsBack("d3.pool");
  EXPECT_EQ(codeOf(manager->addDevice({}, house.poolFile("d3", 8))), ErrorCode::kConflict);
  breakAction("open", "d5", Fault::kBefore);
  EXPECT_EQ(codeOf(manager->addDevice({}, house.poolFile("d5", 8))), ErrorCode::kUnreachable);
}

TEST_F(DevicesTest, ATransferThatLosesADeviceIsLostNotZero) {
  must(manager->addHost({}, hostSpec("h2")));
  const RegionId region = assign("h1", 40);
  breakAction("revoke", "d1", Fault::kBefore);
  const Answer answer = must(manager->transferRegion({}, region, "h2", Force::kForce));
  manager->settle();
  must(manager->removeDevice({}, "d2", Force::kForce));
  mend();
  finishWork(*manager);
  EXPECT_EQ(stateOf(region), RegionState::kLost);
  EXPECT_EQ(stateOf(answer), OperationState::kFailed);
  EXPECT_EQ(codeOf(manager->access("h1", region)), ErrorCode::kRefused);
  must(manager->releaseRegion({}, region, "h1", Force::kNo));
  finishAndCheck();
}

TEST_F(DevicesTest, ATransferWhoseTargetIsFencedGoesBack) {
  must(manager->addHost({}, hostSpec("h2")));
  const RegionId region = assign("h1", 8);
  breakAction("revoke", "d1", Fault::kAfter);
  must(manager->transferRegion({}, region, "h2", Force::kForce));
  manager->settle();
  must(manager->fenceHost({}, "h2", Force::kForce));
  mend();
  finishWork(*manager);
  EXPECT_EQ(stateOf(region), RegionState::kAttached);
  EXPECT_EQ(infoOf(region).host, "h1");
  finishAndCheck();
}

}  // namespace
}  // namespace tidepool::fabric
