// SPDX-License-Identifier: Apache-2.0
// Random histories: several lives of a manager, each with random verbs from several threads,
// devices that fail now and then, and a death at a random fault point; then the independent
// checker. TIDEPOOL_HISTORIES: how many (40); TIDEPOOL_HISTORY_SEED: the first one's seed (1).
#include <gtest/gtest.h>

#include <mutex>
#include <random>
#include <string_view>
#include <thread>

#include "tests/fabricmgr/crash_fixture.h"
#include "tests/fabricmgr/faulty_driver.h"

namespace tidepool::fabric {
namespace {

using Random = std::mt19937_64;

/// Held while a host writes. A file cannot refuse it: hosts keep to their epochs, so no device has
/// refused one that still writes.
std::mutex& hostWrites() {
  static std::mutex mutex;
  return mutex;
}

void writeAsHost(Manager& manager, RegionId region) {
  std::lock_guard<std::mutex> lock(hostWrites());
  fillRegion(manager, region);
}

enum class Devices { kSteady, kFlaky };

/// Flaky ones fail now and then, before or after they have done what they were told.
DriverFactory driversFor(const Clock& wall, uint64_t seed, Devices devices) {
  auto random = std::make_shared<Random>(seed);
  auto mutex = std::make_shared<std::mutex>();
  return faultyDrivers(wall, [random, mutex, devices](const char* action, const Device&) {
    if (action == std::string_view("revoke")) {
      std::lock_guard<std::mutex> until_written(hostWrites());
    }
    if (devices == Devices::kSteady) return Fault::kNone;
    std::lock_guard<std::mutex> lock(*mutex);
    const uint64_t dice = (*random)() % 40;
    return dice == 0 ? Fault::kBefore : dice == 1 ? Fault::kAfter : Fault::kNone;
  });
}

std::string pick(Random& random, const char* prefix, uint64_t below) {
  return prefix + std::to_string(random() % below + 1);
}

/// One of the regions that are there, or one that is not.
RegionId pickRegion(Manager& manager, Random& random) {
  const auto listed = manager.listRegions({0, 1000}, {});
  if (!listed || listed->items.empty()) return RegionId(1);
  return listed->items[random() % listed->items.size()].region.id;
}

Force pickForce(Random& random) { return random() % 2 == 0 ? Force::kForce : Force::kNo; }

void assignOne(Manager& manager, Random& random, const Caller& caller) {
  AssignSpec spec = want(pick(random, "h", 4), random() % 12 + 1);
  spec.constraints.shape = random() % 2 == 0 ? Shape::kSpread : Shape::kPack;
  if (random() % 4 == 0) spec.constraints.contiguity = Contiguity::kContiguous;
  if (random() % 3 == 0) {
    const auto plan = manager.plan(spec);
    if (plan) (void)manager.apply(caller, spec, *plan);
    return;
  }
  const auto answer = manager.assign(caller, spec);
  if (answer && answer->id != 0) writeAsHost(manager, RegionId(answer->id));
}

void moveOne(Manager& manager, Random& random, const Caller& caller, RegionId region) {
  MoveSpec spec;
  if (random() % 2 == 0) spec.device = pick(random, "d", 3);
  spec.deadline = kSecond * (random() % 3);
  const auto answer = manager.moveRegion(caller, region, spec);
  if (answer && answer->id != 0) writeAsHost(manager, RegionId(answer->id));
}

/// Regions are what it is about: their verbs come more often.
void regionVerb(Manager& manager, Random& random, const Caller& caller) {
  const RegionId region = pickRegion(manager, random);
  switch (random() % 7) {
    case 6:
      moveOne(manager, random, caller, region);
      break;
    case 0:
      (void)manager.drainRegion(caller, region, kSecond * (random() % 3));
      break;
    case 1:
      (void)manager.resumeRegion(caller, region);
      break;
    case 2:
      (void)manager.transferRegion(caller, region, pick(random, "h", 4), Force::kForce);
      break;
    case 3:
      if (manager.resize(caller, region, Bytes((random() % 14 + 1) * kGrain), {})) {
        writeAsHost(manager, region);
      }
      break;
    default:
      (void)manager.releaseRegion(caller, region, "", pickForce(random));
      break;
  }
}

void labelOne(Manager& manager, Random& random, const Caller& caller) {
  LabelChange change;
  change[pick(random, "k", 3)] =
      random() % 3 == 0 ? std::nullopt : std::optional(pick(random, "v", 3));
  switch (random() % 3) {
    case 0:
      (void)manager.labelHost(caller, pick(random, "h", 4), change);
      break;
    case 1:
      (void)manager.labelDevice(caller, pick(random, "d", 3), change);
      break;
    default:
      (void)manager.labelRegion(caller, pickRegion(manager, random), change);
      break;
  }
}

void otherVerb(FabricHouse& house, Manager& manager, Random& random, const Caller& caller) {
  switch (random() % 13) {
    case 0:
      (void)manager.addHost(caller, hostSpec(pick(random, "h", 4)));
      break;
    case 1:
      (void)manager.drainHost(caller, pick(random, "h", 4), kSecond * (random() % 3));
      break;
    case 2:
    case 3:
      (void)manager.resumeHost(caller, pick(random, "h", 4));
      break;
    case 4:
      (void)manager.fenceHost(caller, pick(random, "h", 4), pickForce(random));
      break;
    case 5:
      (void)manager.removeHost(caller, pick(random, "h", 4));
      break;
    case 6:
      (void)manager.addDevice(caller, house.poolFile(pick(random, "d", 3), 24));
      break;
    case 7:
      (void)manager.removeDevice(caller, pick(random, "d", 3),
                                 random() % 4 == 0 ? Force::kForce : Force::kNo);
      break;
    case 8:
      if (random() % 2 == 0) {
        (void)manager.drainDevice(caller, pick(random, "d", 3), kSecond * (random() % 9));
      } else {
        (void)manager.cordonDevice(caller, pick(random, "d", 3));
      }
      break;
    case 9:
      (void)manager.uncordonDevice(caller, pick(random, "d", 3));
      break;
    case 10:
      house.clock.advance(kSecond * (random() % 12));
      house.wall.advance(kSecond * (random() % 2));
      break;
    case 11:
      labelOne(manager, random, caller);
      break;
    default:
      (void)manager.renewLease(pick(random, "h", 4));
      break;
  }
}

void call(FabricHouse& house, Manager& manager, uint64_t seed) {
  Random random(seed);
  const int verbs = static_cast<int>(random() % 12) + 4;
  for (int i = 0; i < verbs; ++i) {
    Caller caller;
    if (random() % 3 == 0) caller.key = pick(random, "key", 20);
    const uint64_t dice = random() % 10;
    if (dice < 4) {
      assignOne(manager, random, caller);
    } else if (dice < 8) {
      regionVerb(manager, random, caller);
    } else {
      otherVerb(house, manager, random, caller);
    }
  }
}

void live(FabricHouse& house, uint64_t seed) {
  Random random(seed);
  const Devices devices = random() % 2 == 0 ? Devices::kFlaky : Devices::kSteady;
  house.drivers = driversFor(house.wall, seed, devices);
  auto manager = house.tryOpen();
  if (!manager) {
    ADD_FAILURE() << manager.error().text();
    return;
  }
  std::vector<std::thread> callers;
  const uint64_t threads = random() % 3 + 1;
  for (uint64_t i = 0; i < threads; ++i) {
    callers.emplace_back([&, i] { call(house, **manager, seed * 31 + i); });
  }
  for (int ticks = 0; ticks < 3; ++ticks) {
    (*manager)->tick();
    (*manager)->settle();
  }
  for (std::thread& caller : callers) caller.join();
}

void begin(FabricHouse& house) {
  auto manager = house.open();
  must(manager->addPool({}, "pool", MemoryClass::kCxl));
  must(manager->addDevice({}, house.poolFile("d1", 24, 2)));
  must(manager->addDevice({}, house.poolFile("d2", 24)));
  for (const char* host : {"h1", "h2", "h3"}) must(manager->addHost({}, hostSpec(host)));
}

uint64_t setting(const char* name, uint64_t otherwise) {
  const char* text = getenv(name);
  return text == nullptr ? otherwise : std::strtoull(text, nullptr, 10);
}

TEST(History, EndsInAStateThatHolds) {
  const uint64_t histories = setting("TIDEPOOL_HISTORIES", 40);
  const uint64_t first = setting("TIDEPOOL_HISTORY_SEED", 1);
  for (uint64_t seed = first; seed < first + histories; ++seed) {
    SCOPED_TRACE("TIDEPOOL_HISTORIES=1 TIDEPOOL_HISTORY_SEED=" + std::to_string(seed));
    Random random(seed);
    FabricHouse house;
    begin(house);
    const uint64_t lives = random() % 4 + 1;
    for (uint64_t life = 0; life < lives; ++life) {
      const long dies_at = random() % 5 == 0 ? 0 : static_cast<long>(random() % 120 + 1);
      const uint64_t life_seed = random();
      ASSERT_NE(runInChild(dies_at, [&] { live(house, life_seed); }), Ending::kFailed);
      house.clock.advance(kSecond * (random() % 20));
    }
    recoverAndCheck(house);
    if (::testing::Test::HasFailure()) return;
  }
}

}  // namespace
}  // namespace tidepool::fabric
