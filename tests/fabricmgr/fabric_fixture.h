// SPDX-License-Identifier: Apache-2.0
// A fabric manager in a folder of its own: store, pool files and a clock that tests move. The
// manager can be closed and opened again, as after a restart. Not thread-safe; the manager is.
#pragma once

#include <gtest/gtest.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>

#include "fabricmgr/device/drivers.h"
#include "fabricmgr/manager/manager.h"
#include "fabricmgr/store/sqlite_store.h"
#include "runtime/base/mutex.h"
#include "tests/fabricmgr/store_around.h"
#include "tests/scratch_folder.h"

namespace tidepool::fabric {

inline constexpr uint64_t kGrain = kPageSize;  // granularity of the tests' devices
inline constexpr Nanoseconds kSecond(1'000'000'000);

class FakeClock final : public Clock {
 public:
  explicit FakeClock(uint64_t start) : now_(start) {}
  Nanoseconds now() const override { return Nanoseconds(now_.load()); }
  void advance(Nanoseconds by) { now_ += by.value(); }

 private:
  std::atomic<uint64_t> now_;
};

/// In memory: stores wait for their disk at every change.
struct Folder : ScratchFolder {
  Folder() : ScratchFolder(inMemory()) {}
};

/// Options, clocks and files; open() may be called again once the manager was closed.
class FabricHouse {
 public:
  Result<std::unique_ptr<Manager>> tryOpen() {
    auto store = open_store ? open_store() : openFile();
    if (!store) return tl::unexpected(store.error());
    *store = std::make_unique<StoreAround>(std::move(*store), hooks);
    ManagerOptions options;
    options.drivers = drivers ? drivers : makeDriverFactory({&wall});
    options.clock = &clock;
    options.wall_clock = &wall;
    options.longest_gap = longest_gap;
    options.take_over = take_over;
    options.audit_age = audit_age;
    options.audit_records = audit_records;
    options.patience = patience;
    options.say = [this](Weight, const std::string& line) {
      const MutexLock lock(said_mutex_);
      said_ += line + "\n";
    };
    return Manager::open(std::move(*store), options);
  }
  std::unique_ptr<Manager> open() {
    auto manager = tryOpen();
    EXPECT_TRUE(manager) << manager.error().text();
    return manager ? std::move(*manager) : nullptr;
  }

  Result<std::unique_ptr<Store>> openFile() const {
    const std::string path = folder / "store.db";
    if (!std::filesystem::exists(path)) TP_TRY(initSqliteStore(path));
    return openSqliteStore(path);
  }

  DeviceSpec poolFile(const std::string& name, uint64_t grains, uint32_t heads = 0,
                      const std::string& domain = "") const {
    DeviceSpec spec;
    spec.name = name;
    spec.pool = "pool";
    spec.address = folder / (name + ".pool");
    spec.capacity = Bytes(grains * kGrain);
    spec.granularity = Bytes(kGrain);
    spec.heads = heads;
    spec.domain = domain;
    return spec;
  }

  Folder folder;
  FakeClock clock{kSecond.value()};
  FakeClock wall{1'700'000'000 * kSecond.value()};
  /// For a store that is no file in the folder: it is opened, and written into folder/store.db for
  /// readers of that.
  std::function<Result<std::unique_ptr<Store>>()> open_store;
  std::function<void()> export_store;
  DriverFactory drivers;  // empty: the real ones
  StoreHooks hooks;
  TakeOver take_over = TakeOver::kNo;
  Nanoseconds audit_age;
  uint64_t audit_records = 0;
  Nanoseconds patience;
  /// More than any test moves the clock at once: nothing is an absence of the manager.
  Nanoseconds longest_gap = kSecond * 1'000'000;

  /// What the manager logged.
  std::string said() {
    const MutexLock lock(said_mutex_);
    return said_;
  }

 private:
  Mutex said_mutex_;
  std::string said_ TP_GUARDED_BY(said_mutex_);
};

inline constexpr char kFabric[] = "01234567-89ab-4cde-8f01-23456789abcd";
inline constexpr char kOtherFabric[] = "76543210-ba98-4edc-8f01-23456789abcd";

/// A manager of the tests' fabric.
inline Leader leaderOf(uint64_t term, uint64_t incarnation = 1) {
  return {kFabric, Term(term), incarnation, TakeOver::kNo};
}

inline AssignSpec want(const std::string& host, uint64_t grains) {
  AssignSpec spec;
  spec.host = host;
  spec.size = Bytes(grains * kGrain);
  return spec;
}

/// Takes the line that says whose it is out of a log of grants.
inline void disown(const std::string& path) {
  std::string rest;
  {
    std::ifstream file(path);
    for (std::string line; std::getline(file, line);) {
      if (line.find(" fabric uuid=") == std::string::npos) rest += line + "\n";
    }
  }
  std::ofstream(path, std::ios::trunc) << rest;
}

inline HostSpec hostSpec(const std::string& name) {
  HostSpec spec;
  spec.name = name;
  spec.lease = kSecond * 30;
  return spec;
}

/// Fails the test with the error's text; for verbs that must work.
template <typename T>
T must(Result<T> result) {
  EXPECT_TRUE(result) << result.error().text();
  return result ? std::move(*result) : T();
}

inline void must(const Status& status) { EXPECT_TRUE(status) << status.error().text(); }

template <typename T>
ErrorCode codeOf(const Result<T>& result) {
  return result ? ErrorCode() : result.error().code();
}

}  // namespace tidepool::fabric
