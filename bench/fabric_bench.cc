// SPDX-License-Identifier: Apache-2.0
// The fabric manager at size: how long a placement decision takes, how many durable assigns a
// second 64 callers get, how long a list of 10,000 regions takes, and what it all needs of memory.
// Emulated pools whose free space is as fragmented as can be: every other granule is taken. Prints
// JSON.
//   fabric_bench FOLDER [REGIONS]     (an empty folder on a real disk; 100,000 regions)
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "fabricmgr/device/drivers.h"
#include "fabricmgr/device/grant_log.h"
#include "fabricmgr/manager/manager.h"
#include "fabricmgr/store/sqlite_store.h"

namespace tidepool::fabric {
namespace {

constexpr uint64_t kDevices = 64;
constexpr uint64_t kHosts = 4096;
constexpr uint64_t kExtentsEach = 10;
constexpr uint64_t kCallers = 64;
constexpr uint64_t kGranularity = 2 * kMiB;
constexpr uint64_t kSpare = 512 * kGiB;  // unfragmented, at the end of each device

[[noreturn]] void give_up(const char* what, const Error& error) {
  fprintf(stderr, "fabric_bench: %s: %s\n", what, error.text());
  exit(1);
}

template <typename T>
T must(const char* what, Result<T> result) {
  if (!result) give_up(what, result.error());
  return std::move(*result);
}
void must(const char* what, const Status& status) {
  if (!status) give_up(what, status.error());
}

double seconds() {
  static const MonotonicClock clock;
  return static_cast<double>(clock.now().value()) / 1e9;
}

/// The value below which `share` of them lie.
double quantile(std::vector<double>* values, double share) {
  std::sort(values->begin(), values->end());
  const auto at = static_cast<size_t>(share * static_cast<double>(values->size()));
  return (*values)[std::min(at, values->size() - 1)];
}

uint64_t residentBytes() {
  std::ifstream statm("/proc/self/statm");
  uint64_t size = 0, resident = 0;
  statm >> size >> resident;
  return resident * static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
}

/// Ids are indexes: 1 is the pool, then devices, hosts and regions, each in a batch of many.
struct Layout {
  uint64_t regions;
  uint64_t regionsOn(uint64_t device) const {
    return regions / kDevices + (device < regions % kDevices ? 1 : 0);
  }
  static DeviceId device(uint64_t i) { return DeviceId(2 + i); }
  static HostId host(uint64_t i) { return HostId(1000 + i); }
  static RegionId region(uint64_t device, uint64_t i) {
    return RegionId(10'000 + i * kDevices + device);
  }
  Bytes capacity() const { return Bytes(regionsOn(0) * kExtentsEach * 2 * kGranularity + kSpare); }
};

std::vector<Extent> extentsOf(uint64_t device, uint64_t i) {
  std::vector<Extent> extents;
  for (uint64_t k = 0; k < kExtentsEach; ++k) {
    extents.push_back(
        {Layout::device(device), (i * kExtentsEach + k) * 2 * kGranularity, Bytes(kGranularity)});
  }
  return extents;
}

std::string poolPath(const std::string& folder, uint64_t device) {
  return folder + "/d" + std::to_string(device) + ".pool";
}

void makePools(const std::string& folder, const Layout& layout, const Standing& standing) {
  for (uint64_t device = 0; device < kDevices; ++device) {
    const std::string path = poolPath(folder, device);
    std::ofstream(path).close();
    if (truncate(path.c_str(), static_cast<off_t>(layout.capacity().value())) != 0) exit(1);
    std::vector<GrantReport> none;
    Leadership before({standing.fabric, standing.term, 1});
    auto log =
        must("grants", GrantLog::open(path + ".grants", Layout::device(device), before, &none));
    uint64_t ticket = 0;
    for (uint64_t i = 0; i < layout.regionsOn(device); ++i) {
      const Grant grant{Layout::region(device, i), Epoch(1), GrantState::kGranted,
                        extentsOf(device, i)};
      ticket = log->enqueue(GrantLog::lineOf({grant, {}}));
    }
    must("grants", log->await(ticket));
  }
}

void fillStore(Store& store, const std::string& folder, const Layout& layout) {
  must("load", store.load());
  Batch batch;
  uint64_t index = 20'000'000;
  const auto flush = [&] {
    batch.index = Index(++index);
    batch.actor = "bench";
    batch.verb = "fill";
    store.append(std::move(batch));
    batch = Batch();
  };
  batch.changes.push_back(Pool{PoolId(1), "pool", MemoryClass::kCxl, Index(1)});
  for (uint64_t i = 0; i < kDevices; ++i) {
    Device device;
    device.id = Layout::device(i);
    device.pool = PoolId(1);
    device.name = "d" + std::to_string(i);
    device.address = poolPath(folder, i);
    device.capacity = layout.capacity();
    device.granularity = Bytes(kGranularity);
    device.domain = "rack" + std::to_string(i / 8);
    batch.changes.push_back(device);
  }
  for (uint64_t i = 0; i < kHosts; ++i) {
    batch.changes.push_back(Host{Layout::host(i),
                                 "h" + std::to_string(i),
                                 "",
                                 HostState::kActive,
                                 Nanoseconds(86'400'000'000'000),
                                 Index(1),
                                 {}});
  }
  flush();
  for (uint64_t i = 0; i < layout.regionsOn(0); ++i) {
    for (uint64_t device = 0; device < kDevices; ++device) {
      if (i >= layout.regionsOn(device)) continue;
      Region region;
      region.id = Layout::region(device, i);
      region.host = Layout::host((i * kDevices + device) % kHosts);
      region.state = RegionState::kAttached;
      region.epoch = Epoch(1);
      region.extents = extentsOf(device, i);
      region.size = Bytes(kExtentsEach * kGranularity);
      batch.changes.push_back(region);
    }
    if (batch.changes.size() > 2000) flush();
  }
  flush();
  must("fill", store.await(Index(index)));
}

AssignSpec specOf(std::mt19937_64* random) {
  AssignSpec spec;
  spec.host = "h" + std::to_string((*random)() % kHosts);
  spec.size = Bytes(((*random)() % 512 + 1) * kGranularity);
  spec.constraints.shape = (*random)() % 4 == 0 ? Shape::kSpread : Shape::kPack;
  spec.constraints.max_devices = 4;
  return spec;
}

std::vector<double> decide(Manager& manager, int count) {
  std::mt19937_64 random(1);
  std::vector<double> took;
  for (int i = 0; i < count; ++i) {
    const AssignSpec spec = specOf(&random);
    const double start = seconds();
    must("plan", manager.plan(spec));
    took.push_back((seconds() - start) * 1e3);
  }
  return took;
}

std::vector<double> assignAll(Manager& manager, int each, double* elapsed) {
  std::vector<std::vector<double>> took(kCallers);
  std::vector<std::thread> callers;
  const double start = seconds();
  for (uint64_t caller = 0; caller < kCallers; ++caller) {
    callers.emplace_back([&, caller] {
      std::mt19937_64 random(caller + 100);
      for (int i = 0; i < each; ++i) {
        Caller who;
        who.key = std::to_string(caller) + "." + std::to_string(i);
        const double begin = seconds();
        must("assign", manager.assign(who, specOf(&random)));
        took[caller].push_back((seconds() - begin) * 1e3);
      }
    });
  }
  for (std::thread& caller : callers) caller.join();
  *elapsed = seconds() - start;
  std::vector<double> all;
  for (const auto& some : took) all.insert(all.end(), some.begin(), some.end());
  return all;
}

int measure(const std::string& folder, uint64_t regions) {
  const Layout layout{regions};
  const MonotonicClock clock;
  const WallClock wall;
  makePools(folder, layout, must("init", initSqliteStore(folder + "/store.db")));
  {
    auto store = must("store", openSqliteStore(folder + "/store.db"));
    fillStore(*store, folder, layout);
  }
  const uint64_t before = residentBytes();
  const double start = seconds();
  auto store = must("store", openSqliteStore(folder + "/store.db"));
  const double open = seconds() - start;
  ManagerOptions options;
  options.drivers = makeDriverFactory({&wall});
  options.clock = &clock;
  options.wall_clock = &wall;
  auto manager = must("open", Manager::open(std::move(store), options));
  const double load = seconds() - start;
  const Totals totals = must("totals", manager->totals());
  auto decisions = decide(*manager, 5000);
  const double list_start = seconds();
  const auto page = must("list", manager->listRegions({0, 10'000}, {}));
  const double list = (seconds() - list_start) * 1e3;
  double elapsed = 0;
  constexpr int kEach = 60;
  auto assigns = assignAll(*manager, kEach, &elapsed);
  const double slowest = quantile(&decisions, 1);
  printf(
      "{\"hosts\": %llu, \"regions\": %llu, \"extents\": %llu, \"devices\": %llu,\n"
      " \"load_seconds\": %.2f, \"open_seconds\": %.2f, \"resident_bytes\": %llu, "
      "\"resident_before_bytes\": %llu,\n"
      " \"decision_ms\": {\"p50\": %.3f, \"p99\": %.3f, \"max\": %.3f},\n"
      " \"assigns_per_second\": %.0f, \"callers\": %llu,\n"
      " \"assign_ms\": {\"p50\": %.2f, \"p99\": %.2f},\n"
      " \"list_ms\": %.2f, \"listed\": %zu}\n",
      static_cast<unsigned long long>(totals.hosts),
      static_cast<unsigned long long>(totals.regions),
      static_cast<unsigned long long>(regions * kExtentsEach),
      static_cast<unsigned long long>(totals.devices), load, open,
      static_cast<unsigned long long>(residentBytes()), static_cast<unsigned long long>(before),
      quantile(&decisions, 0.5), quantile(&decisions, 0.99), slowest,
      static_cast<double>(kEach * kCallers) / elapsed, static_cast<unsigned long long>(kCallers),
      quantile(&assigns, 0.5), quantile(&assigns, 0.99), list, page.items.size());
  return 0;
}

}  // namespace
}  // namespace tidepool::fabric

int main(int argc, char** argv) {
  if (argc < 2 || argc > 3) {
    fprintf(stderr, "usage: fabric_bench FOLDER [REGIONS]\n");
    return 2;
  }
  return tidepool::fabric::measure(argv[1], argc > 2 ? strtoull(argv[2], nullptr, 10) : 100'000);
}
