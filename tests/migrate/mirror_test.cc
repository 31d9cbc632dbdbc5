// SPDX-License-Identifier: Apache-2.0
// A runtime whose pages are on two memory servers, in processes of their own: the loss of either at
// any moment changes no byte and ends no process, of a family of forks neither; the loss of both
// ends as that of one server does.
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <string>
#include <thread>

#include "tests/migrate/fixture.h"
#include "tests/migrate/in_process.h"
#include "tests/migrate/server_process.h"

namespace tidepool {
namespace {

constexpr uint64_t kWords = kPageSize / sizeof(uint64_t);
constexpr Bytes kDram(4 * kMiB), kFar(48 * kMiB);
constexpr uint64_t kPages = 12 * kMiB / kPageSize;

enum class How : uint8_t { kKilled, kHangs };
struct Loss {
  size_t server;
  How how;
};

std::string nameOf(const testing::TestParamInfo<Loss>& info) {
  return std::string(info.param.server == 0 ? "first" : "second") +
         (info.param.how == How::kKilled ? "_killed" : "_hangs");
}

enum class Spare : uint8_t { kNone, kOne };

/// Two servers, or one more, and a runtime over them, three quarters of whose memory is far.
class Program {
 public:
  explicit Program(Spare spare = Spare::kNone) {
    Options options = TestRuntime::optionsFor({Far::kRemote, Eviction::kMove}, kDram, kFar);
    options.remote_timeout = Nanoseconds(1'000'000'000);
    options.far[0].kind = farKind("mirror");
    std::string target = "127.0.0.1:" + std::to_string(servers_[0].port());
    for (size_t i = 1; i < (spare == Spare::kOne ? 3u : 2u); ++i) {
      target += "+127.0.0.1:" + std::to_string(servers_[i].port());
    }
    snprintf(options.far[0].target, sizeof options.far[0].target, "%s", target.c_str());
    auto runtime = Runtime::start(options);
    if (!runtime) _exit(90);
    runtime_ = std::move(*runtime);
    auto memory = runtime_->allocate(Bytes(kPages * kPageSize), Bytes(kGranuleSize));
    if (!memory) _exit(91);
    words_ = static_cast<uint64_t*>(*memory);
    writeAll(0);
  }
  void lose(Loss loss) {
    servers_[loss.server].signal(loss.how == How::kKilled ? SIGKILL : SIGSTOP);
  }
  void comeBack(Loss loss) {
    if (loss.how != How::kHangs) return;
    servers_[loss.server].signal(SIGCONT);
    came_back_ = true;
  }
  void writeAll(uint64_t version, uint64_t step = 1) {
    for (uint64_t page = 0; page < kPages; page += step) write(page, version);
  }
  void write(uint64_t page, uint64_t version) {
    volatile uint64_t* const words = words_ + page * kWords;
    words[0] = mark(page, version);
    words[kWords - 1] = mark(page, version);
  }
  bool has(uint64_t page, uint64_t version) const {
    const volatile uint64_t* const words = words_ + page * kWords;
    return words[0] == mark(page, version) && words[kWords - 1] == mark(page, version);
  }
  bool all(uint64_t version) const {
    for (uint64_t page = 0; page < kPages; ++page) {
      if (!has(page, version)) return false;
    }
    return true;
  }
  /// As the statistics say. Of a server that has come back they may say nothing any more: it has
  /// been given a new copy.
  bool knowsOf(Loss loss) const { return came_back_ || roleOf(loss.server) == ServerRole::kLost; }
  /// Waits until every page has a copy on the spare server.
  void awaitRepair() const {
    while (roleOf(2) != ServerRole::kLive) std::this_thread::yield();
  }
  bool beingRepaired() const { return roleOf(2) != ServerRole::kSpare; }
  bool discard() { return runtime_->discard(words_, Bytes(kPages * kPageSize)).has_value(); }
  uint64_t moved() const { return runtime_->stats().demotions.load(); }

 private:
  static uint64_t mark(uint64_t page, uint64_t version) {
    return (page * 0x9e3779b97f4a7c15 | 1) + version * 1000;
  }
  ServerRole roleOf(size_t server) const {
    runtime_->refreshStats();
    return static_cast<ServerRole>(runtime_->stats().tiers[1].server_states[server].load() & 0xff);
  }

  ServerProcess servers_[3] = {ServerProcess(kFar), ServerProcess(kFar), ServerProcess(kFar)};
  std::unique_ptr<Runtime> runtime_;
  uint64_t* words_ = nullptr;
  bool came_back_ = false;
};

template <typename Body>
int forked(Body body) {
  const pid_t child = fork();
  if (child == 0) {
    alarm(100);
    _exit(body());
  }
  int status = 0;
  if (waitpid(child, &status, 0) != child) return 92;
  return WIFEXITED(status) ? WEXITSTATUS(status) : 93;
}

class MirroredMemory : public testing::TestWithParam<Loss> {
 protected:
  static void expectWell(const Ended& ended) {
    EXPECT_EQ(ended.status, 0) << ended.said;
    EXPECT_EQ(occurrences(ended.said, "has all pages"), 1u) << ended.said;
  }
};

TEST_P(MirroredMemory, AServerIsLostBetweenTwoLooks) {
  expectWell(inProcess([] {
    Program program;
    program.lose(GetParam());
    if (!program.all(0)) return 1;
    program.writeAll(1);
    if (!program.all(1)) return 2;
    return program.knowsOf(GetParam()) ? 0 : 3;
  }));
}

TEST_P(MirroredMemory, AServerIsLostWhilePagesComeAndGo) {
  expectWell(inProcess([] {
    Program program;
    std::atomic<bool> stop{false};
    std::atomic<int> wrong{0};
    std::atomic<uint64_t> rounds{0};
    // Each its own pages, all the time.
    std::thread threads[3];
    for (uint64_t t = 0; t < 3; ++t) {
      threads[t] = std::thread([&, t] {
        for (uint64_t version = 1; !stop; ++version, ++rounds) {
          for (uint64_t page = t; page < kPages; page += 3) {
            wrong += !program.has(page, version - 1);
            program.write(page, version);
          }
        }
      });
    }
    while (rounds < 2) std::this_thread::yield();
    program.lose(GetParam());
    while (!program.knowsOf(GetParam())) std::this_thread::yield();
    const uint64_t then = rounds;
    while (rounds < then + 4) std::this_thread::yield();
    stop = true;
    for (std::thread& thread : threads) thread.join();
    return wrong == 0 ? 0 : 1;
  }));
}

TEST_P(MirroredMemory, WhatTheParentLosesItsChildrenDoNotAsk) {
  expectWell(inProcess([] {
    Program program;
    program.lose(GetParam());
    program.writeAll(1);
    if (!program.all(1) || !program.knowsOf(GetParam())) return 1;
    program.comeBack(GetParam());
    return forked([&] {
      if (!program.all(1)) return 2;
      program.writeAll(2);
      if (!program.knowsOf(GetParam())) return 3;
      return forked([&] { return program.all(2) ? 0 : 4; });
    });
  }));
}

TEST_P(MirroredMemory, WhatAChildLosesItsParentAndItsSiblingsDoNotAsk) {
  expectWell(inProcess([] {
    Program program;
    int begun[2], lost[2];
    if (pipe(begun) != 0 || pipe(lost) != 0) return 1;
    char byte = 0;
    // Has its connections, and waits until the other child has lost the server.
    const pid_t sibling = fork();
    if (sibling == 0) {
      alarm(100);
      if (!program.all(0) || write(begun[1], "", 1) != 1 || read(lost[0], &byte, 1) != 1) _exit(2);
      // New pages, in frames that the other child has used.
      program.writeAll(5);
      if (!program.all(5)) _exit(3);
      _exit(program.knowsOf(GetParam()) ? 0 : 4);
    }
    if (read(begun[0], &byte, 1) != 1) return 5;
    const int child = forked([&] {
      program.lose(GetParam());
      program.writeAll(1);
      if (!program.all(1) || !program.knowsOf(GetParam())) return 6;
      return program.discard() ? 0 : 7;
    });
    if (child != 0) return child;
    program.comeBack(GetParam());
    if (write(lost[1], "", 1) != 1) return 8;
    if (!program.all(0) || !program.knowsOf(GetParam())) return 9;
    program.writeAll(3);
    int status = 0;
    if (waitpid(sibling, &status, 0) != sibling || status != 0) return 10;
    return program.all(3) ? 0 : 11;
  }));
}

TEST_P(MirroredMemory, WithoutTheOtherAsWellItEndsAsWithOneServer) {
  const auto [status, said] = inProcess([] {
    Program program;
    program.lose(GetParam());
    program.writeAll(1);
    if (!program.all(1)) return 1;
    program.lose({1 - GetParam().server, How::kKilled});
    return program.all(1) ? 2 : 3;
  });
  EXPECT_EQ(status, kBus) << said;
  // What cannot be written there any more may be said before, of the same memory.
  EXPECT_GE(occurrences(said, "far memory mirror:127.0.0.1:"), 1u) << said;
  EXPECT_EQ(occurrences(said, "is lost (unreachable): pages that live there"), 1u) << said;
}

void expectRepaired(const Ended& ended) {
  EXPECT_EQ(ended.status, 0) << ended.said;
  EXPECT_EQ(occurrences(ended.said, "has all pages"), 2u) << ended.said;
  EXPECT_EQ(occurrences(ended.said, "a second copy of all pages is being made"), 1u) << ended.said;
  EXPECT_EQ(occurrences(ended.said, "all pages are on two memory servers again"), 1u) << ended.said;
}

TEST_P(MirroredMemory, IsRepairedAndThenTheOtherServerMayGoAsWell) {
  expectRepaired(inProcess([] {
    Program program(Spare::kOne);
    program.lose(GetParam());
    program.writeAll(1);
    program.awaitRepair();
    program.lose({1 - GetParam().server, How::kKilled});
    if (!program.all(1)) return 1;
    program.writeAll(2);
    return program.all(2) ? 0 : 2;
  }));
}

TEST_P(MirroredMemory, IsRepairedWhilePagesComeAndGo) {
  expectRepaired(inProcess([] {
    Program program(Spare::kOne);
    std::atomic<bool> stop{false};
    std::atomic<int> wrong{0};
    std::thread threads[2];
    std::atomic<uint64_t> rounds[2] = {};
    for (uint64_t t = 0; t < 2; ++t) {
      threads[t] = std::thread([&, t] {
        for (uint64_t version = 1; !stop; ++version, ++rounds[t]) {
          for (uint64_t page = t; page < kPages; page += 2) {
            wrong += !program.has(page, version - 1);
            program.write(page, version);
          }
        }
      });
    }
    program.lose(GetParam());
    program.awaitRepair();
    program.lose({1 - GetParam().server, How::kKilled});
    const uint64_t then[] = {rounds[0], rounds[1]};
    while (rounds[0] < then[0] + 3 || rounds[1] < then[1] + 3) std::this_thread::yield();
    stop = true;
    for (std::thread& thread : threads) thread.join();
    return wrong == 0 ? 0 : 1;
  }));
}

/// One child from before the loss, one from the time of the repair.
TEST_P(MirroredMemory, ChildrenHaveTheNewCopyToo) {
  expectRepaired(inProcess([] {
    Program program(Spare::kOne);
    int repaired[2];
    if (pipe(repaired) != 0) return 1;
    const auto child = [&] {
      const pid_t made = fork();
      if (made != 0) return made;
      alarm(100);
      char byte = 0;
      // Some pages and connections of its own, and the rest once the last of the two is gone.
      for (uint64_t page = 0; page < kPages; page += 7) program.write(page, 5);
      if (read(repaired[0], &byte, 1) != 1) _exit(2);
      for (uint64_t page = 0; page < kPages; ++page) {
        if (!program.has(page, page % 7 == 0 ? 5 : 0)) _exit(3);
      }
      program.writeAll(6);
      _exit(program.all(6) ? 0 : 4);
    };
    pid_t children[2] = {child(), 0};
    program.lose(GetParam());
    while (!program.beingRepaired()) {
      if (!program.all(0)) return 5;
    }
    children[1] = child();
    program.awaitRepair();
    program.lose({1 - GetParam().server, How::kKilled});
    if (!program.all(0)) return 6;
    if (write(repaired[1], "..", 2) != 2) return 7;
    program.writeAll(7);
    for (const pid_t one : children) {
      int status = 0;
      if (waitpid(one, &status, 0) != one || status != 0) return 10 + WEXITSTATUS(status);
    }
    return program.all(7) ? 0 : 8;
  }));
}

INSTANTIATE_TEST_SUITE_P(Servers, MirroredMemory,
                         testing::Values(Loss{0, How::kKilled}, Loss{1, How::kKilled},
                                         Loss{0, How::kHangs}, Loss{1, How::kHangs}),
                         nameOf);

}  // namespace
}  // namespace tidepool
