// SPDX-License-Identifier: Apache-2.0
// Whatever is asked of the waker is done, soon or by the migrator's second look, also when its own
// thread does not get to run.
#include "runtime/migrate/fault/waker.h"

#include <gtest/gtest.h>
#include <sched.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <chrono>
#include <functional>
#include <thread>
#include <vector>

namespace tidepool {
namespace {

constexpr uintptr_t kBase = uintptr_t{1} << 40;

/// Counts the wakes of each page; nothing else is asked of it.
class CountingPort final : public FaultPort {
 public:
  explicit CountingPort(size_t pages) : woken_(pages) {}
  void wake(uintptr_t address, Bytes size) override {
    for (uint64_t at = 0; at < size.value(); at += kPageSize) {
      ++woken_[(address + at - kBase) / kPageSize];
    }
    if (on_wake) on_wake();
  }
  std::function<void()> on_wake;
  uint64_t woken(size_t page) const { return woken_[page].load(); }

  Result<std::unique_ptr<FaultPort>> reopen() const override {
    return fail(ErrorCode::kUnsupported, "not asked for");
  }
  Status arm(uintptr_t, Bytes) override { return {}; }
  Status disarm(uintptr_t, Bytes) override { return {}; }
  PortResult copy(uintptr_t, const std::byte*, Bytes, Wake, Arm) override { return {}; }
  PortResult move(uintptr_t, uintptr_t, Bytes, Wake) override { return {}; }
  Status poison(uintptr_t, Bytes) override { return {}; }
  Status writeProtect(uintptr_t, Bytes, Wake) override { return {}; }
  size_t read(std::span<MissingFault>) override { return 0; }
  int fd() const override { return -1; }
  bool canMove() const override { return true; }
  bool tracksWrites() const override { return true; }
  bool canPoison() const override { return true; }

 private:
  std::vector<std::atomic<uint64_t>> woken_;
};

uintptr_t pageAt(size_t page) { return kBase + page * kPageSize; }

int currentCpu() { return sched_getcpu(); }

/// Waits until the page was woken, as a thread of the program would; false after ten seconds.
bool arrives(const CountingPort& port, size_t page) {
  const MonotonicClock clock;
  const Nanoseconds end = clock.now() + Nanoseconds(10'000'000'000);
  while (port.woken(page) == 0) {
    if (clock.now() > end) return false;
    std::this_thread::yield();
  }
  return true;
}

TEST(Waker, WakesAtOnceWhenItsCallerIsNotBound) {
  CountingPort port(8);
  Waker waker(port);
  ASSERT_TRUE(waker.start());
  waker.wake(pageAt(2), PageCount(3), MonotonicClock().now());
  for (size_t page = 0; page < 8; ++page) {
    EXPECT_EQ(port.woken(page), page >= 2 && page < 5 ? 1u : 0u) << page;
  }
}

TEST(Waker, EveryPageIsWokenByItsThread) {
  constexpr size_t kPages = 20'000;
  CountingPort port(kPages + 4096);
  Waker waker(port);
  ASSERT_TRUE(waker.start());
  const MonotonicClock clock;
  for (size_t page = 0; page < kPages; ++page) {
    if (page % 1000 == 0) waker.follow(currentCpu());
    waker.wake(pageAt(page), PageCount(page % 7 == 0 ? 4096 : 1), clock.now());
    // Bursts of up to more than the queue holds, and waits between them.
    if (page % 90 == 89) {
      ASSERT_TRUE(arrives(port, page)) << page;
    }
  }
  for (size_t page = 0; page < kPages; ++page) ASSERT_TRUE(arrives(port, page)) << page;
}

/// Keeps a processor busy, so that no SCHED_IDLE thread gets to run there but for a moment now and
/// then.
class Hog {
 public:
  explicit Hog(int cpu) {
    for (std::thread& thread : threads_) {
      thread = std::thread([this, cpu] {
        cpu_set_t set;
        CPU_ZERO(&set);
        CPU_SET(static_cast<size_t>(cpu), &set);
        sched_setaffinity(0, sizeof set, &set);
        ++running_;
        while (!stop_) {
        }
      });
    }
    while (running_ < static_cast<int>(threads_.size())) std::this_thread::yield();
  }
  ~Hog() {
    stop_ = true;
    for (std::thread& thread : threads_) thread.join();
  }

 private:
  std::array<std::thread, 2> threads_;
  std::atomic<bool> stop_{false};
  std::atomic<int> running_{0};
};

TEST(Waker, TheMigratorDoesWhatIsOverdue) {
  constexpr size_t kPages = 300;
  CountingPort port(kPages);
  Waker waker(port);
  ASSERT_TRUE(waker.start());
  const MonotonicClock clock;
  std::atomic<bool> stop{false};
  std::thread migrator([&] {
    while (!stop) {
      waker.wakeOverdue(clock.now());
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  });
  const int cpu = currentCpu();
  while (waker.follow(cpu), waker.bound() != cpu) std::this_thread::yield();
  {
    const Hog hog(cpu);
    for (size_t page = 0; page < kPages; ++page) {
      waker.wake(pageAt(page), PageCount(1), clock.now());
      ASSERT_TRUE(arrives(port, page)) << page;
    }
  }
  stop = true;
  migrator.join();
}

/// Lets one thread wait for another, asleep.
class Bell {
 public:
  void ring() {
    const uint64_t one = 1;
    EXPECT_EQ(write(fd_.get(), &one, sizeof one), static_cast<ssize_t>(sizeof one));
  }
  void wait() {
    uint64_t rung;
    EXPECT_EQ(read(fd_.get(), &rung, sizeof rung), static_cast<ssize_t>(sizeof rung));
  }

 private:
  UniqueFd fd_{eventfd(0, EFD_CLOEXEC)};
};

/// How many of a thousand wakes say that the thread went elsewhere, when it is bound to `cpu`.
int strayedOf(int waker_cpu, int cpu) {
  constexpr int kTimes = 1000;
  CountingPort port(1);
  Bell page, served;
  port.on_wake = [&] { page.ring(); };
  Waker waker(port);
  EXPECT_TRUE(waker.start());
  while (waker.follow(waker_cpu), waker.bound() != waker_cpu) std::this_thread::yield();
  std::thread program([&] {
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(static_cast<size_t>(cpu), &set);
    EXPECT_EQ(sched_setaffinity(0, sizeof set, &set), 0);
    for (int i = 0; i < kTimes; ++i) {
      page.wait();
      served.ring();
    }
  });
  int strayed = 0;
  for (int i = 0; i < kTimes; ++i) {
    waker.wake(pageAt(0), PageCount(1), MonotonicClock().now());
    served.wait();
    strayed += waker.strayed() ? 1 : 0;
  }
  program.join();
  return strayed;
}

TEST(Waker, KnowsWhoGoesOnWhereItIsAndWhoDoesNot) {
  cpu_set_t allowed;
  ASSERT_EQ(sched_getaffinity(0, sizeof allowed, &allowed), 0);
  std::vector<int> cpus;
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (CPU_ISSET(static_cast<size_t>(cpu), &allowed)) cpus.push_back(cpu);
  }
  // Others on the machine may delay it, so it is a hint; but not one of those that are always
  // wrong.
  EXPECT_LT(strayedOf(cpus[0], cpus[0]), 900);
  if (cpus.size() > 1) {
    EXPECT_GT(strayedOf(cpus[0], cpus[1]), 100);
  }
}

TEST(Waker, StopsWithWorkLeft) {
  CountingPort port(64);
  {
    Waker waker(port);
    ASSERT_TRUE(waker.start());
    waker.follow(currentCpu());
    for (size_t page = 0; page < 64; ++page) {
      waker.wake(pageAt(page), PageCount(1), MonotonicClock().now());
    }
  }
  for (size_t page = 0; page < 64; ++page) EXPECT_GT(port.woken(page), 0u) << page;
}

}  // namespace
}  // namespace tidepool
