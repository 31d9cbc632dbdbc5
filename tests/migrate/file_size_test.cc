// SPDX-License-Identifier: Apache-2.0
#include "runtime/os/file_size.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstring>

#include "runtime/base/log.h"
#include "runtime/migrate/core/tree_account.h"
#include "runtime/os/memory.h"
#include "runtime/stats/stats_region.h"
#include "runtime/tier/frame_table.h"

namespace tidepool {
namespace {

/// Runs `body` in a child whose files may be of `most` bytes; true if it returns true and nothing
/// ends it.
template <typename Body>
bool holdsUnder(rlim_t most, Body body) {
  const pid_t child = fork();
  if (child == 0) {
    const rlimit limit{most, most};
    if (setrlimit(RLIMIT_FSIZE, &limit) != 0) _exit(2);
    _exit(body() ? 0 : 1);
  }
  int status = -1;
  return waitpid(child, &status, 0) == child && status == 0;
}

TEST(FileSize, IsRefusedWithoutASignal) {
  EXPECT_TRUE(holdsUnder(kMiB, [] {
    const int fd = memfd_create("limited", 0);
    sigset_t pending;
    if (os::largestFile() != Bytes(kMiB) || !os::setFileSize(fd, Bytes(kMiB))) return false;
    if (os::setFileSize(fd, Bytes(kMiB + 1)) || errno != EFBIG) return false;
    if (strstr(os::fileLimitAdvice(errno), "ulimit -f") == nullptr) return false;
    return sigpending(&pending) == 0 && sigismember(&pending, SIGXFSZ) == 0;
  }));
}

TEST(FileSize, SignalsOfTheProgramStay) {
  EXPECT_TRUE(holdsUnder(kMiB, [] {
    const int fd = memfd_create("limited", 0);
    sigset_t own, pending, mask;
    sigemptyset(&own);
    sigaddset(&own, SIGXFSZ);
    sigprocmask(SIG_BLOCK, &own, nullptr);
    raise(SIGXFSZ);
    if (os::setFileSize(fd, Bytes(kGiB))) return false;
    sigpending(&pending);
    sigprocmask(SIG_SETMASK, nullptr, &mask);
    return sigismember(&pending, SIGXFSZ) == 1 && sigismember(&mask, SIGXFSZ) == 1;
  }));
}

TEST(FileSize, MessagesSaySo) {
  EXPECT_TRUE(holdsUnder(kMiB, [] {
    const auto file = os::createMemfd("limited", Bytes(kGiB));
    return !file && strstr(file.error().text(), "RLIMIT_FSIZE") != nullptr;
  }));
}

/// A line of ours that has nowhere to go ends nobody.
TEST(FileSize, LogLinesRaiseNoSignal) {
  EXPECT_TRUE(holdsUnder(0, [] {
    int ends[2];
    if (pipe(ends) != 0) return false;
    close(ends[0]);
    dup2(ends[1], STDERR_FILENO);
    logLine("to a pipe that nobody reads");
    dup2(memfd_create("full", 0), STDERR_FILENO);
    logLine("to a file that may not grow");
    return true;
  }));
}

TEST(FileSize, StatisticsAndAccountsDoWithout) {
  EXPECT_TRUE(holdsUnder(0, [] {
    const auto stats = StatsRegion::create("managed");
    auto account = TreeAccount::open();
    return stats && stats->fd() == -1 && stats->page().pid == static_cast<uint32_t>(getpid()) &&
           account && (*account)->enter();
  }));
  EXPECT_TRUE(holdsUnder(3 * kPageSize, [] {
    auto account = TreeAccount::open();
    return account && (*account)->enter();
  }));
}

/// The table is as large as it will ever be when it is made: a fork needs nothing more.
TEST(FileSize, TablesOfFramesForkUnderAnyLimit) {
  auto table = FrameTable::create(PageCount(1000));
  ASSERT_TRUE(table.has_value());
  ASSERT_TRUE((*table)->allocate(PageCount(10)).has_value());
  EXPECT_TRUE(holdsUnder(0, [&] {
    for (int i = 0; i < 20; ++i) {
      if (!(*table)->beforeFork()) return false;
      (*table)->afterForkInParent();
    }
    return true;
  }));
}

TEST(FileSize, TablesOfFramesTakeWhatThereIs) {
  const PageCount frames(1000);
  const Bytes least = FrameTable::smallestFile(frames);
  EXPECT_TRUE(holdsUnder(least.value(), [&] {
    auto table = FrameTable::create(frames);
    // For this process alone: there is no slot for another.
    return table && (*table)->allocate(PageCount(10)) && !(*table)->beforeFork();
  }));
  EXPECT_TRUE(holdsUnder(least.value() + 20 * kPageSize, [&] {
    auto table = FrameTable::create(frames);
    return table && (*table)->beforeFork();
  }));
  EXPECT_TRUE(holdsUnder(least.value() - 1, [&] {
    const auto table = FrameTable::create(frames);
    return !table && strstr(table.error().text(), "RLIMIT_FSIZE") != nullptr;
  }));
}

}  // namespace
}  // namespace tidepool
