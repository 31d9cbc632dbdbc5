// SPDX-License-Identifier: Apache-2.0
// Pages that a stream has left behind go to a fetch tier, unless they have a home in a direct tier
// by the time that they are moved: between the choice and the move the fault service may give them
// one.
#include <sys/syscall.h>

#include <fstream>
#include <string>
#include <thread>

#include "runtime/migrate/evict/evictor.h"
#include "tests/migrate/direct_core.h"
#include "tests/migrate/stalling_tier.h"

namespace tidepool {
namespace {

class BehindStreams : public DirectCoreTest {};

/// Waits until the thread sleeps: everything it could wait for but one lock is free.
void awaitAsleep(pid_t thread) {
  const std::string path = "/proc/self/task/" + std::to_string(thread) + "/stat";
  for (std::string line; line.find(") S ") == std::string::npos;) {
    std::ifstream file(path);
    std::getline(file, line);
  }
}

TEST_F(BehindStreams, APageThatWasGivenAHomeMeanwhileKeepsIt) {
  auto direct = DirectFileTier::createEmulated(Bytes(8 * kMiB));
  ASSERT_TRUE(direct);
  ASSERT_NO_FATAL_FAILURE(build(std::move(*direct), PageCount(2048)));
  core_.tiers.add(std::make_unique<StallingTier>("fetch"));
  auto staging = Staging::create(*core_.port);
  auto evictor = Evictor::create(core_, **staging, *policy_);
  ASSERT_TRUE(staging && evictor);
  const uintptr_t address = allocate(1);
  const PageIndex page = core_.space->pageAt(address);
  const GranuleIndex granule = granuleOf(page);
  // Direct at first, then local for good: as a page that no tier knows.
  ASSERT_TRUE(placeFar(granule));
  memset(reinterpret_cast<void*>(address), 7, kPageSize);
  promote(page, 1);
  const PageWord with_home = core_.space->word(page);
  ASSERT_TRUE(with_home.has(kFlagShadow));
  const PageWord alone(PageState::kLocal, 0, 0, 0);
  change(page, with_home, alone);
  {
    MutexLock lock(policy_->mutex());
    policy_->chooser().onGivenUp(page);
    policy_->chooser().streams().giveUp({page, PageCount(1)});
  }
  std::atomic<pid_t> thread{0};
  std::thread migrator;
  {
    const GranuleLock locked(*core_.space, granule);
    migrator = std::thread([&] {
      thread = static_cast<pid_t>(syscall(SYS_gettid));
      (*evictor)->start(PageCount(1));
    });
    while (thread == 0) std::this_thread::yield();
    awaitAsleep(thread);
    // As GranuleHomes::adopt() does.
    ASSERT_TRUE(core_.space->change(locked, page, alone, with_home));
  }
  migrator.join();
  EXPECT_EQ(core_.space->word(page), with_home);
  EXPECT_EQ((*evictor)->inStaging(), PageCount());
}

}  // namespace
}  // namespace tidepool
