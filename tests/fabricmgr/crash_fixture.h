// SPDX-License-Identifier: Apache-2.0
// Runs a manager in a child process that kills itself at the n-th fault point, and checks what it
// left behind after a new manager has picked it up. One at a time: the hook is the process's.
#pragma once

#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <functional>

#include "fabricmgr/model/fault_point.h"
#include "tests/fabricmgr/fabric_fixture.h"
#include "tests/fabricmgr/independent_checker.h"

namespace tidepool::fabric {

/// Lives in memory that children share with their parent.
struct CrashBoard {
  std::atomic<long> countdown{0};  // fault points until the child dies; 0: it does not
  std::atomic<uint64_t> hits[kFaultPoints]{};
  std::atomic<uint64_t> deaths[kFaultPoints]{};
};

/// `to` becomes a copy of `from`.
inline void replaceFolder(const std::string& from, const std::string& to) {
  std::filesystem::remove_all(to);
  std::filesystem::copy(from, to, std::filesystem::copy_options::recursive);
}

inline CrashBoard* board() {
  static auto* const shared = [] {
    void* memory = mmap(nullptr, sizeof(CrashBoard), PROT_READ | PROT_WRITE,
                        MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    return new (memory) CrashBoard;
  }();
  return shared;
}

inline void dieAtFaultPoint(FaultPoint point) {
  CrashBoard* const shared = board();
  const auto at = static_cast<size_t>(point);
  ++shared->hits[at];
  if (shared->countdown.load() > 0 && --shared->countdown == 0) {
    ++shared->deaths[at];
    kill(getpid(), SIGKILL);
    for (;;) pause();  // until it arrives
  }
}

enum class Ending { kFinished, kKilled, kFailed };

/// Runs `body` in a child that dies at its n-th fault point; 0: never.
inline Ending runInChild(long dies_at, const std::function<void()>& body) {
  board()->countdown = dies_at;
  const pid_t child = fork();
  if (child == 0) {
    alarm(60);  // a child that hangs is a failure, not a hang of the test
    fault_hook = dieAtFaultPoint;
    body();
    _exit(::testing::Test::HasFailure() ? 1 : 0);
  }
  int status = 0;
  if (waitpid(child, &status, 0) != child) return Ending::kFailed;
  if (WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL) return Ending::kKilled;
  return WIFEXITED(status) && WEXITSTATUS(status) == 0 ? Ending::kFinished : Ending::kFailed;
}

/// The host writes its region's own byte all over it.
inline void fillRegion(Manager& manager, RegionId region) {
  const auto shown = manager.showRegion(region);
  if (!shown) return;
  const auto access = manager.access(shown->host, region);
  if (!access) return;
  const auto own = static_cast<char>(region.value() % 251 + 1);
  for (const Access& part : access->parts) {
    std::fstream file(part.address, std::ios::in | std::ios::out | std::ios::binary);
    for (const Extent& extent : part.extents) {
      file.seekp(static_cast<std::streamoff>(extent.offset));
      file << std::string(extent.length.value(), own);
    }
  }
}

/// Work goes on until nothing more is to be done.
inline void finishWork(Manager& manager) {
  for (int round = 0; round < 3; ++round) {
    manager.settle();
    manager.tick();
  }
  manager.settle();
}

/// A new manager picks up what is there; then the checker looks, twice with a restart in between.
inline void recoverAndCheck(FabricHouse& house,
                            const std::function<void(Manager&)>& afterwards = {}) {
  {
    auto manager = house.open();
    if (manager == nullptr) return;
    finishWork(*manager);
    if (afterwards) afterwards(*manager);
    finishWork(*manager);
  }
  if (house.export_store) house.export_store();
  const std::string store = house.folder / "store.db";
  EXPECT_EQ(checker::Checker(store).check(), "");
  const std::string before = checker::Checker(store).dump();
  { auto manager = house.open(); }
  if (house.export_store) house.export_store();
  EXPECT_EQ(checker::Checker(store).dump(), before) << "another restart changed the state";
}

}  // namespace tidepool::fabric
