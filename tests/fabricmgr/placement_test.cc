// SPDX-License-Identifier: Apache-2.0
// Placement and the map of free runs, against models that try everything; the region's state table.
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <fstream>
#include <map>
#include <regex>
#include <set>
#include <string>

#include "fabricmgr/model/region_state.h"
#include "fabricmgr/placement/placement.h"

namespace tidepool::fabric {
namespace {

/// The free bytes of a small device, one flag each.
class FlatMap {
 public:
  explicit FlatMap(size_t size) : free_(size, true) {}
  bool holds(Run run) const {
    if (run.end() > free_.size()) return false;
    return std::all_of(free_.begin() + static_cast<long>(run.offset),
                       free_.begin() + static_cast<long>(run.end()), [](bool is) { return is; });
  }
  bool touches(Run run) const {
    for (uint64_t at = run.offset; at < run.end(); ++at) {
      if (free_[at]) return true;
    }
    return false;
  }
  void set(Run run, bool to) {
    for (uint64_t at = run.offset; at < run.end(); ++at) free_[at] = to;
  }
  uint64_t total() const {
    return static_cast<uint64_t>(std::count(free_.begin(), free_.end(), true));
  }
  uint64_t longest() const {
    uint64_t best = 0, now = 0;
    for (const bool is : free_) {
      now = is ? now + 1 : 0;
      best = std::max(best, now);
    }
    return best;
  }
  /// The fewest runs whose lengths make up `length`.
  size_t fewestRuns(uint64_t length) const {
    std::vector<uint64_t> runs;
    uint64_t now = 0;
    for (size_t at = 0; at <= free_.size(); ++at) {
      if (at < free_.size() && free_[at]) {
        ++now;
      } else if (now > 0) {
        runs.push_back(now);
        now = 0;
      }
    }
    std::sort(runs.rbegin(), runs.rend());
    size_t count = 0;
    for (uint64_t sum = 0; sum < length; ++count) sum += runs[count];
    return count;
  }

 private:
  std::vector<bool> free_;
};

RC_GTEST_PROP(FreeMap, BehavesAsOneFlagAByte, ()) {
  constexpr uint64_t kSize = 48;
  FreeMap map{Bytes(kSize)};
  FlatMap flat(kSize);
  const auto steps = *rc::gen::container<std::vector<std::pair<uint8_t, uint8_t>>>(
      rc::gen::arbitrary<std::pair<uint8_t, uint8_t>>());
  for (const auto& [a, b] : steps) {
    const Run run{a % kSize, b % 12 + 1u};
    RC_ASSERT(map.holds(run) == flat.holds(run));
    if (flat.holds(run)) {
      map.take(run);
      flat.set(run, false);
    } else if (run.end() <= kSize && !flat.touches(run)) {
      map.give(run);
      flat.set(run, true);
    }
    RC_ASSERT(map.free() == Bytes(flat.total()));
    RC_ASSERT(map.largest() == Bytes(flat.longest()));
    const uint64_t length = b % (flat.total() + 1);
    const auto chosen = map.choose(length);
    RC_ASSERT(chosen.size() == (length == 0 ? 0 : flat.fewestRuns(length)));
    FlatMap left = flat;
    uint64_t sum = 0;
    for (const Run& part : chosen) {
      RC_ASSERT(left.holds(part));
      left.set(part, false);
      sum += part.length;
    }
    RC_ASSERT(sum == length);
  }
}

constexpr uint64_t kUnit = 4096;

/// Some devices with holes, owned together.
struct Rack {
  std::vector<Device> devices;
  std::vector<FreeMap> maps;
  std::vector<Obstacle> obstacles;

  std::vector<DeviceRoom> rooms() const {
    std::vector<DeviceRoom> found;
    for (size_t i = 0; i < devices.size(); ++i) {
      found.push_back({&devices[i], &maps[i], obstacles[i]});
    }
    return found;
  }
};

Rack anyRack() {
  Rack rack;
  const auto count = *rc::gen::inRange<size_t>(1, 7);
  for (size_t i = 0; i < count; ++i) {
    Device device;
    device.id = DeviceId(i + 1);
    device.pool = PoolId(*rc::gen::inRange<uint64_t>(1, 3));
    device.memory_class = *rc::gen::element(MemoryClass::kCxl, MemoryClass::kRemote);
    device.granularity = Bytes(*rc::gen::element(kUnit, 2 * kUnit));
    device.capacity = Bytes(16 * kUnit);
    device.domain = *rc::gen::element<std::string>("a", "b", "c");
    FreeMap map(device.capacity);
    for (const auto cut :
         *rc::gen::container<std::vector<uint64_t>>(rc::gen::inRange<uint64_t>(0, 8))) {
      const Run run{cut * 2 * kUnit, 2 * kUnit};
      if (map.holds(run)) map.take(run);
    }
    rack.devices.push_back(device);
    rack.maps.push_back(map);
    rack.obstacles.push_back(*rc::gen::weightedElement<Obstacle>(
        {{6, Obstacle::kNone}, {1, Obstacle::kCordoned}, {1, Obstacle::kNoHead}}));
  }
  return rack;
}

PlacementRequest anyRequest() {
  PlacementRequest request;
  request.size = Bytes(*rc::gen::inRange<uint64_t>(1, 30 * kUnit));
  request.memory_class = *rc::gen::element(MemoryClass::kAny, MemoryClass::kAny, MemoryClass::kCxl,
                                           MemoryClass::kRemote);
  request.pool = PoolId(*rc::gen::element<uint64_t>(0, 0, 0, 1));
  request.constraints.contiguity = *rc::gen::element(Contiguity::kAny, Contiguity::kContiguous);
  request.constraints.max_devices = *rc::gen::inRange(0u, 4u);
  request.constraints.shape = *rc::gen::element(Shape::kPack, Shape::kSpread);
  if (*rc::gen::inRange(0, 4) == 0) request.constraints.avoid_domains = {"a"};
  return request;
}

bool allowed(const Rack& rack, size_t i, const PlacementRequest& request) {
  const Device& device = rack.devices[i];
  const auto& avoid = request.constraints.avoid_domains;
  return rack.obstacles[i] == Obstacle::kNone &&
         (request.memory_class == MemoryClass::kAny ||
          request.memory_class == device.memory_class) &&
         (request.pool == PoolId() || request.pool == device.pool) &&
         std::find(avoid.begin(), avoid.end(), device.domain) == avoid.end();
}

/// Every set of devices is tried: the fewest that do; 0: none does.
size_t fewestDevices(const Rack& rack, const PlacementRequest& request) {
  size_t best = 0;
  for (size_t set = 1; set < size_t{1} << rack.devices.size(); ++set) {
    uint64_t sum = 0;
    bool good = true;
    for (size_t i = 0; i < rack.devices.size(); ++i) {
      if ((set >> i & 1) == 0) continue;
      good = good && allowed(rack, i, request) && rack.maps[i].free().value() > 0;
      sum += rack.maps[i].free().value();
    }
    const auto size = static_cast<size_t>(__builtin_popcountll(set));
    if (good && sum >= request.size.value() && (best == 0 || size < best)) best = size;
  }
  return best;
}

bool contiguousFits(const Rack& rack, const PlacementRequest& request) {
  for (size_t i = 0; i < rack.devices.size(); ++i) {
    const uint64_t length = roundUp(request.size.value(), rack.devices[i].granularity.value());
    if (allowed(rack, i, request) && rack.maps[i].largest().value() >= length) return true;
  }
  return false;
}

RC_GTEST_PROP(Placement, FindsAPlanIfThereIsOne, ()) {
  const Rack rack = anyRack();
  const PlacementRequest request = anyRequest();
  const Constraints& how = request.constraints;
  const auto plan = place(rack.rooms(), request);
  const size_t fewest = fewestDevices(rack, request);
  const bool possible = how.contiguity == Contiguity::kContiguous
                            ? contiguousFits(rack, request)
                            : fewest > 0 && (how.max_devices == 0 || fewest <= how.max_devices);
  RC_TAG(possible);
  RC_ASSERT(plan.has_value() == possible);
  if (!plan) {
    RC_ASSERT(plan.error().code() == ErrorCode::kNoSpace);
    return;
  }
  std::set<DeviceId> used;
  std::map<DeviceId, FreeMap> left;
  for (const Extent& extent : *plan) {
    const size_t i = extent.device.value() - 1;
    RC_ASSERT(allowed(rack, i, request));
    FreeMap& room = left.try_emplace(extent.device, rack.maps[i]).first->second;
    RC_ASSERT(room.holds({extent.offset, extent.length.value()}));
    room.take({extent.offset, extent.length.value()});
    RC_ASSERT(extent.offset % rack.devices[i].granularity.value() == 0u);
    RC_ASSERT(extent.length.value() % rack.devices[i].granularity.value() == 0u);
    used.insert(extent.device);
  }
  RC_ASSERT(sumOf(*plan) >= request.size);
  RC_ASSERT(sumOf(*plan).value() < request.size.value() + used.size() * 2 * kUnit);
  RC_ASSERT(how.max_devices == 0 || used.size() <= how.max_devices);
  if (how.contiguity == Contiguity::kContiguous) RC_ASSERT(plan->size() == 1u);
  if (how.contiguity == Contiguity::kAny && how.shape == Shape::kPack) {
    RC_ASSERT(used.size() == fewest);
  }
}

TEST(Placement, SpreadsOverDomainsFirst) {
  Rack rack;
  for (uint64_t i = 1; i <= 4; ++i) {
    Device device;
    device.id = DeviceId(i);
    device.granularity = Bytes(kUnit);
    device.capacity = Bytes(16 * kUnit);
    device.domain = i <= 2 ? "left" : "right";
    rack.devices.push_back(device);
    rack.maps.emplace_back(device.capacity);
    rack.obstacles.push_back(Obstacle::kNone);
  }
  PlacementRequest request;
  request.size = Bytes(8 * kUnit);
  request.constraints.shape = Shape::kSpread;
  request.constraints.max_devices = 2;
  const auto plan = place(rack.rooms(), request);
  ASSERT_TRUE(plan);
  ASSERT_EQ(plan->size(), 2u);
  EXPECT_NE((*plan)[0].device.value() <= 2, (*plan)[1].device.value() <= 2);
}

TEST(RegionState, EveryPairIsAllowedOrRefusedAsTheTableSays) {
  int allowed_pairs = 0;
  for (int from = 0; from < kRegionStates; ++from) {
    for (int event = 0; event < kRegionEvents; ++event) {
      int rows = 0;
      for (const RegionTransition& row : kRegionTransitions) {
        rows += static_cast<int>(row.from) == from && static_cast<int>(row.event) == event;
      }
      ASSERT_LE(rows, 1) << "two rows for one pair";
      const auto next = nextState(static_cast<RegionState>(from), static_cast<RegionEvent>(event));
      EXPECT_EQ(next.has_value(), rows == 1);
      allowed_pairs += rows;
    }
  }
  EXPECT_EQ(allowed_pairs, static_cast<int>(kRegionTransitions.size()));
}

TEST(RegionState, NoByteIsFreedUnscrubbed) {
  // What held data can become free only by an erasure, or when no device is left to erase.
  for (const RegionTransition& row : kRegionTransitions) {
    if (row.to != RegionState::kFree) continue;
    EXPECT_TRUE(row.event == RegionEvent::kScrubbed || row.event == RegionEvent::kCancel ||
                row.event == RegionEvent::kWriteOff);
    EXPECT_FALSE(holdsData(row.from));
  }
  // And every state leads back to free.
  std::set<RegionState> reach = {RegionState::kFree};
  for (int round = 0; round < kRegionStates; ++round) {
    for (const RegionTransition& row : kRegionTransitions) {
      if (reach.contains(row.to)) reach.insert(row.from);
    }
  }
  EXPECT_EQ(reach.size(), static_cast<size_t>(kRegionStates));
}

TEST(RegionState, TheDocumentHasTheSameTable) {
  std::ifstream document(TIDEPOOL_SOURCE_DIR "/docs/fabric-manager.md");
  ASSERT_TRUE(document);
  std::multiset<std::string> told, known;
  const std::regex row("^\\| `([a-z]+)` \\| `([a-z-]+)` \\| `([a-z]+)` \\|.*");
  for (std::string line; std::getline(document, line);) {
    std::smatch match;
    if (std::regex_match(line, match, row))
      told.insert(match[1].str() + " " + match[2].str() + " " + match[3].str());
  }
  for (const RegionTransition& at : kRegionTransitions) {
    known.insert(std::string(nameOf(at.from)) + " " + std::string(nameOf(at.event)) + " " +
                 std::string(nameOf(at.to)));
  }
  EXPECT_EQ(told, known);
}

TEST(RegionState, NamesGoBothWays) {
  for (int state = 0; state < kRegionStates; ++state) {
    EXPECT_EQ(regionStateOf(nameOf(static_cast<RegionState>(state))),
              static_cast<RegionState>(state));
  }
  EXPECT_EQ(regionStateOf("no-such"), std::nullopt);
}

}  // namespace
}  // namespace tidepool::fabric
