// SPDX-License-Identifier: Apache-2.0
// Moves between the space and direct tiers in which a call to the kernel fails: every page is where
// it was, with its bytes, and nobody is left waiting for it. On the test's own thread.
#include <fcntl.h>
#include <gtest/gtest.h>

#include "runtime/base/raw_calls.h"
#include "runtime/migrate/direct/access_watch.h"
#include "runtime/migrate/direct/strays.h"
#include "runtime/os/numa.h"
#include "runtime/tier/numa_tier.h"
#include "tests/migrate/fake_core.h"
#include "tests/migrate/whole_granules_fixture.h"

namespace tidepool {
namespace {

constexpr uint64_t kRun = 64;  // pages

class FailedMovesTest : public FakeCoreTest {
 protected:
  void SetUp() override {
    ASSERT_NO_FATAL_FAILURE(FakeCoreTest::SetUp());
    auto barrier = openKernelWriteBarrier();
    ASSERT_TRUE(barrier);
    core_.barrier = std::move(*barrier);
    first_ = allocate();
    ASSERT_NO_FATAL_FAILURE(makeLocal(first_, kRun));
  }
  static std::unique_ptr<DirectFileTier> pool() {
    auto tier = DirectFileTier::createEmulated(Bytes(8 * kMiB));
    EXPECT_TRUE(tier);
    return std::move(*tier);
  }
  void addPool() { core_.tiers.add(pool()); }

  uint64_t demote() {
    const GranuleLock granule(*core_.space, granuleOf(first_));
    return mover_->demoter.demote(granule, first_, kRun);
  }
  size_t promote() {
    const Promoter::Run run{first_, kRun};
    const GranuleLock granule(*core_.space, granuleOf(first_));
    return mover_->promoter.promote(granule, {&run, 1});
  }
  bool bringInAll() {
    const GranuleLock granule(*core_.space, granuleOf(first_));
    return mover_->promoter.bringInAll(granule, first_, first_ + kRun);
  }
  void demoteAll() {
    addPool();
    ASSERT_EQ(demote(), kRun);
    ASSERT_NO_FATAL_FAILURE(expectDirect());
  }

  void expectLocal() {
    for (PageIndex page = first_; page < first_ + kRun; ++page) {
      ASSERT_EQ(state(page), PageState::kLocal);
      ASSERT_EQ(load(page), page.value());
      ASSERT_FALSE(kernel_.armed(addressOf(page))) << "a writer would wait";
    }
    EXPECT_EQ(held(), kRun);
  }
  void expectDirect() {
    for (PageIndex page = first_; page < first_ + kRun; ++page) {
      ASSERT_EQ(state(page), PageState::kDirect);
      ASSERT_EQ(*reinterpret_cast<volatile uint64_t*>(addressOf(page)), page.value());
      ASSERT_FALSE(writerWaits(page));
    }
    EXPECT_EQ(held(), 0u);
  }
  /// By the kernel's word: the page is write-protected.
  bool writerWaits(PageIndex page) const {
    uint64_t entry = 0;
    EXPECT_EQ(pread(pagemap_.get(), &entry, sizeof entry,
                    static_cast<off_t>(addressOf(page) / kPageSize * sizeof entry)),
              ssize_t{sizeof entry});
    return (entry >> 57 & 1) != 0;
  }

  UniqueFd pagemap_{open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC)};
  PageIndex first_;
};

TEST_F(FailedMovesTest, APageThatCannotLeaveTheSpaceKeepsTheWholeRunThere) {
  addPool();
  kernel_.fail(Call::kMove, 1, PortOutcome::kBusy, PageCount(3));
  EXPECT_EQ(demote(), 0u);
  expectLocal();
  EXPECT_EQ(demote(), kRun);
  expectDirect();
}

TEST_F(FailedMovesTest, WhereTheKernelMovesNoPagesAFailedCopyLeavesThemLocal) {
  addPool();
  kernel_.can_move = false;
  kernel_.fail(Call::kReadPages, 1, PortOutcome::kBusy, PageCount(kRun - 1));
  EXPECT_EQ(demote(), 0u);
  expectLocal();
  kernel_.fail(Call::kWriteProtect);
  EXPECT_EQ(demote(), 0u);
  expectLocal();
  kernel_.may_pin = true;
  EXPECT_EQ(demote(), 0u);
  expectLocal();
  kernel_.may_pin = false;
  EXPECT_EQ(demote(), kRun);
  expectDirect();
}

TEST_F(FailedMovesTest, APromotionThatFailsLeavesTheTierMapped) {
  ASSERT_NO_FATAL_FAILURE(demoteAll());
  for (const Call call : {Call::kMapFresh, Call::kMoveMapping}) {
    kernel_.fail(call);
    EXPECT_EQ(promote(), 0u);
    expectDirect();
    kernel_.fail(call);
    EXPECT_FALSE(bringInAll());
    expectDirect();
  }
  EXPECT_EQ(promote(), 1u);
  expectLocal();
}

TEST_F(FailedMovesTest, RightsThatCannotBeGivenLeaveTheTierMapped) {
  ASSERT_NO_FATAL_FAILURE(demoteAll());
  ASSERT_TRUE(ranges_->protect(addressOf(first_), Bytes(kRun * kPageSize), PROT_READ));
  kernel_.fail(Call::kProtect);
  EXPECT_FALSE(bringInAll());
  expectDirect();
  EXPECT_TRUE(bringInAll());
  EXPECT_EQ(held(), kRun);
}

TEST_F(FailedMovesTest, APoisonThatCannotBePutInPlaceIsAHole) {
  ASSERT_NO_FATAL_FAILURE(demoteAll());
  kernel_.fail(Call::kMoveMapping);
  {
    const GranuleLock granule(*core_.space, granuleOf(first_));
    MutexLock lock(mover_->transfer.mutex());
    mover_->transfer.poison(granule, first_, kRun);
  }
  EXPECT_EQ(state(first_), PageState::kLost);
  std::byte page[kPageSize];
  EXPECT_EQ(realKernel().readPages(page, addressOf(first_), PageCount(1)), PageCount());
}

TEST_F(FailedMovesTest, AGranuleGoesToATierAsAWholeOrNotAtAll) {
  auto whole = std::make_unique<WholeTier>(pool());
  WholeTier& tier = *whole;
  core_.tiers.add(std::move(whole));
  // In two runs, of which the first has left when the second cannot.
  const PageIndex apart = first_ + 2 * kRun;
  ASSERT_NO_FATAL_FAILURE(makeLocal(apart, 1));
  kernel_.fail(Call::kMove, 2);
  const GranuleLock granule(*core_.space, granuleOf(first_));
  EXPECT_FALSE(mover_->demoter.placeFar(granule, first_));
  EXPECT_EQ(state(apart), PageState::kLocal);
  EXPECT_EQ(load(apart), apart.value());
  core_.budget.discharge(PageCount(1));
  expectLocal();
  core_.budget.charge(PageCount(1));
  EXPECT_EQ(tier.used(), Bytes());
  EXPECT_TRUE(mover_->demoter.placeFar(granule, first_));
  EXPECT_EQ(tier.used(), Bytes(kGranuleSize));
  expectDirect();
}

TEST_F(FailedMovesTest, WhatCannotBeMovedAsideIsWatchedInPlace) {
  ASSERT_NO_FATAL_FAILURE(demoteAll());
  auto watch = AccessWatch::create(core_);
  ASSERT_TRUE(watch);
  const GranuleLock granule(*core_.space, granuleOf(first_));
  kernel_.fail(Call::kMoveMapping);
  (*watch)->open(0, granule, placesOf(*core_.space, granule));
  expectDirect();
  EXPECT_EQ((*watch)->close(0, granule).watched.direct.count(), kRun);
  expectDirect();
}

TEST_F(FailedMovesTest, WhatCannotBeMovedBackIsMappedAnew) {
  ASSERT_NO_FATAL_FAILURE(demoteAll());
  auto watch = AccessWatch::create(core_);
  ASSERT_TRUE(watch);
  const GranuleLock granule(*core_.space, granuleOf(first_));
  (*watch)->open(0, granule, placesOf(*core_.space, granule));
  kernel_.fail(Call::kMoveMapping);
  EXPECT_EQ((*watch)->close(0, granule).watched.direct.count(), 0u);
  expectDirect();
}

TEST_F(FailedMovesTest, StraysThatCannotBeMovedAreAskedForAgain) {
  os::NumaNodes nodes = os::readNumaNodes();
  nodes.nodes[1] = {1, false, Bytes(kGiB), Bytes(), 20, {}};
  nodes.count = 2;
  auto tier = NumaTier::open(nodes.nodes[0].number, nodes);
  ASSERT_TRUE(tier) << tier.error().text();
  core_.tiers.add(std::move(*tier));
  constexpr Nanoseconds kSecond(1'000'000'000);
  Strays strays(core_);
  kernel_.fail(Call::kNodesOf);
  strays.tick(kSecond);
  EXPECT_EQ(core_.stats->strayed_pages, 0u);
  kernel_.fail(Call::kMovePages);
  strays.tick(kSecond * 2);
  EXPECT_EQ(core_.stats->strayed_pages, kRun);
  EXPECT_EQ(core_.stats->returned_pages, 0u);
  expectLocal();
  strays.tick(kSecond * 3);
  EXPECT_EQ(core_.stats->returned_pages, kRun);
  expectLocal();
}

}  // namespace
}  // namespace tidepool
