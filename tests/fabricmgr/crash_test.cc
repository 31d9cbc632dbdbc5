// SPDX-License-Identifier: Apache-2.0
// Every verb, with the process killed at every fault point that it passes: after a restart no byte
// is held twice, none is lost, nobody sees another's bytes, and the audit's replay gives the state.
// On SQLite, and, at some of the points, on etcd.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>

#include "tests/fabricmgr/crash_fixture.h"
#include "tests/fabricmgr/etcd_backing.h"

namespace tidepool::fabric {
namespace {

/// What a verb starts from: two pools' worth of devices, two hosts, a few regions.
struct Stage {
  RegionId first, second, draining, small;
};

Caller keyed() {
  Caller caller;
  caller.key = "the-key";
  return caller;
}

Caller forced() {
  Caller caller;
  caller.actor = "operator";
  return caller;
}

/// On both devices, and so small that it could be had several times.
AssignSpec spread(const std::string& host, uint64_t grains) {
  AssignSpec spec = want(host, grains);
  spec.label = "keyed";
  spec.constraints.shape = Shape::kSpread;
  return spec;
}

Stage prepare(Manager& manager, const FabricHouse& house) {
  Stage stage;
  must(manager.addPool({}, "pool", MemoryClass::kCxl));
  must(manager.addPool({}, "empty", MemoryClass::kCxl));
  must(manager.addDevice({}, house.poolFile("d1", 40)));
  must(manager.addDevice({}, house.poolFile("d2", 40)));
  must(manager.addHost({}, hostSpec("h1")));
  must(manager.addHost({}, hostSpec("h2")));
  must(manager.addHost({}, hostSpec("idle")));
  stage.first = RegionId(must(manager.assign({}, want("h1", 30))).id);
  stage.second = RegionId(must(manager.assign({}, want("h2", 30))).id);
  stage.draining = RegionId(must(manager.assign({}, want("h1", 2))).id);
  must(manager.drainRegion({}, stage.draining, kSecond * 100));
  stage.small = RegionId(must(manager.assign({}, want("h1", 3))).id);
  must(manager.labelRegion({}, stage.small, {{"job", "j3"}}));
  for (const RegionId region : {stage.first, stage.second, stage.draining, stage.small}) {
    fillRegion(manager, region);
  }
  return stage;
}

struct Verb {
  const char* name;
  std::function<void(Manager&, FabricHouse&, const Stage&)> run;
  bool repeatable = false;  // has a key: asked again after the crash
};

std::ostream& operator<<(std::ostream& out, const Verb& verb) { return out << verb.name; }

/// Verbs may fail when they are repeated; what counts is the state.
template <typename T>
void ask(const Result<T>&) {}

/// Moves the small region; its host fills what takes its place.
Result<Answer> moveSmall(Manager& manager, const Stage& stage) {
  const auto moved = manager.moveRegion(keyed(), stage.small, {});
  if (moved) fillRegion(manager, RegionId(moved->id));
  size_t places = 0;
  for (const RegionInfo& info : must(manager.listRegions({0, 100}, {})).items) {
    places += info.region.size == Bytes(3 * kGrain) && info.region.id != stage.small ? 1 : 0;
  }
  EXPECT_LE(places, 1u) << "the same key was carried out twice";
  return moved;
}

const std::vector<Verb>& verbs() {
  static const std::vector<Verb> all = {
      {"addPool",
       [](Manager& m, FabricHouse&, const Stage&) { ask(m.addPool({}, "p2", MemoryClass::kCxl)); }},
      {"removePool",
       [](Manager& m, FabricHouse&, const Stage&) { ask(m.removePool({}, "empty")); }},
      {"addDevice",
       [](Manager& m, FabricHouse& h, const Stage&) { ask(m.addDevice({}, h.poolFile("d3", 8))); }},
      {"cordonDevice",
       [](Manager& m, FabricHouse&, const Stage&) { ask(m.cordonDevice({}, "d1")); }},
      {"removeDevice", [](Manager& m, FabricHouse&,
                          const Stage&) { ask(m.removeDevice({}, "d2", Force::kForce)); }},
      {"addHost",
       [](Manager& m, FabricHouse&, const Stage&) { ask(m.addHost({}, hostSpec("h3"))); }},
      {"labels",
       [](Manager& m, FabricHouse&, const Stage& s) {
         ask(m.labelHost(keyed(), "h1", {{"rack", "r7"}, {"gpu", "a"}}));
         ask(m.labelRegion({}, s.first, {{"job", "j1"}}));
         ask(m.labelRegion({}, s.draining, {{"job", "j2"}}));
         ask(m.labelDevice({}, "d1", {{"rack", "r1"}}));
         ask(m.labelHost({}, "h1", {{"rack", std::nullopt}, {"gpu", std::nullopt}}));
         ask(m.releaseRegion(forced(), s.draining, "", Force::kForce));
         m.settle();
       }},
      {"drainHost", [](Manager& m, FabricHouse&, const Stage&) { ask(m.drainHost({}, "h1", {})); }},
      {"drainAndResumeHost",
       [](Manager& m, FabricHouse&, const Stage&) {
         ask(m.drainHost({}, "h1", {}));
         ask(m.resumeHost({}, "h1"));
       }},
      {"fenceHost",
       [](Manager& m, FabricHouse&, const Stage&) {
         ask(m.fenceHost({}, "h1", Force::kForce));
         m.settle();
       }},
      {"removeHost", [](Manager& m, FabricHouse&, const Stage&) { ask(m.removeHost({}, "idle")); }},
      {"assign",
       [](Manager& m, FabricHouse&, const Stage&) {
         AssignSpec spec = spread("h1", 4);
         ask(m.assign(keyed(), spec));
       },
       true},
      {"apply",
       [](Manager& m, FabricHouse&, const Stage&) {
         AssignSpec spec = spread("h1", 6);
         const auto plan = m.plan(spec);
         if (plan) ask(m.apply(keyed(), spec, *plan));
       },
       true},
      {"grow",
       [](Manager& m, FabricHouse&, const Stage& s) {
         ask(m.resize(keyed(), s.second, Bytes(42 * kGrain), {}));
         fillRegion(m, s.second);
       },
       true},
      {"shrink",
       [](Manager& m, FabricHouse&, const Stage& s) {
         ask(m.resize({}, s.first, Bytes(4 * kGrain), {}));
         m.settle();
       }},
      {"drainRegion",
       [](Manager& m, FabricHouse&, const Stage& s) { ask(m.drainRegion({}, s.first, {})); }},
      {"move",
       [](Manager& m, FabricHouse&, const Stage& s) {
         ask(moveSmall(m, s));
         ask(m.releaseRegion({}, s.small, "h1", Force::kNo));
         m.settle();
       },
       true},
      {"moveAndResume",
       [](Manager& m, FabricHouse&, const Stage& s) {
         const auto moved = moveSmall(m, s);
         ask(m.resumeRegion({}, s.small));
         if (moved) ask(m.releaseRegion({}, RegionId(moved->id), "h1", Force::kNo));
         m.settle();
       }},
      {"moveUntilDeadline",
       [](Manager& m, FabricHouse& h, const Stage& s) {
         MoveSpec spec;
         spec.deadline = kSecond * 9;
         ask(m.moveRegion(keyed(), s.small, spec));
         h.clock.advance(kSecond * 10);
         m.tick();
         m.settle();
       }},
      {"resumeRegion",
       [](Manager& m, FabricHouse&, const Stage& s) { ask(m.resumeRegion({}, s.draining)); }},
      {"release",
       [](Manager& m, FabricHouse&, const Stage& s) {
         ask(m.releaseRegion(keyed(), s.first, "h1", Force::kNo));
         m.settle();
       },
       true},
      {"releaseDraining",
       [](Manager& m, FabricHouse&, const Stage& s) {
         ask(m.releaseRegion(forced(), s.draining, "", Force::kForce));
         m.settle();
       }},
      {"transfer",
       [](Manager& m, FabricHouse&, const Stage& s) {
         ask(m.transferRegion({}, s.first, "h2", Force::kForce));
         m.settle();
       }},
      {"expireLease",
       [](Manager& m, FabricHouse& h, const Stage&) {
         h.clock.advance(kSecond * 31);
         ask(m.renewLease("h2"));
         m.tick();
         m.settle();
       }},
      {"deadline",
       [](Manager& m, FabricHouse& h, const Stage&) {
         h.clock.advance(kSecond * 101);
         for (const char* host : {"h1", "h2"}) ask(m.renewLease(host));
         m.tick();
         m.settle();
       }},
      {"cleanUp",
       [](Manager& m, FabricHouse& h, const Stage&) {
         h.wall.advance(kSecond * 90'000);
         m.tick();
       }},
  };
  return all;
}

/// Of so many fault points one is died at: where a restart is dear not all are.
long crashStep() {
  const char* const text = getenv("TIDEPOOL_CRASH_STEP");
  return text == nullptr ? 1 : std::max(1L, std::strtol(text, nullptr, 10));
}

/// Where a store in etcd makes a restart dear.
constexpr long kStepOnEtcd = 5;

/// With `backing` the store is there, and is put back as the folder is.
void killAtEveryFaultPoint(const Verb& verb, FabricHouse& origin, EtcdBacking* backing) {
  Stage stage;
  {
    auto manager = origin.open();
    stage = prepare(*manager, origin);
  }
  if (backing != nullptr) backing->save();
  // Paths are in the store: every run has the same folder, put back to what it was.
  Folder saved;
  std::filesystem::copy(
      origin.folder.path(), saved.path(),
      std::filesystem::copy_options::recursive | std::filesystem::copy_options::overwrite_existing);
  constexpr long kTooMany = 400;
  constexpr long kRecoveryPoints = 14;
  const long step = crashStep() * (backing == nullptr ? 1 : kStepOnEtcd);
  for (long point = 1; point < kTooMany; point += step) {
    SCOPED_TRACE("killed at fault point " + std::to_string(point));
    std::filesystem::remove_all(origin.folder.path());
    std::filesystem::copy(saved.path(), origin.folder.path(),
                          std::filesystem::copy_options::recursive);
    if (backing != nullptr) backing->restore();
    const Ending ending = runInChild(point, [&] {
      auto manager = origin.open();
      verb.run(*manager, origin, stage);
      manager.reset();
    });
    ASSERT_NE(ending, Ending::kFailed);
    // The next manager may die as well, while it recovers.
    const long again = point % kRecoveryPoints;
    if (again > 0) runInChild(again, [&] { finishWork(*origin.open()); });
    recoverAndCheck(origin, [&](Manager& manager) {
      if (!verb.repeatable) return;
      verb.run(manager, origin, stage);
      verb.run(manager, origin, stage);
      size_t keyed_regions = 0;
      for (const RegionInfo& info : must(manager.listRegions({0, 100}, {})).items) {
        keyed_regions += info.region.name == "keyed" ? 1 : 0;
      }
      EXPECT_LE(keyed_regions, 1u) << "the same key was carried out twice";
    });
    if (::testing::Test::HasFailure()) return;
    if (ending == Ending::kFinished) return;
  }
  FAIL() << "more fault points than can be";
}

class EveryVerb : public ::testing::TestWithParam<Verb> {};

TEST_P(EveryVerb, KilledAtEveryFaultPoint) {
  FabricHouse house;
  killAtEveryFaultPoint(GetParam(), house, nullptr);
}

TEST_P(EveryVerb, KilledWithItsStoreInEtcd) {
  FabricHouse house;
  EtcdBacking backing(&house, std::string("crash-") + GetParam().name);
  killAtEveryFaultPoint(GetParam(), house, &backing);
}

INSTANTIATE_TEST_SUITE_P(Crash, EveryVerb, ::testing::ValuesIn(verbs()),
                         [](const auto& verb) { return std::string(verb.param.name); });

/// When all verbs have run, every fault point must have been died at.
class Coverage : public ::testing::Environment {
 public:
  void TearDown() override {
    if (GTEST_FLAG_GET(filter) != "*" || crashStep() > 1) return;
    for (int point = 0; point < kFaultPoints; ++point) {
      EXPECT_GT(board()->deaths[point], 0u) << "fault point " << point << " was never died at";
    }
  }
};
const auto* const kCoverage = ::testing::AddGlobalTestEnvironment(new Coverage);

}  // namespace
}  // namespace tidepool::fabric
