// SPDX-License-Identifier: Apache-2.0
// Invariant I3: what cannot be fetched ends in SIGBUS and a clear line, never in zeros or in a wait
// without end; what was local, or under way, stays good. Each case runs in a process of its own,
// forked before any thread or runtime is started, because it ends by a signal.
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstring>
#include <string>
#include <thread>

#include "tests/migrate/fixture.h"
#include "tests/migrate/in_process.h"
#include "tests/transport/wire_cutter.h"

namespace tidepool {
namespace {

constexpr uint64_t kWords = kPageSize / sizeof(uint64_t);
constexpr uint64_t kPages = 32 * kMiB / kPageSize;

uint64_t mark(uint64_t page) { return page * 0x9e3779b97f4a7c15 | 1; }

/// 32 MiB of marked pages in a runtime with 8 MiB of local memory; inside a child process.
struct Program {
  TestRuntime test;
  volatile uint64_t* words = nullptr;

  explicit Program(const Setup& setup, Nanoseconds timeout = Nanoseconds(5'000'000'000))
      : test(TestRuntime::start(setup, Bytes(8 * kMiB), Bytes(256 * kMiB), timeout)) {
    fill();
  }
  /// Through a proxy, which the program owns too.
  Program(std::unique_ptr<WireCutter>* proxy, const Patience& patience) {
    memserver::ServerOptions server_options;
    server_options.size = Bytes(256 * kMiB);
    test.server = std::move(*memserver::Server::start(server_options));
    *proxy = std::make_unique<WireCutter>(test.server->port());
    Options options;
    options.dram = Bytes(8 * kMiB);
    options.budget_scope = BudgetScope::kManaged;
    options.space = Bytes(64 * kGiB);
    options.compress = false;
    options.remote_timeout = patience.timeout;
    options.remote_reconnect = patience.reconnect;
    options.far_count = 1;
    options.far[0].kind = farKind("remote");
    snprintf(options.far[0].target, sizeof options.far[0].target, "127.0.0.1:%s",
             (*proxy)->endpoint().port);
    auto runtime = Runtime::start(options);
    if (!runtime) _exit(90);
    test.runtime = std::move(*runtime);
    fill();
  }
  void fill() {
    auto memory = test.runtime->allocate(Bytes(kPages * kPageSize), Bytes(kGranuleSize));
    if (!memory) _exit(91);
    words = static_cast<volatile uint64_t*>(*memory);
    for (uint64_t page = 0; page < kPages; ++page) words[page * kWords] = mark(page);
  }
  /// Reads pages until a signal ends the process; 1 for a wrong byte, 0 when all were good.
  int readAll(uint64_t from = 0, uint64_t to = kPages) const {
    for (uint64_t page = from; page < to; ++page) {
      if (words[page * kWords] != mark(page)) return 1;
    }
    return 0;
  }
  bool present(uint64_t page) const {
    unsigned char resident = 0;
    mincore(const_cast<uint64_t*>(words + page * kWords), kPageSize, &resident);
    return (resident & 1) != 0;
  }
};

class LostMemory : public testing::TestWithParam<Setup> {};

TEST_P(LostMemory, ATouchOfALostPageIsSigbusAndOneLine) {
  const Ended ended = inProcess([] {
    Program program(GetParam());
    program.test.server->stop();
    return program.readAll();
  });
  EXPECT_EQ(ended.status, kBus) << ended.said;
  EXPECT_EQ(occurrences(ended.said, "is lost"), 1u) << ended.said;
  EXPECT_NE(ended.said.find("remote:127.0.0.1:"), std::string::npos) << ended.said;
  EXPECT_NE(ended.said.find("SIGBUS"), std::string::npos) << ended.said;
  EXPECT_NE(ended.said.find("restart"), std::string::npos) << "what to do: " << ended.said;
}

TEST_P(LostMemory, EveryLostPageEndsTheSameWay) {
  // The first one is told by the broken connection, later ones are refused at once.
  const Ended ended = inProcess([] {
    Program program(GetParam());
    program.test.server->stop();
    int ends[2];
    if (pipe(ends) != 0) return 2;
    uint64_t lost = 0;
    for (uint64_t page = 0; page < kPages; ++page) {
      // The kernel reads for us: EFAULT where a load would be SIGBUS.
      const void* address = const_cast<uint64_t*>(program.words + page * kWords);
      if (write(ends[1], address, 8) != 8) {
        if (errno != EFAULT) return 3;
        ++lost;
        continue;
      }
      uint64_t value = 0;
      if (read(ends[0], &value, 8) != 8 || value != mark(page)) return 4;
    }
    if (lost == 0) return 5;
    if (program.test.runtime->stats().lost_pages.load() < lost) return 6;
    // The last of them, touched, is still SIGBUS and not SIGSEGV.
    return program.readAll();
  });
  EXPECT_EQ(ended.status, kBus) << ended.said;
  EXPECT_EQ(occurrences(ended.said, "is lost"), 1u) << "one line, not one a page: " << ended.said;
}

TEST_P(LostMemory, WhatIsLocalStaysGoodAndTheProgramRunsOn) {
  const Ended ended = inProcess([] {
    Program program(GetParam());
    program.test.server->stop();
    uint64_t good = 0;
    for (uint64_t page = 0; page < kPages; ++page) {
      if (!program.present(page)) continue;
      if (program.words[page * kWords] != mark(page)) return 1;
      ++good;
    }
    if (good == 0) return 2;
    // New memory, far more than the budget: it is exceeded, said once, and nothing hangs.
    auto more = program.test.runtime->allocate(Bytes(48 * kMiB), Bytes(kPageSize));
    if (!more) return 3;
    auto* words = static_cast<volatile uint64_t*>(*more);
    for (uint64_t page = 0; page < 48 * kMiB / kPageSize; ++page) words[page * kWords] = mark(page);
    for (uint64_t page = 0; page < 48 * kMiB / kPageSize; ++page) {
      if (words[page * kWords] != mark(page)) return 4;
    }
    // Giving lost memory back is allowed, and it may be used anew.
    Runtime& runtime = *program.test.runtime;
    if (!runtime.discard(const_cast<uint64_t*>(program.words), Bytes(kPages * kPageSize))) return 5;
    for (uint64_t page = 0; page < kPages; page += 7) {
      if (program.words[page * kWords] != 0) return 6;
    }
    return runtime.release(const_cast<uint64_t*>(program.words), Bytes(kPages * kPageSize)) ? 0 : 7;
  });
  EXPECT_EQ(ended.status, 0) << ended.said;
  EXPECT_EQ(occurrences(ended.said, "cannot write to far memory"), 1u) << ended.said;
}

TEST_P(LostMemory, AServerThatDiesDuringWriteBackLosesNoPageOnItsWay) {
  const Ended ended = inProcess([] {
    Program program(GetParam());
    const uint64_t before = program.test.runtime->stats().demotions.load();
    std::thread killer([&] {
      // A quarter of it has gone out, and more is on its way.
      while (program.test.runtime->stats().demotions.load() < before + 16 * kMiB / kPageSize) {
        std::this_thread::yield();
      }
      program.test.server->stop();
    });
    // Written all the time, so that pages are on their way out when the server dies. All of it is
    // new memory: none of it was far before, so what reads back must be right or a SIGBUS.
    auto more = program.test.runtime->allocate(Bytes(64 * kMiB), Bytes(kPageSize));
    if (!more) return 3;
    auto* words = static_cast<volatile uint64_t*>(*more);
    for (uint64_t page = 0; page < 64 * kMiB / kPageSize; ++page) words[page * kWords] = mark(page);
    killer.join();
    for (uint64_t page = 64 * kMiB / kPageSize; page-- > 0;) {
      if (words[page * kWords] != mark(page)) return 1;
    }
    return 0;
  });
  EXPECT_TRUE(ended.status == 0 || ended.status == kBus) << ended.status << ": " << ended.said;
}

TEST_P(LostMemory, AHungServerIsGivenUpWithinTheTimeout) {
  const auto start = std::chrono::steady_clock::now();
  const Ended ended = inProcess([] {
    std::unique_ptr<WireCutter> proxy;
    Program program(&proxy, Nanoseconds(1'000'000'000));
    proxy->pause(true);
    return program.readAll();  // a wait without end is the alarm's signal, zeros are 1
  });
  EXPECT_EQ(ended.status, kBus) << ended.said;
  EXPECT_EQ(occurrences(ended.said, "is lost"), 1u) << ended.said;
  // Far beyond the second it may take, far below the minute of the alarm.
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(30));
}

TEST_P(LostMemory, APauseOfTheNetworkIsOnlyAPause) {
  const Ended ended = inProcess([] {
    std::unique_ptr<WireCutter> proxy;
    Program program(&proxy, {Nanoseconds(100'000'000), Nanoseconds(50'000'000'000)});
    proxy->pause(true);
    std::thread repair([&] {
      std::this_thread::sleep_for(std::chrono::milliseconds(500));
      proxy->pause(false);
    });
    const int wrong = program.readAll();
    repair.join();
    return wrong;
  });
  EXPECT_EQ(ended.status, 0) << ended.said;
  EXPECT_EQ(occurrences(ended.said, "is lost"), 0u) << ended.said;
}

TEST_P(LostMemory, AFullServerExceedsTheBudgetSaysSoAndLosesNothing) {
  const Ended ended = inProcess([] {
    TestRuntime test = TestRuntime::start(GetParam(), Bytes(8 * kMiB), Bytes(16 * kMiB));
    auto memory = test.runtime->allocate(Bytes(64 * kMiB), Bytes(kPageSize));
    if (!memory) return 2;
    auto* words = static_cast<volatile uint64_t*>(*memory);
    for (uint64_t page = 0; page < 64 * kMiB / kPageSize; ++page) words[page * kWords] = mark(page);
    for (int round = 0; round < 2; ++round) {
      for (uint64_t page = 0; page < 64 * kMiB / kPageSize; ++page) {
        if (words[page * kWords] != mark(page)) return 1;
      }
    }
    return 0;
  });
  EXPECT_EQ(ended.status, 0) << ended.said;
  EXPECT_EQ(occurrences(ended.said, "far memory is full"), 1u) << ended.said;
  EXPECT_EQ(occurrences(ended.said, "\n"), 1u) << "one clear error: " << ended.said;
}

INSTANTIATE_TEST_SUITE_P(Remote, LostMemory,
                         testing::Values(Setup{Far::kRemote, Eviction::kMove},
                                         Setup{Far::kRemote, Eviction::kCopy}),
                         setupName);

}  // namespace
}  // namespace tidepool
