// SPDX-License-Identifier: Apache-2.0
// A runtime whose far memory comes from a fabric manager, by way of an agent, all real: growth,
// drains under the program's feet, loss by force, and the death of each of the others. Every page
// carries a pattern that names it, so that a wrong byte shows wherever it is from.
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <csignal>
#include <thread>

#include "runtime/runtime.h"
#include "tests/fabricmgr/agent/far_device_fixture.h"
#include "tests/fabricmgr/agent/held_requests.h"

namespace tidepool::agent {
namespace {

constexpr uint64_t kWords = kPageSize / sizeof(uint64_t);

class FabricMemoryTest : public FarDevice {
 protected:
  static constexpr uint64_t kDeviceBytes = 352 * kMiB;
  static constexpr uint64_t kData = 40 * kMiB;
  static constexpr uint64_t kLocal = 8 * kMiB;

  bool whole() const { return GetParam() == "whole"; }

  void SetUp() override {
    FarDevice::SetUp();
    addDevice(kDeviceBytes, whole() ? "/var/tmp" : "/dev/shm");
  }
  void TearDown() override {
    runtime_.reset();
    FarDevice::TearDown();
  }

  void start(uint64_t most = 0, Nanoseconds timeout = Options().remote_timeout) {
    Options options;
    options.remote_timeout = timeout;
    options.dram = Bytes(local_);
    options.compress = compress_;
    options.budget_scope = BudgetScope::kManaged;
    options.space = Bytes(64 * kGiB);
    options.far_count = 1;
    options.far[0].kind = farKind("fabric");
    options.far[0].size = Bytes(most);
    snprintf(options.agent, sizeof options.agent, "%s", socket_.c_str());
    auto runtime = Runtime::start(options);
    ASSERT_TRUE(runtime) << runtime.error().text();
    runtime_ = std::move(*runtime);
  }
  void allocate(uint64_t bytes = kData) {
    const auto memory = runtime_->allocate(Bytes(bytes), Bytes(kGranuleSize));
    ASSERT_TRUE(memory) << memory.error().text();
    data_ = static_cast<uint64_t*>(*memory);
    pages_ = bytes / kPageSize;
  }
  void write(uint64_t round) {
    for (uint64_t page = 0; page < pages_; ++page)
      data_[page * kWords + page % kWords] = mark(page, round);
  }
  static uint64_t mark(uint64_t page, uint64_t round) { return (page + 1) * 1'000'003 + round; }
  uint64_t wrongPages(uint64_t round) const {
    uint64_t wrong = 0;
    for (uint64_t page = 0; page < pages_; ++page) {
      wrong += data_[page * kWords + page % kWords] != mark(page, round) ? 1 : 0;
    }
    return wrong;
  }
  /// How many pages cannot be read; the others have to be as they were written. They are looked at
  /// through the kernel, which says EFAULT where a load would end in SIGBUS.
  uint64_t lostPages(uint64_t round) const {
    int ends[2];
    EXPECT_EQ(pipe(ends), 0);
    uint64_t lost = 0;
    for (uint64_t page = 0; page < pages_; ++page) {
      const uint64_t* word = data_ + page * kWords + page % kWords;
      if (::write(ends[1], word, sizeof *word) != sizeof *word) {
        EXPECT_EQ(errno, EFAULT);
        ++lost;
        continue;
      }
      uint64_t seen = 0;
      EXPECT_EQ(read(ends[0], &seen, sizeof seen), static_cast<ssize_t>(sizeof seen));
      EXPECT_EQ(seen, mark(page, round)) << page;
    }
    close(ends[0]);
    close(ends[1]);
    return lost;
  }
  std::vector<uint64_t> regions() {
    std::vector<uint64_t> ids;
    const Json list = get("/v1/regions");
    for (const Json& one : list["items"]) {
      if (one["state"] != "free") ids.push_back(one["id"].get<uint64_t>());
    }
    return ids;
  }
  void drain(uint64_t region) {
    post("/v1/regions/" + std::to_string(region) + "/drain", Json::object());
  }
  uint64_t usedOf(uint64_t region) {
    runtime_->refreshStats();
    const std::string name = "fabric:" + std::to_string(region);
    StatsPage& stats = runtime_->stats();
    for (uint64_t tier = 1; tier < stats.tier_count; ++tier) {
      const std::string found = stats.tiers[tier].name;
      if (found == name || found.starts_with(name + "@")) return stats.tiers[tier].used_bytes;
    }
    return 0;
  }
  /// The mappings of the pool's beginning, by the kernel's word.
  std::string mappedBelow(uint64_t end) const {
    std::string found;
    std::ifstream maps("/proc/self/maps");
    for (std::string line; !pool_.empty() && std::getline(maps, line);) {
      const size_t offset = line.find(' ', line.find(' ') + 1) + 1;
      if (line.ends_with(pool_) && std::stoull(line.substr(offset), nullptr, 16) < end) {
        found += line + "\n";
      }
    }
    return found;
  }
  uint64_t farUsed() {
    runtime_->refreshStats();
    uint64_t used = 0;
    StatsPage& stats = runtime_->stats();
    for (uint64_t tier = 1; tier < stats.tier_count; ++tier) used += stats.tiers[tier].used_bytes;
    return used;
  }

  uint64_t local_ = kLocal;  // the budget
  bool compress_ = false;    // the words here compress so well that next to nothing would be far
  std::unique_ptr<Runtime> runtime_;
  uint64_t* data_ = nullptr;
  uint64_t pages_ = 0;
};

TEST_P(FabricMemoryTest, GrowsWithTheProgramAndKeepsItsBytes) {
  start();
  EXPECT_TRUE(regions().empty()) << "nothing is asked for before it is needed";
  allocate();
  write(1);
  EXPECT_FALSE(regions().empty());
  EXPECT_GT(farUsed(), kData / 2);
  EXPECT_EQ(wrongPages(1), 0u);
  write(2);
  EXPECT_EQ(wrongPages(2), 0u);
  runtime_.reset();
  // All of it is given back, and has been scrubbed.
  await([&] { return regions().empty(); });
}

TEST_P(FabricMemoryTest, TakesNoMoreThanItIsAllowed) {
  start(16 * kMiB);
  allocate();
  write(1);
  EXPECT_EQ(wrongPages(1), 0u);
  uint64_t held = 0;
  const Json list = get("/v1/regions");
  for (const Json& one : list["items"]) held += one["size_bytes"].get<uint64_t>();
  EXPECT_EQ(held, 16 * kMiB);
  EXPECT_GT(runtime_->stats().error_count, 0u) << "it says that the budget is exceeded";
}

TEST_P(FabricMemoryTest, TakesWhatAnOperatorAssigned) {
  const uint64_t standing = assignFar(48 * kMiB);
  start();
  allocate();
  write(3);
  ASSERT_FALSE(regions().empty());
  EXPECT_EQ(regions().front(), standing);
  EXPECT_GE(usedOf(standing), kData - kLocal - 2 * kGranuleSize) << "it is what is used first";
  EXPECT_EQ(wrongPages(3), 0u);
}

TEST_P(FabricMemoryTest, MovesOffWhatIsDrainedWhileTheProgramRuns) {
  const uint64_t standing = assignFar(40 * kMiB);
  start();
  allocate();
  write(1);
  std::atomic<bool> stop{false};
  std::atomic<uint64_t> wrong{0}, turns{0};
  std::thread program([&] {
    for (uint64_t round = 1; !stop; ++round, ++turns) {
      wrong += wrongPages(round);
      write(round + 1);
    }
  });
  drain(standing);
  await([&] { return stateOf(standing) == "free"; });
  // It went on meanwhile, and goes on elsewhere.
  const uint64_t before = turns;
  while (turns < before + 2) std::this_thread::yield();
  stop = true;
  program.join();
  EXPECT_EQ(wrong, 0u);
  EXPECT_GT(farUsed(), 0u);
  EXPECT_EQ(runtime_->stats().lost_pages, 0u);
  EXPECT_EQ(mappedBelow(40 * kMiB), "") << "an agent does not detach a device that is in use";
}

TEST_P(FabricMemoryTest, DrainsOneAfterTheOtherAndComesBack) {
  start();
  allocate();
  write(1);
  for (uint64_t round = 1; round <= 6; ++round) {
    const auto held = regions();
    ASSERT_FALSE(held.empty());
    drain(held.front());
    await([&] { return stateOf(held.front()) == "free"; });
    ASSERT_EQ(wrongPages(round), 0u);
    write(round + 1);
  }
}

TEST_P(FabricMemoryTest, DrainsWhileColdPagesAreCompressed) {
  compress_ = true;
  start();
  allocate();
  write(1);
  for (uint64_t round = 1; round <= 3; ++round) {
    for (const uint64_t held : regions()) {
      drain(held);
      await([&] { return stateOf(held) == "free"; });
    }
    ASSERT_EQ(wrongPages(round), 0u);
    write(round + 1);
  }
}

TEST_P(FabricMemoryTest, ADrainThatIsCalledOffLeavesItInUse) {
  const uint64_t standing = assignFar(kDeviceBytes - 16 * kMiB);
  start();
  allocate();
  write(1);
  drain(standing);  // there is no room anywhere else
  post("/v1/regions/" + std::to_string(standing) + "/resume", Json::object());
  write(2);
  EXPECT_EQ(wrongPages(2), 0u);
  EXPECT_EQ(stateOf(standing), "attached");
}

TEST_P(FabricMemoryTest, WithoutRoomElsewhereADrainWaitsAndTheProgramDoesNot) {
  const uint64_t standing = assignFar(kDeviceBytes - 16 * kMiB);
  start();
  allocate();
  write(1);
  drain(standing);
  const auto operation = get("/v1/regions/" + std::to_string(standing))["operation"];
  const std::string path = "/v1/operations/" + operation.dump();
  uint64_t round = 1;
  // The operator is told why, while the program goes on with all of its memory.
  while (get(path).value("text", "").find("waits: there is no room") == std::string::npos) {
    EXPECT_EQ(wrongPages(round), 0u);
    write(++round);
  }
  for (int more = 0; more < 3; ++more) {
    EXPECT_EQ(wrongPages(round), 0u);
    write(++round);
  }
  EXPECT_EQ(stateOf(standing), "draining");
  post("/v1/regions/" + std::to_string(standing) + "/resume", Json::object());
  EXPECT_EQ(wrongPages(round), 0u);
}

// Two seconds in which nothing leaves are reported, but not while room is on its way.
TEST_P(FabricMemoryTest, ADrainWhoseRoomIsLongInComingIsNoError) {
  HeldRequests between(scratch_ / "between", scratch_ / "sock", "POST /v1/regions ");
  killNow(agent_);
  fabric_ = "unix:" + (scratch_ / "between");
  startAgent();
  const uint64_t standing = assignFar(40 * kMiB);
  start(0, Nanoseconds(30'000'000'000));
  allocate();
  write(1);
  drain(standing);
  // By another thread: where nothing can leave for now, the program may wait for the room.
  std::string state;
  std::atomic<bool> released{false};
  std::thread answer([&] {
    std::this_thread::sleep_for(std::chrono::seconds(3));
    state = stateOf(standing);
    between.release();
    released = true;
  });
  uint64_t round = 1;
  while (!released) {
    EXPECT_EQ(wrongPages(round), 0u);
    write(++round);
  }
  answer.join();
  EXPECT_EQ(state, "draining");
  await([&] { return stateOf(standing) == "free"; });
  EXPECT_EQ(wrongPages(round), 0u);
  EXPECT_EQ(runtime_->stats().error_count, 0u) << runtime_->stats().errors[0];
}

TEST_P(FabricMemoryTest, GoesOnWhileTheOthersAreKilled) {
  start();
  allocate();
  write(1);
  const auto held = regions();
  killNow(agent_);
  EXPECT_EQ(wrongPages(1), 0u);
  write(2);
  killNow(manager_);
  EXPECT_EQ(wrongPages(2), 0u);
  startManager();
  startAgent();
  write(3);
  // The runtime has made itself known again when a drain reaches it.
  await([&] { return get("/v1/hosts/" + std::string(kHost)).value("state", "") == "active"; });
  drain(held.front());
  await([&] { return stateOf(held.front()) == "free"; });
  EXPECT_EQ(wrongPages(3), 0u);
}

TEST_P(FabricMemoryTest, WhatIsTakenByForceIsSaidToBeLostAndNeverReadsAsZeros) {
  const uint64_t standing = assignFar(40 * kMiB);
  start();
  allocate();
  write(1);
  ASSERT_GT(farUsed(), 0u);
  post("/v1/regions/" + std::to_string(standing) + "/release", {{"force", true}});
  while (runtime_->stats().lost_pages == 0) std::this_thread::yield();
  const uint64_t lost = lostPages(1);
  EXPECT_GT(lost, 0u);
  EXPECT_LE(lost, runtime_->stats().lost_pages);
  // What is lost can be given up and used anew, in other memory.
  ASSERT_TRUE(runtime_->discard(data_, Bytes(kData)));
  write(2);
  EXPECT_EQ(wrongPages(2), 0u);
}

TEST_P(FabricMemoryTest, TheEndOfARegionThatIsMadeSmallerIsLostAndItsBeginningIsNot) {
  const uint64_t standing = assignFar(40 * kMiB);
  start();
  allocate();
  write(1);
  const uint64_t used = usedOf(standing);
  ASSERT_GT(used, 16 * kMiB);
  post("/v1/regions/" + std::to_string(standing) + "/resize", {{"size_bytes", 8 * kMiB}});
  while (runtime_->stats().lost_pages == 0) std::this_thread::yield();
  // The migrator goes on making room after the last write: what it has moved out since counts, too.
  const uint64_t went = std::max(used, runtime_->stats().demoted_bytes.load());
  const uint64_t lost = lostPages(1);
  EXPECT_GT(lost, 0u);
  EXPECT_LE(lost, (went - 8 * kMiB) / kPageSize) << "no more than what lay beyond";
  // The rest of it is moved elsewhere: a region that lost its end is not relied on.
  await([&] { return usedOf(standing) == 0; });
  EXPECT_EQ(lostPages(1), lost);
}

TEST_P(FabricMemoryTest, WhatIsNotUsedAnyMoreIsGivenBack) {
  start();
  allocate();
  write(1);
  ASSERT_FALSE(regions().empty());
  ASSERT_TRUE(runtime_->release(data_, Bytes(kData)));
  await([&] { return regions().empty(); });
  // And it is asked for again.
  allocate();
  write(2);
  EXPECT_EQ(wrongPages(2), 0u);
  EXPECT_FALSE(regions().empty());
}

/// A device that is mapped, and a memory server beside it.
class FabricMemoryOfBothKinds : public FabricMemoryTest {
 protected:
  void SetUp() override {
    FabricMemoryTest::SetUp();
    lend(std::to_string(kDeviceBytes));
  }
};

// Through local memory as it is made room in, this takes most of a minute.
TEST_P(FabricMemoryOfBothKinds, WhatAServerHadGoesToADeviceThatHasRoom) {
  const uint64_t lent =
      post("/v1/regions", {{"host", kHost}, {"size_bytes", 240 * kMiB}, {"class", "remote"}})
          .value("id", uint64_t{0});
  post("/v1/devices/dev1/cordon", Json::object());
  local_ = 64 * kMiB;
  start();
  allocate(200 * kMiB);
  write(1);
  ASSERT_GT(usedOf(lent), 100 * kMiB);
  post("/v1/devices/mem0/cordon", Json::object());
  post("/v1/devices/dev1/uncordon", Json::object());
  post("/v1/regions/" + std::to_string(lent) + "/drain", {{"deadline_ms", 25'000}});
  await([&] { return stateOf(lent) == "free"; });
  EXPECT_GT(farUsed(), 100 * kMiB);
  EXPECT_EQ(runtime_->stats().lost_pages, 0u);
  EXPECT_EQ(runtime_->stats().error_count, 0u) << runtime_->stats().errors[0];
  EXPECT_LE(runtime_->stats().managed_local_bytes, local_ + kGranuleSize);
  if (runtime_->stats().lost_pages == 0) {
    EXPECT_EQ(wrongPages(1), 0u);
  }
  // With no server any more, what is cold goes to the device, and nothing is full.
  write(2);
  EXPECT_EQ(wrongPages(2), 0u);
  EXPECT_EQ(runtime_->stats().error_count, 0u) << runtime_->stats().errors[0];
}

INSTANTIATE_TEST_SUITE_P(Devices, FabricMemoryOfBothKinds, ::testing::Values("cxl", "whole"),
                         [](const auto& test) { return test.param; });

/// Two devices of one class, the second of which nobody has anything of.
class MovedFabricMemory : public FabricMemoryTest {
 protected:
  void TearDown() override {
    FabricMemoryTest::TearDown();
    for (const char* end : {"", ".grants", ".grants.lock"}) {
      std::filesystem::remove(pool_ + "-2" + end);
    }
  }
  void addSecond() {
    if (remote()) {
      first_ = std::move(memserver_);
      lent_ = issue({"memserver", "second", {}, 3600});
      startMemserver(std::to_string(kDeviceBytes), "127.0.0.1:0");
      post("/v1/devices", {{"name", "second"}, {"pool", "far"}, {"address", control_}});
      return;
    }
    std::ofstream(pool_ + "-2").close();
    std::filesystem::resize_file(pool_ + "-2", kDeviceBytes);
    post("/v1/devices", {{"name", "second"}, {"pool", "own"}, {"address", pool_ + "-2"}});
  }
  /// To the second device, while the program uses it; returns what has taken its place.
  uint64_t moveUnderLoad(uint64_t region, uint64_t* round) {
    std::atomic<bool> stop{false};
    std::atomic<uint64_t> wrong{0};
    std::thread program([&] {
      for (; !stop; ++*round) {
        wrong += wrongPages(*round);
        write(*round + 1);
      }
    });
    const Json answer =
        post("/v1/regions/" + std::to_string(region) + "/move", {{"device", "second"}});
    uint64_t done = 0;
    Json operation;
    await([&] {
      operation = get("/v1/operations/" + answer["operation"].dump());
      const auto now = operation.value("done_bytes", uint64_t{0});
      EXPECT_GE(now, done) << "progress ran backwards";
      done = now;
      return operation.value("state", "") != "running";
    });
    stop = true;
    program.join();
    EXPECT_EQ(operation.value("state", ""), "done") << operation.dump();
    EXPECT_EQ(wrong, 0u);
    EXPECT_EQ(stateOf(region), "free");
    EXPECT_EQ(runtime_->stats().lost_pages, 0u);
    return answer.value("id", uint64_t{0});
  }

  std::unique_ptr<Program> first_;  // of two memory servers
};

TEST_P(MovedFabricMemory, FollowsARegionThatAnOperatorAssigned) {
  const uint64_t standing = assignFar(40 * kMiB);
  start();
  allocate();
  write(1);
  ASSERT_GT(usedOf(standing), 16 * kMiB);
  addSecond();
  uint64_t round = 1;
  const uint64_t place = moveUnderLoad(standing, &round);
  EXPECT_EQ(wrongPages(round), 0u);
  EXPECT_EQ(stateOf(place), "attached");
  EXPECT_EQ(mappedBelow(40 * kMiB), "");
}

// It is the program's, and goes back to the manager with it.
TEST_P(MovedFabricMemory, FollowsARegionThatItAskedFor) {
  start();
  allocate();
  write(1);
  // The one that most of it is in.
  uint64_t most = 0;
  for (const uint64_t region : regions()) {
    if (most == 0 || usedOf(region) > usedOf(most)) most = region;
  }
  ASSERT_NE(most, 0u);
  addSecond();
  uint64_t round = 1;
  moveUnderLoad(most, &round);
  EXPECT_EQ(wrongPages(round), 0u);
  runtime_.reset();
  await([&] { return regions().empty(); });
}

INSTANTIATE_TEST_SUITE_P(Classes, MovedFabricMemory, ::testing::Values("cxl", "whole", "remote"),
                         [](const auto& test) { return test.param; });

#ifndef TIDEPOOL_SANITIZED_THREAD  // which cannot follow threads that a child of a fork starts
/// What is mapped whole cannot be shared with a child.
class SharedFabricMemoryTest : public FabricMemoryTest {};

TEST_P(SharedFabricMemoryTest, AChildGoesOnAloneWithTheRegion) {
  start();
  allocate();
  write(1);
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  const pid_t parent = fork();
  ASSERT_GE(parent, 0);
  if (parent == 0) {
    const pid_t child = fork();
    if (child != 0) _exit(child > 0 ? 0 : 1);
    // Its own copy, while the one that it is from has ended.
    uint64_t wrong = 0;
    for (uint64_t round = 1; round <= 3; ++round) {
      wrong += wrongPages(round);
      write(round + 1);
    }
    wrong += wrongPages(4);
    (void)!::write(ends[1], &wrong, sizeof wrong);
    _exit(0);
  }
  close(ends[1]);
  write(9);
  int status = 0;
  ASSERT_EQ(waitpid(parent, &status, 0), parent);
  uint64_t wrong = 1;
  ASSERT_EQ(read(ends[0], &wrong, sizeof wrong), static_cast<ssize_t>(sizeof wrong));
  close(ends[0]);
  EXPECT_EQ(wrong, 0u);
  EXPECT_EQ(wrongPages(9), 0u);
  runtime_.reset();
  await([&] { return regions().empty(); });
}

INSTANTIATE_TEST_SUITE_P(Classes, SharedFabricMemoryTest, ::testing::Values("cxl", "remote"),
                         [](const auto& test) { return test.param; });
#endif
INSTANTIATE_TEST_SUITE_P(Classes, FabricMemoryTest, ::testing::Values("cxl", "whole", "remote"),
                         [](const auto& test) { return test.param; });

TEST_F(AgentProcesses, WithoutAnAgentItSaysWhatIsMissing) {
  Options options;
  options.far_count = 1;
  options.far[0].kind = farKind("fabric");
  snprintf(options.agent, sizeof options.agent, "%s", socket_.c_str());
  const auto runtime = Runtime::start(options);
  ASSERT_FALSE(runtime);
  EXPECT_THAT(runtime.error().text(), ::testing::HasSubstr("fabricmgr agent"));
}

}  // namespace
}  // namespace tidepool::agent
