// SPDX-License-Identifier: Apache-2.0
// A host whose lease ends while its agent, or the manager, is stopped, killed or cut off: memory
// that its programs use in place is out of their reach by the time at which somebody else has it,
// and theirs again, bytes and all, if nobody has got it. Manager, agents and runtime are real. What
// touches memory that may be out of reach does so by system calls, which say EFAULT where a load
// would end in SIGBUS.
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <fstream>
#include <thread>

#include "runtime/runtime.h"
#include "tests/fabricmgr/agent/far_device_fixture.h"

namespace tidepool::agent {
namespace {

constexpr uint64_t kWords = kPageSize / sizeof(uint64_t);

/// Words that go to memory and back through a pipe.
class Wire {
 public:
  Wire() { EXPECT_EQ(pipe2(ends_, O_CLOEXEC), 0); }
  ~Wire() {
    close(ends_[0]);
    close(ends_[1]);
  }
  bool load(const uint64_t* from, uint64_t* word) const {
    if (::write(ends_[1], from, sizeof *from) != sizeof *from) return false;
    return ::read(ends_[0], word, sizeof *word) == sizeof *word;
  }
  bool store(uint64_t* to, uint64_t word) const {
    EXPECT_EQ(::write(ends_[1], &word, sizeof word), static_cast<ssize_t>(sizeof word));
    if (::read(ends_[0], to, sizeof *to) == sizeof *to) return true;
    EXPECT_EQ(::read(ends_[0], &word, sizeof word), static_cast<ssize_t>(sizeof word));
    return false;
  }

 private:
  int ends_[2] = {-1, -1};
};

class AgentLease : public FarDevice {
 protected:
  static constexpr uint64_t kDeviceBytes = 64 * kMiB;
  static constexpr uint64_t kData = 40 * kMiB;
  static constexpr uint64_t kLocal = 8 * kMiB;
  static constexpr uint64_t kPages = kData / kPageSize;

  void SetUp() override {
    FarDevice::SetUp();
    addDevice(kDeviceBytes, GetParam() == "whole" ? "/var/tmp" : "/dev/shm", {"--lease", "3"});
    region_ = assignFar(kDeviceBytes);
    Options options;
    options.dram = Bytes(kLocal);
    options.budget_scope = BudgetScope::kManaged;
    options.space = Bytes(kGiB);
    options.far_count = 1;
    options.far[0].kind = farKind("fabric");
    options.uffd_move = GetParam() != "unheld";
    snprintf(options.agent, sizeof options.agent, "%s", socket_.c_str());
    auto runtime = Runtime::start(options);
    ASSERT_TRUE(runtime) << runtime.error().text();
    runtime_ = std::move(*runtime);
    const auto memory = runtime_->allocate(Bytes(kData), Bytes(kGranuleSize));
    ASSERT_TRUE(memory) << memory.error().text();
    data_ = static_cast<uint64_t*>(*memory);
    for (uint64_t page = 0; page < kPages; ++page) *wordOf(page) = mark(page);
  }
  void TearDown() override {
    runtime_.reset();
    FarDevice::TearDown();
  }

  static uint64_t mark(uint64_t page, uint64_t round = 0) { return (page + 1) * 1'000'003 + round; }
  uint64_t* wordOf(uint64_t page) const { return data_ + page * kWords + page % kWords; }
  uint64_t wrongPages(uint64_t round = 0) const {
    uint64_t wrong = 0;
    for (uint64_t page = 0; page < kPages; ++page) wrong += *wordOf(page) != mark(page, round);
    return wrong;
  }
  void awaitSuspended() {
    while (runtime_->stats().direct_suspensions == 0) std::this_thread::yield();
    EXPECT_LT(presentPages(), 2 * kLocal / kPageSize) << "what is in the region is out of reach";
  }
  /// Pages that a touch finds at once, by the kernel's word.
  uint64_t presentPages() const {
    std::ifstream pagemap("/proc/self/pagemap", std::ios::binary);
    std::vector<uint64_t> entries(kPages);
    pagemap.seekg(static_cast<std::streamoff>(reinterpret_cast<uintptr_t>(data_) / kPageSize *
                                              sizeof(uint64_t)));
    pagemap.read(reinterpret_cast<char*>(entries.data()),
                 static_cast<std::streamsize>(kPages * sizeof(uint64_t)));
    EXPECT_TRUE(pagemap);
    return static_cast<uint64_t>(std::count_if(entries.begin(), entries.end(),
                                               [](uint64_t entry) { return entry >> 63 != 0; }));
  }
  /// Without a manager nobody can take the memory.
  void letTheLeaseEnd() {
    EXPECT_EQ(wrongPages(), 0u);
    killNow(manager_);
    agent_->stop();
    awaitSuspended();
  }
  /// A new manager counts every lease from its start.
  void renewTheLease() {
    agent_->signal(SIGCONT);
    startManager();
  }
  /// Once the region was taken from this host another one gets it, and fills it.
  void takeItAll() {
    await([&] { return stateOf(region_) == "free"; });
    const std::string socket = scratch_ / "other.sock";
    other_agent_ = agentOf("node2", socket, {"--lease", "86400"});
    await([&] { return get("/v1/hosts")["items"].size() == 2; });
    post("/v1/regions", {{"host", "node2"}, {"size_bytes", kDeviceBytes}, {"class", "cxl"}});
    tenant_ = connectTo(socket);
    given_ = ask(*tenant_, 0);
    ASSERT_EQ(given_.size, Bytes(kDeviceBytes));
    memset(&given_.at(0), kFill, given_.size.value());
  }
  uint64_t spoiled() {
    uint64_t bytes = 0;
    for (uint64_t at = 0; at < given_.size.value(); ++at) bytes += given_.at(at) != kFill;
    return bytes;
  }

  static constexpr unsigned char kFill = 0xa5;
  std::unique_ptr<Program> other_agent_;
  std::unique_ptr<AgentClient> tenant_;
  Given given_;
  std::unique_ptr<Runtime> runtime_;
  uint64_t* data_ = nullptr;
  uint64_t region_ = 0;
};

TEST_P(AgentLease, NobodyReadsOrWritesWhatTheNextTenantHas) {
  // A manager that finds bytes in what it has erased gives it to nobody: stores come later.
  std::atomic<bool> stop{false}, stores{false};
  std::atomic<uint64_t> rounds{0}, foreign{0};
  std::thread program([&] {
    const Wire wire;
    while (!stop) {
      for (uint64_t page = 0; page < kPages && !stop; ++page) {
        uint64_t word = 0;
        if (wire.load(wordOf(page), &word) && word != mark(page)) ++foreign;
        if (stores) wire.store(wordOf(page), mark(page));
      }
      ++rounds;
    }
  });
  agent_->stop();
  takeItAll();
  stores = true;
  // The program either goes on, or waits until it hears whose the memory is.
  const uint64_t before = rounds;
  while (rounds < before + 3 && runtime_->stats().direct_suspended == 0) std::this_thread::yield();
  EXPECT_EQ(spoiled(), 0u);
  EXPECT_EQ(runtime_->stats().lost_pages, 0u) << "nobody has said so yet";
  // Its agent is told that the host was cut off.
  agent_->signal(SIGCONT);
  while (runtime_->stats().lost_pages == 0) std::this_thread::yield();
  const uint64_t after = rounds;
  while (rounds < after + 2) std::this_thread::yield();
  stop = true;
  program.join();
  EXPECT_EQ(foreign, 0u);
  EXPECT_EQ(spoiled(), 0u);
}

TEST_P(AgentLease, GoesOnWithItsBytesIfTheAgentComesBackInTime) {
  letTheLeaseEnd();
  std::atomic<bool> done{false};
  uint64_t wrong = kPages;
  std::thread program([&] {
    wrong = wrongPages();
    for (uint64_t page = 0; page < kPages; ++page) *wordOf(page) = mark(page, 1);
    done = true;
  });
  EXPECT_EQ(runtime_->stats().direct_suspended, 1u);
  EXPECT_FALSE(done);
  renewTheLease();
  program.join();
  EXPECT_EQ(wrong, 0u);
  EXPECT_EQ(wrongPages(1), 0u);
  EXPECT_EQ(stateOf(region_), "attached");
  EXPECT_EQ(runtime_->stats().lost_pages, 0u);
}

TEST_P(AgentLease, GoesOnWithItsBytesWhenTheManagerIsBack) {
  const auto client = connect();
  killNow(manager_);
  awaitSuspended();
  // The agent, which is there, says what is wrong.
  awaitStatus(*client, R"("health":"error")");
  awaitStatus(*client, R"("lease_left_ms":0)");
  startManager();
  EXPECT_EQ(wrongPages(), 0u);
  awaitStatus(*client, R"("health":"ok")");
}

TEST_P(AgentLease, GoesOnWithItsBytesUnderANewAgent) {
  EXPECT_EQ(wrongPages(), 0u);
  killNow(manager_);
  killNow(agent_);
  awaitSuspended();
  startManager();
  startAgent();
  EXPECT_EQ(wrongPages(), 0u);
  EXPECT_EQ(runtime_->stats().lost_pages, 0u);
}

TEST_P(AgentLease, WhatIsGivenBackMeanwhileIsNotErased) {
  agent_->stop();
  takeItAll();
  EXPECT_EQ(runtime_->stats().direct_suspended, 1u);
  ASSERT_TRUE(runtime_->discard(data_, Bytes(kData / 2)));
  ASSERT_TRUE(runtime_->release(data_ + kData / 4 / sizeof *data_, Bytes(kData / 4)));
  runtime_.reset();  // so at the end
  EXPECT_EQ(spoiled(), 0u);
}

TEST_P(AgentLease, WhatWasGivenBackMeanwhileIsEmptyAfterwards) {
  letTheLeaseEnd();
  ASSERT_TRUE(runtime_->discard(data_, Bytes(kData / 2)));
  const auto* const gone = data_ + kData * 3 / 4 / sizeof *data_;
  ASSERT_TRUE(runtime_->release(const_cast<uint64_t*>(gone), Bytes(kData / 4)));
  renewTheLease();
  for (uint64_t page = 0; page < kPages * 3 / 4; ++page) {
    ASSERT_EQ(*wordOf(page), page < kPages / 2 ? 0 : mark(page)) << page;
  }
  // Fresh memory, some of it where that was.
  const auto memory = runtime_->allocate(Bytes(kData / 4), Bytes(kGranuleSize));
  ASSERT_TRUE(memory);
  const auto* const fresh = static_cast<uint64_t*>(*memory);
  for (uint64_t at = 0; at < kData / 4 / sizeof *fresh; ++at) ASSERT_EQ(fresh[at], 0u) << at;
}

TEST_P(AgentLease, AForkMeanwhileWaits) {
  letTheLeaseEnd();
  std::atomic<bool> forked{false};
  int status = -1;
  std::thread program([&] {
    const pid_t child = fork();
    // A child has no memory of devices, nor of files on disks.
    if (child == 0) _exit(GetParam() == "whole" || wrongPages() == 0 ? 0 : 1);
    forked = true;
    EXPECT_EQ(waitpid(child, &status, 0), child);
  });
  EXPECT_FALSE(forked);
  renewTheLease();
  program.join();
  EXPECT_EQ(status, 0);
  EXPECT_EQ(wrongPages(), 0u);
}

/// Children have nothing of what is mapped in whole granules.
class AgentLeaseShared : public AgentLease {};

TEST_P(AgentLeaseShared, WhatAForkSharesComesBackAndStaysApart) {
  int ends[2];
  ASSERT_EQ(pipe2(ends, O_CLOEXEC), 0);
  const pid_t child = fork();
  if (child == 0) {
    char go = 0;
    close(ends[1]);
    if (read(ends[0], &go, 1) != 1 || wrongPages() != 0) _exit(1);
    for (uint64_t page = 0; page < kPages; ++page) *wordOf(page) = mark(page, 2);
    _exit(wrongPages(2) == 0 ? 0 : 2);
  }
  letTheLeaseEnd();
  renewTheLease();
  EXPECT_EQ(wrongPages(), 0u);
  for (uint64_t page = 0; page < kPages; ++page) *wordOf(page) = mark(page, 1);
  EXPECT_EQ(wrongPages(1), 0u);
  EXPECT_EQ(write(ends[1], "", 1), 1);
  int status = -1;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(wrongPages(1), 0u);
}

/// As on a kernel that cannot make readers of shared mappings wait.
class AgentLeaseUnheld : public AgentLease {};

TEST_P(AgentLeaseUnheld, ATouchFailsUntilTheLeaseIsRenewed) {
  letTheLeaseEnd();
  const Wire wire;
  uint64_t refused = 0, word = 0;
  for (uint64_t page = 0; page < kPages; ++page) refused += wire.load(wordOf(page), &word) ? 0 : 1;
  EXPECT_GE(refused, (kData - 2 * kLocal) / kPageSize);
  renewTheLease();
  while (runtime_->stats().direct_suspended != 0) std::this_thread::yield();
  EXPECT_EQ(wrongPages(), 0u);
}

INSTANTIATE_TEST_SUITE_P(Devices, AgentLeaseUnheld, ::testing::Values("unheld"),
                         [](const auto& one) { return one.param; });

INSTANTIATE_TEST_SUITE_P(Devices, AgentLeaseShared, ::testing::Values("pool"),
                         [](const auto& one) { return one.param; });

INSTANTIATE_TEST_SUITE_P(Devices, AgentLease, ::testing::Values("pool", "whole"),
                         [](const auto& one) { return one.param; });

}  // namespace
}  // namespace tidepool::agent
