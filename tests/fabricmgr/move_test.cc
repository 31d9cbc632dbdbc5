// SPDX-License-Identifier: Apache-2.0
// A region's move to another device: where it goes, what is refused, what a failure, a fence or a
// change of mind on the way leaves behind. Crashes on the way: crash_test.cc, history_test.cc.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>

#include "runtime/base/mutex.h"
#include "tests/fabricmgr/crash_fixture.h"
#include "tests/fabricmgr/faulty_driver.h"
#include "tests/fabricmgr/manager_fixture.h"

namespace tidepool::fabric {
namespace {

using ::testing::HasSubstr;

class Move : public ManagerFixture {
 protected:
  void SetUp() override {
    house.drivers = faultyDrivers(house.wall, [this](const char* action, const Device& device) {
      FaultPlan now;
      {
        MutexLock lock(plan_mutex_);
        now = plan_;
      }
      return now ? now(action, device) : Fault::kNone;
    });
    manager = house.open();
    must(manager->addPool({}, "pool", MemoryClass::kCxl));
    must(manager->addPool({}, "other", MemoryClass::kCxl));
    must(manager->addDevice({}, house.poolFile("d1", 16)));
    must(manager->addDevice({}, house.poolFile("d2", 16)));
    DeviceSpec other = house.poolFile("d3", 16);
    other.pool = "other";
    must(manager->addDevice({}, other));
    must(manager->labelDevice({}, "d3", {{"rack", "r3"}}));
    must(manager->addHost({}, hostSpec("h1")));
    must(manager->addHost({}, hostSpec("h2")));
    region_ = assignOn("d1", 6);
    must(manager->labelRegion({}, region_, {{"job", "j1"}}));
  }
  void TearDown() override {
    plan(nullptr);
    if (manager == nullptr) return;
    finishWork(*manager);
    manager.reset();
    recoverAndCheck(house);
  }

  RegionId assignOn(const std::string& device, uint64_t grains) {
    AssignSpec spec = want("h1", grains);
    Plan plan = must(manager->plan(spec));
    plan.extents = {{must(manager->showDevice(device)).device.id, 0, Bytes(grains * kGrain)}};
    const RegionId region(must(manager->apply({}, spec, plan)).id);
    fillRegion(*manager, region);
    return region;
  }
  static MoveSpec to(const std::string& device) {
    MoveSpec spec;
    spec.device = device;
    return spec;
  }
  static MoveSpec where(const char* selector) {
    MoveSpec spec;
    spec.selector = *Selector::parse(selector);
    return spec;
  }
  Answer move(const MoveSpec& spec) {
    const Answer answer = must(manager->moveRegion({}, region_, spec));
    fillRegion(*manager, RegionId(answer.id));
    return answer;
  }
  std::string deviceOf(RegionId region) {
    const RegionInfo info = infoOf(region);
    std::string names;
    for (const DeviceInfo& device : must(manager->listDevices({0, 100}, "")).items) {
      for (const Extent& extent : info.region.extents) {
        if (extent.device == device.device.id) names += device.device.name;
      }
    }
    return names;
  }
  template <typename T>
  static std::string textOf(const Result<T>& result) {
    return result ? "it was done" : result.error().text();
  }

  /// For the threads of the manager, from now on.
  void plan(FaultPlan plan) {
    MutexLock lock(plan_mutex_);
    plan_ = std::move(plan);
  }

  Mutex plan_mutex_;
  FaultPlan plan_ TP_GUARDED_BY(plan_mutex_);
  RegionId region_;
};

TEST_F(Move, GivesTheHostAsMuchElsewhereAndThenTakesTheOldBack) {
  const Answer answer = move(to("d2"));
  const RegionId place(answer.id);
  ASSERT_NE(place, region_);
  EXPECT_EQ(deviceOf(place), "d2");
  EXPECT_EQ(stateOf(place), RegionState::kAttached);
  EXPECT_EQ(stateOf(region_), RegionState::kDraining);
  const RegionInfo shown = infoOf(place);
  EXPECT_EQ(shown.replaces, region_);
  EXPECT_EQ(shown.region.size, Bytes(6 * kGrain));
  EXPECT_EQ(fabric::textOf(shown.region.labels), "job=j1");
  EXPECT_EQ(infoOf(region_).operation, answer.operation);
  EXPECT_EQ(stateOf(answer), OperationState::kRunning);
  EXPECT_EQ(operation(answer).kind, OperationKind::kMove);
  EXPECT_EQ(operation(answer).target, place);
  must(manager->reportDrain("h1", region_, {Bytes(kGrain), 7, "nothing"}));
  EXPECT_THAT(operation(answer).text, HasSubstr("4096 bytes to move yet"));
  release(region_);
  EXPECT_EQ(stateOf(region_), RegionState::kFree);
  EXPECT_EQ(stateOf(answer), OperationState::kDone);
  EXPECT_EQ(infoOf(place).replaces, RegionId());
  EXPECT_EQ(must(manager->showDevice("d1")).free, Bytes(16 * kGrain));
}

TEST_F(Move, WithoutANameItGoesToItsPoolAndByASelectorAnywhereInItsClass) {
  EXPECT_EQ(deviceOf(RegionId(move({}).id)), "d2");
  release(region_);
  region_ = assignOn("d1", 2);
  EXPECT_EQ(deviceOf(RegionId(move(where("rack=r3")).id)), "d3");
}

TEST_F(Move, GoesOnAfterARestartWithWhatIsLeftOfItsDeadline) {
  MoveSpec spec = to("d2");
  spec.deadline = kSecond * 20;
  const Answer answer = move(spec);
  reopen();
  EXPECT_EQ(infoOf(RegionId(answer.id)).replaces, region_);
  EXPECT_EQ(infoOf(region_).drain_left, kSecond * 20);
  house.clock.advance(kSecond * 21);
  finishWork(*manager);
  EXPECT_EQ(stateOf(region_), RegionState::kFree) << "its host was not waited for any longer";
  EXPECT_EQ(stateOf(answer), OperationState::kDone);
  EXPECT_EQ(stateOf(RegionId(answer.id)), RegionState::kAttached);
}

TEST_F(Move, IsRefusedWithTheReason) {
  must(manager->addPool({}, "far", MemoryClass::kRemote));
  DeviceSpec far = house.poolFile("d4", 16);
  far.pool = "far";
  must(manager->addDevice({}, far));
  const Index before = manager->index();
  const auto refused = [&](ErrorCode code, const char* text, const MoveSpec& spec) {
    const auto answer = manager->moveRegion({}, region_, spec);
    EXPECT_EQ(codeOf(answer), code) << textOf(answer);
    EXPECT_THAT(textOf(answer), HasSubstr(text));
    EXPECT_EQ(manager->index(), before) << "what was refused was begun";
  };
  refused(ErrorCode::kNotFound, "no device 'dx'", to("dx"));
  refused(ErrorCode::kInvalidArgument, "is on device d1 already", to("d1"));
  refused(ErrorCode::kRefused, "d4 is of class remote, and region", to("d4"));
  refused(ErrorCode::kNotFound, "no device has labels as selected", where("rack=none"));
  MoveSpec both = where("rack=r3");
  both.device = "d3";
  refused(ErrorCode::kInvalidArgument, "not both", both);
  EXPECT_EQ(codeOf(manager->moveRegion({}, RegionId(999), {})), ErrorCode::kNotFound);
  Caller outdated;
  outdated.expected = Index(1);
  EXPECT_TRUE(isOutdated(manager->moveRegion(outdated, region_, {}).error()));
  Caller dry;
  dry.mode = Mode::kDryRun;
  EXPECT_EQ(must(manager->moveRegion(dry, region_, {})).index, Index());
  EXPECT_EQ(manager->index(), before);
}

TEST_F(Move, IsRefusedForWantOfRoomOrOfAHostThatIsHeardOf) {
  const auto refused = [&](ErrorCode code, const char* text, const MoveSpec& spec) {
    const auto answer = manager->moveRegion({}, region_, spec);
    EXPECT_EQ(codeOf(answer), code) << textOf(answer);
    EXPECT_THAT(textOf(answer), HasSubstr(text));
  };
  assignOn("d2", 12);
  refused(ErrorCode::kNoSpace, "do not fit", to("d2"));
  refused(ErrorCode::kNoSpace, "on devices that it is not on", {});
  must(manager->cordonDevice({}, "d3"));
  refused(ErrorCode::kNoSpace, "1 device is cordoned", to("d3"));
  must(manager->uncordonDevice({}, "d3"));
  house.clock.advance(kSecond * 31);
  refused(ErrorCode::kRefused, "was not heard of", to("d3"));
  must(manager->renewLease("h1"));
  must(manager->drainRegion({}, region_, {}));
  refused(ErrorCode::kRefused, "is draining: only an attached one", to("d3"));
}

TEST_F(Move, WhatTakesAPlaceIsNotMovedOnMeanwhile) {
  const Answer answer = move(to("d2"));
  const auto again = manager->moveRegion({}, RegionId(answer.id), to("d3"));
  EXPECT_EQ(codeOf(again), ErrorCode::kRefused);
  EXPECT_THAT(textOf(again), HasSubstr("wait for operation"));
  EXPECT_EQ(codeOf(manager->moveRegion({}, region_, to("d3"))), ErrorCode::kRefused);
  release(region_);
  region_ = RegionId(answer.id);
  EXPECT_EQ(deviceOf(RegionId(move(to("d3")).id)), "d3");
}

TEST_F(Move, TheSameKeyMovesOnce) {
  Caller caller;
  caller.key = "once";
  const Answer first = must(manager->moveRegion(caller, region_, to("d2")));
  EXPECT_EQ(must(manager->moveRegion(caller, region_, to("d2"))), first);
  EXPECT_EQ(codeOf(manager->moveRegion(caller, region_, to("d3"))), ErrorCode::kConflict);
  reopen();
  EXPECT_EQ(must(manager->moveRegion(caller, region_, to("d2"))), first);
}

TEST_F(Move, ADeviceThatDoesNotAnswerLeavesTheRegionWhereItIs) {
  for (const Fault fault : {Fault::kBefore, Fault::kAfter}) {
    plan([fault](const char* action, const Device& device) {
      const bool now = std::string_view(action) == "attach" && device.name == "d2";
      return now ? fault : Fault::kNone;
    });
    const auto answer = manager->moveRegion({}, region_, to("d2"));
    plan(nullptr);
    EXPECT_FALSE(answer);
    finishWork(*manager);
    EXPECT_EQ(stateOf(region_), RegionState::kAttached);
    EXPECT_EQ(infoOf(region_).operation, OperationId());
    EXPECT_EQ(must(manager->showDevice("d2")).free, Bytes(16 * kGrain));
    const auto operations = must(manager->listOperations({0, 100})).items;
    EXPECT_TRUE(std::any_of(operations.begin(), operations.end(), [](const Operation& one) {
      return one.kind == OperationKind::kMove && one.state == OperationState::kFailed &&
             !one.text.empty();
    }));
  }
}

TEST_F(Move, CalledOffItTakesBackWhatItGave) {
  const Answer answer = move(to("d2"));
  const Answer back = must(manager->resumeRegion({}, region_));
  EXPECT_EQ(stateOf(region_), RegionState::kAttached);
  EXPECT_EQ(stateOf(RegionId(answer.id)), RegionState::kDraining);
  EXPECT_EQ(stateOf(answer), OperationState::kCancelled);
  EXPECT_EQ(operation(back).region, RegionId(answer.id));
  release(RegionId(answer.id));
  EXPECT_EQ(stateOf(back), OperationState::kDone);
  // Too late: the host has left it.
  move(to("d2"));
  release(region_);
  EXPECT_EQ(codeOf(manager->resumeRegion({}, region_)), ErrorCode::kNotFound);
}

/// What happens while the target's device is told.
class MoveMeanwhile : public Move {
 protected:
  Result<Answer> moveWhile(const std::function<void()>& meanwhile) {
    std::atomic<bool> done{false};
    plan([&](const char* action, const Device& device) {
      const bool attaches = std::string_view(action) == "attach" && device.name == "d2";
      if (attaches && !done.exchange(true)) meanwhile();
      return Fault::kNone;
    });
    auto answer = manager->moveRegion({}, region_, to("d2"));
    plan(nullptr);
    finishWork(*manager);
    return answer;
  }
};

TEST_F(MoveMeanwhile, OtherVerbsOnTheRegionHaveToWait) {
  const auto answer = moveWhile([&] {
    EXPECT_EQ(codeOf(manager->drainRegion({}, region_, {})), ErrorCode::kConflict);
    EXPECT_EQ(codeOf(manager->moveRegion({}, region_, to("d3"))), ErrorCode::kConflict);
    EXPECT_EQ(codeOf(manager->resize({}, region_, Bytes(kGrain), {})), ErrorCode::kConflict);
    EXPECT_EQ(codeOf(manager->transferRegion({}, region_, "h2", Force::kForce)),
              ErrorCode::kConflict);
  });
  EXPECT_TRUE(answer) << textOf(answer);
}

TEST_F(MoveMeanwhile, ADrainOfTheHostEndsIt) {
  const auto answer = moveWhile([&] { must(manager->drainHost({}, "h1", {})); });
  EXPECT_FALSE(answer);
  EXPECT_EQ(stateOf(region_), RegionState::kDraining);
  must(manager->resumeHost({}, "h1"));
  EXPECT_EQ(stateOf(region_), RegionState::kAttached);
  EXPECT_EQ(must(manager->showDevice("d2")).free, Bytes(16 * kGrain));
}

TEST_F(MoveMeanwhile, ADrainOfTheHostThatIsCalledOffEndsItToo) {
  const auto answer = moveWhile([&] {
    must(manager->drainHost({}, "h1", {}));
    must(manager->resumeHost({}, "h1"));
  });
  EXPECT_FALSE(answer);
  EXPECT_EQ(stateOf(region_), RegionState::kAttached);
}

TEST_F(MoveMeanwhile, AFenceOfTheHostTakesBoth) {
  const auto answer = moveWhile([&] { must(manager->fenceHost({}, "h1", Force::kForce)); });
  EXPECT_FALSE(answer);
  EXPECT_TRUE(must(manager->listRegions({0, 100}, {})).items.empty());
}

TEST_F(MoveMeanwhile, ALostRegionGetsNoPlace) {
  const auto answer = moveWhile([&] { must(manager->removeDevice({}, "d1", Force::kForce)); });
  EXPECT_FALSE(answer);
  EXPECT_THAT(textOf(answer), HasSubstr("before it could be moved"));
  EXPECT_EQ(must(manager->showDevice("d2")).free, Bytes(16 * kGrain));
}

// The region that takes the place is one like others by then.
TEST_F(Move, ItsPlaceMayGoToAnotherHostMeanwhile) {
  const Answer answer = move(to("d2"));
  must(manager->transferRegion({}, RegionId(answer.id), "h2", Force::kForce));
  finishWork(*manager);
  EXPECT_EQ(infoOf(RegionId(answer.id)).host, "h2");
  EXPECT_EQ(stateOf(region_), RegionState::kDraining);
  must(manager->resumeRegion({}, region_));
  EXPECT_EQ(stateOf(RegionId(answer.id)), RegionState::kAttached) << "another's is not taken";
}

}  // namespace
}  // namespace tidepool::fabric
