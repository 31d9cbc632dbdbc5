// SPDX-License-Identifier: Apache-2.0
// A test with a fabric manager of its own, and what such tests ask and do most. Closed before
// anything that its hooks and drivers use.
#pragma once

#include <gmock/gmock.h>

#include <initializer_list>
#include <memory>
#include <string>

#include "tests/fabricmgr/fabric_fixture.h"

namespace tidepool::fabric {

class ManagerFixture : public ::testing::Test {
 protected:
  void TearDown() override { manager.reset(); }
  /// A new manager: hosts, and pool files of 64 grains in one pool.
  void open(std::initializer_list<const char*> devices, std::initializer_list<const char*> hosts) {
    manager = house.open();
    must(manager->addPool({}, "pool", MemoryClass::kCxl));
    for (const char* name : devices) must(manager->addDevice({}, house.poolFile(name, 64)));
    for (const char* name : hosts) must(manager->addHost({}, hostSpec(name)));
  }
  void reopen() {
    manager.reset();
    manager = house.open();
  }
  RegionId assign(const std::string& host, uint64_t grains) {
    return RegionId(must(manager->assign({}, want(host, grains))).id);
  }
  /// With what follows from it.
  Answer release(RegionId region) {
    const Answer answer = must(manager->releaseRegion({}, region, "h1", Force::kNo));
    manager->settle();
    return answer;
  }
  RegionInfo infoOf(RegionId region) { return must(manager->showRegion(region)); }
  RegionState stateOf(RegionId region) {
    const auto shown = manager->showRegion(region);
    return shown ? shown->region.state : RegionState::kFree;
  }
  HostState stateOf(const std::string& host) { return must(manager->showHost(host)).host.state; }
  OperationState stateOf(const Answer& answer) { return operation(answer).state; }
  Operation operation(const Answer& answer) {
    return must(manager->showOperation(answer.operation));
  }
  uint64_t freeGrains() { return must(manager->totals()).free.value() / kGrain; }

  FabricHouse house;
  std::unique_ptr<Manager> manager;
};

}  // namespace tidepool::fabric
