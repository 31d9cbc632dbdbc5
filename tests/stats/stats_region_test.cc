// SPDX-License-Identifier: Apache-2.0
// The page as memory: found by pid from outside, refused when it is not what it seems, shared with
// writers in other threads.
#include "runtime/stats/stats_region.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <string>
#include <thread>
#include <vector>

#include "tests/stats/live_child.h"

namespace tidepool {
namespace {

using testing::HasSubstr;

/// Keeps a region alive until the process ends.
void publish() {
  auto* region = new StatsRegion(*StatsRegion::create("managed"));
  region->page().promotions = 77;
}

TEST(StatsRegion, IsReadableFromAnotherProcess) {
  const LiveChild child(publish);
  const auto view = StatsView::open(child.pid());
  ASSERT_TRUE(view) << view.error().text();
  EXPECT_EQ(view->page().pid, static_cast<uint32_t>(child.pid()));
  EXPECT_EQ(view->page().promotions.load(), 77u);
  EXPECT_STREQ(view->page().mode, "managed");
  EXPECT_STREQ(view->page().program, program_invocation_short_name);
}

TEST(StatsRegion, TheViewFollowsTheWriter) {
  const auto region = StatsRegion::create("degraded");
  ASSERT_TRUE(region);
  const auto view = StatsView::open(getpid());
  ASSERT_TRUE(view) << view.error().text();
  region->page().demotions.fetch_add(5);
  EXPECT_EQ(view->page().demotions.load(), 5u);
}

TEST(StatsView, SaysWhyThereIsNothingToRead) {
  // Beyond the largest pid_max that Linux allows.
  const auto absent = StatsView::open(4'194'305);
  ASSERT_FALSE(absent);
  EXPECT_EQ(absent.error().code(), ErrorCode::kNotFound);
  EXPECT_THAT(absent.error().text(), HasSubstr("no process 4194305"));
  EXPECT_EQ(StatsView::open(-1).error().code(), ErrorCode::kInvalidArgument);
  EXPECT_EQ(StatsView::open(0).error().code(), ErrorCode::kInvalidArgument);

  const LiveChild plain([] {});
  const auto other = StatsView::open(plain.pid());
  ASSERT_FALSE(other);
  EXPECT_EQ(other.error().code(), ErrorCode::kUnsupported);
  EXPECT_THAT(other.error().text(), HasSubstr("not started by `tidepool run`"));
}

TEST(StatsView, RefusesAPageThatIsOnlyInherited) {
  const auto region = StatsRegion::create("managed");
  const LiveChild child([] {});
  const auto view = StatsView::open(child.pid());
  ASSERT_FALSE(view);
  EXPECT_THAT(view.error().text(), HasSubstr("only inherited"));
}

TEST(StatsView, FindsTheChildsOwnPageBesideAnInheritedOne) {
  const auto region = StatsRegion::create("managed");
  const LiveChild child(publish);
  const auto view = StatsView::open(child.pid());
  ASSERT_TRUE(view) << view.error().text();
  EXPECT_EQ(view->page().pid, static_cast<uint32_t>(child.pid()));
}

/// A memfd of the right name with chosen contents; sealed or not.
void impostor(size_t size, unsigned seals, uint64_t magic, uint32_t schema) {
  const int fd = memfd_create(kStatsMemfdName, MFD_ALLOW_SEALING);
  if (ftruncate(fd, static_cast<off_t>(size)) != 0) _exit(1);
  if (size >= sizeof(StatsPage)) {
    void* address = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    auto* page = static_cast<StatsPage*>(address);
    page->pid = static_cast<uint32_t>(getpid());
    page->schema = schema;
    page->magic = magic;
  }
  if (fcntl(fd, F_ADD_SEALS, seals) != 0) _exit(1);
}

TEST(StatsView, RefusesImpostors) {
  const size_t size = roundUp(sizeof(StatsPage), kPageSize);
  const struct {
    size_t size;
    unsigned seals;
    uint64_t magic;
    uint32_t schema;
    const char* reason;
  } cases[] = {
      {100, F_SEAL_SHRINK, 0, 0, "not a statistics page"},
      // Unsealed: its owner could shrink it under us and so kill the reader.
      {size, F_SEAL_GROW, kStatsMagic, kStatsSchema, "not a statistics page"},
      {size, F_SEAL_SHRINK, kStatsMagic + 1, kStatsSchema, "not filled in"},
      {size, F_SEAL_SHRINK, kStatsMagic, kStatsSchema + 1, "another version"},
  };
  for (const auto& one : cases) {
    const LiveChild child([&] { impostor(one.size, one.seals, one.magic, one.schema); });
    const auto view = StatsView::open(child.pid());
    ASSERT_FALSE(view) << one.reason;
    EXPECT_THAT(view.error().text(), HasSubstr(one.reason));
  }
}

TEST(StatsView, NeedsPermission) {
  if (geteuid() != 0) GTEST_SKIP() << "needs root to become two other users";
  const LiveChild child([] {
    if (setuid(60001) != 0) _exit(1);
    publish();
  });
  const LiveChild reader([&] {
    if (setuid(60002) != 0) _exit(1);
    const auto view = StatsView::open(child.pid());
    if (view || view.error().code() != ErrorCode::kPermission) _exit(1);
  });
  EXPECT_EQ(kill(reader.pid(), 0), 0);
}

TEST(StatsErrors, ConcurrentWritersNeverBreakALine) {
  const auto region = StatsRegion::create("managed");
  ASSERT_TRUE(region);
  StatsPage& page = region->page();
  constexpr int kThreads = 4;
  constexpr int kLines = 2000;
  std::atomic<bool> done{false};
  std::thread reader([&] {
    char line[256];
    while (!done.load()) {
      for (int slot = 0; slot < kMaxErrors; ++slot) {
        readStatsError(page, slot, line);
        ASSERT_LT(strlen(line), sizeof line);
      }
    }
  });
  std::vector<std::thread> writers;
  for (int i = 0; i < kThreads; ++i) {
    writers.emplace_back([&page, i] {
      for (int n = 0; n < kLines; ++n) addStatsError(page, "%0*d", (i + 1) * 100, n);
    });
  }
  for (std::thread& writer : writers) writer.join();
  done = true;
  reader.join();
  EXPECT_EQ(page.error_count.load(), static_cast<uint64_t>(kThreads) * kLines);
}

TEST(StatsTables, AFullTableRefusesMore) {
  const auto region = StatsRegion::create("managed");
  for (int i = 0; i < kMaxSources; ++i) {
    ASSERT_NE(addStatsSource(region->page(), std::string(99, 's').c_str()), nullptr);
  }
  EXPECT_EQ(addStatsSource(region->page(), "one more"), nullptr);
  EXPECT_EQ(strlen(region->page().sources[0].source), sizeof(SampleStats::source) - 1);
}

}  // namespace
}  // namespace tidepool
