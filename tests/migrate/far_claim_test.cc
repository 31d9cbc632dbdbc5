// SPDX-License-Identifier: Apache-2.0
// Reads from far memory that end late, or never: while one is under way the program discards its
// page, fills it anew, and the page leaves for another tier, into a frame of the same number. What
// arrives then is nobody's, and its frame is free again.
#include <gtest/gtest.h>
#include <poll.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <iterator>
#include <thread>
#include <vector>

#include "runtime/migrate/evict/advice.h"
#include "runtime/migrate/evict/evictor.h"
#include "runtime/migrate/fabric/evacuator.h"
#include "runtime/migrate/fault/fault_service.h"
#include "runtime/migrate/range_ops.h"
#include "runtime/stats/stats_region.h"
#include "tests/migrate/stalling_tier.h"

namespace tidepool {
namespace {

constexpr uint64_t kFresh = 16;  // pages that the service fills at the first touch of a granule

/// The runtime's parts over two such tiers. The fault service has its thread; what the migrator's
/// would do is done here.
class LateReads : public testing::Test {
 protected:
  void SetUp() override {
    auto region = StatsRegion::create("managed");
    ASSERT_TRUE(region);
    stats_.emplace(std::move(*region));
    core_.stats = &stats_->page();
    auto port = openKernelFaultPort(MovePolicy::kIfSupported);
    auto space = ManagedSpace::create(Bytes(kGiB));
    ASSERT_TRUE(port && space);
    core_.port = std::move(*port);
    core_.space = std::move(*space);
    core_.options.prefetch = false;
    for (StallingTier** tier : {&first_, &second_}) {
      auto made = std::make_unique<StallingTier>(tier == &first_ ? "first" : "second");
      *tier = made.get();
      core_.tiers.add(std::move(made));
    }
    ASSERT_TRUE(core_.need_memory.open() && core_.freed_memory.open());
    VictimConfig config;
    config.capacity = PageCount(4096);
    core_.budget.setLimit(config.capacity);
    policy_ = std::move(*SharedPolicy::create(config, PageCount(core_.space->pageEnd().value())));
    staging_ = std::move(*Staging::create(*core_.port));
    mover_ = std::move(*GranuleMover::create(core_));
    ranges_ = std::make_unique<RangeOps>(core_, *policy_, *mover_);
    waker_ = std::make_unique<Waker>(*core_.port);
    evictor_ = std::move(*Evictor::create(core_, *staging_, *policy_));
    evacuator_ = std::move(*Evacuator::create(core_, *mover_));
    faults_ = std::move(*FaultService::create(core_, *staging_, *policy_, *mover_, *waker_));
    ASSERT_TRUE(waker_->start() && faults_->start());
    const auto address = ranges_->allocate(Bytes(kGranuleSize), Bytes(kGranuleSize));
    ASSERT_TRUE(address);
    address_ = *address;
  }
  void TearDown() override {
    if (faults_ != nullptr) faults_->stop();
    if (waker_ != nullptr) waker_->stop();
  }

  volatile uint64_t& word(uint64_t page = 0) const {
    return *reinterpret_cast<volatile uint64_t*>(address_ + page * kPageSize);
  }
  PageWord stateOf(uint64_t page = 0) const {
    return core_.space->word(core_.space->pageAt(address_) + page);
  }
  /// So many local pages leave for that tier.
  void evict(uint8_t tier, uint64_t pages) {
    ASSERT_TRUE(ranges_->place(address_, Bytes(kGranuleSize), Placement::in(tier)));
    ASSERT_EQ(evictor_->start(PageCount(pages)), PageCount(pages));
    while (evictor_->busy()) {
      evictor_->advance();
      evictor_->recycle();
    }
  }
  /// The block that a first touch fills goes to the first tier.
  void evictBlock() {
    word() = 0x1111;
    for (uint64_t page = 1; page < kFresh; ++page) word(page) = page;
    evict(1, kFresh);
  }
  /// As write(2) does: EFAULT where a load would end the program.
  static int readBySystemCall(const volatile uint64_t& from) {
    int ends[2];
    if (pipe(ends) != 0) return -1;
    const ssize_t written = write(ends[1], const_cast<uint64_t*>(&from), sizeof from);
    const int error = written < 0 ? errno : 0;
    close(ends[0]);
    close(ends[1]);
    return error;
  }
  /// Page 0 is in frame 0 of the first tier, beside others; somebody reads it, and waits. Then it
  /// is discarded, filled with `fresh`, goes to frame 0 of the second tier, and is waited for
  /// again. Returns the waiter, which stores what it read.
  std::thread outlive(uint64_t fresh, uint64_t& seen) {
    evictBlock();
    EXPECT_EQ(stateOf(), PageWord(PageState::kFar, 0, 1, 0));
    first_->stall();
    second_->stall();
    std::thread early([this] { EXPECT_EQ(word(), 0u) << "it was discarded"; });
    first_->awaitReads(1);
    EXPECT_TRUE(ranges_->discard(address_, Bytes(kPageSize)));
    early.join();
    word() = fresh;
    evict(2, 1);
    EXPECT_EQ(stateOf(), PageWord(PageState::kFar, 0, 2, 0));
    std::thread late([this, &seen] { seen = word(); });
    second_->awaitReads(1);
    return late;
  }

  std::optional<StatsRegion> stats_;
  Core core_;
  StallingTier* first_ = nullptr;
  StallingTier* second_ = nullptr;
  std::unique_ptr<SharedPolicy> policy_;
  std::unique_ptr<Staging> staging_;
  std::unique_ptr<GranuleMover> mover_;
  std::unique_ptr<RangeOps> ranges_;
  std::unique_ptr<Waker> waker_;
  std::unique_ptr<Evictor> evictor_;
  std::unique_ptr<Evacuator> evacuator_;
  std::unique_ptr<FaultService> faults_;
  uintptr_t address_ = 0;
};

TEST_F(LateReads, OldBytesAreNotInstalledInAPageThatHasLeftForAnotherTier) {
  uint64_t seen = 0;
  std::thread late = outlive(0x2222, seen);
  first_->letEnd();
  while (first_->held() == kFresh) std::this_thread::yield();  // until its frame is given back
  EXPECT_EQ(stateOf().tier(), 2u) << "still on its way from there";
  second_->letEnd();
  late.join();
  EXPECT_EQ(seen, 0x2222u);
  EXPECT_EQ(first_->held(), kFresh - 1);
  // Given back after the page is there.
  while (second_->held() != (stateOf().has(kFlagFarCopy) ? 1u : 0u)) std::this_thread::yield();
}

TEST_F(LateReads, AReadThatIsLostLosesNoPageThatHasLeftForAnotherTier) {
  uint64_t seen = 0;
  std::thread late = outlive(0x2222, seen);
  first_->letEnd(ErrorCode::kLost);
  while (first_->held() == kFresh) std::this_thread::yield();
  second_->letEnd();
  late.join();
  EXPECT_EQ(seen, 0x2222u);
  EXPECT_EQ(core_.stats->lost_pages.load(), 0u);
  EXPECT_EQ(first_->held(), kFresh - 1);
}

TEST_F(LateReads, ALostPageGivesItsFrameBack) {
  evictBlock();
  first_->letEnd(ErrorCode::kLost);
  EXPECT_EQ(readBySystemCall(word()), EFAULT);
  EXPECT_EQ(core_.stats->lost_pages.load(), 1u);
  EXPECT_EQ(first_->held(), kFresh - 1);
  // Discarded by the program it is as good as new, and a drain of the tier comes to its end.
  ASSERT_TRUE(ranges_->discard(address_, Bytes(kPageSize)));
  EXPECT_EQ(word(), 0u);
  first_->close();
  EXPECT_EQ(evacuator_->moveOff(1, Nanoseconds(10'000'000'000)), Evacuator::Progress::kDone);
  EXPECT_TRUE(first_->holdsNothing());
}

TEST_F(LateReads, APageThatWasDiscardedUnderALostReadGivesItsFrameBack) {
  evictBlock();
  first_->stall();
  std::thread early([this] { EXPECT_EQ(word(), 0u); });
  first_->awaitReads(1);
  ASSERT_TRUE(ranges_->discard(address_, Bytes(kGranuleSize)));
  early.join();
  EXPECT_EQ(first_->held(), 1u) << "the read's own";
  first_->letEnd(ErrorCode::kLost);
  while (first_->held() != 0) std::this_thread::yield();
  EXPECT_EQ(core_.stats->lost_pages.load(), 0u);
}

TEST_F(LateReads, ADrainThatReadsADiscardedPageLeavesItsSuccessorAlone) {
  evictBlock();
  first_->during_read = [this] {
    // As another thread of the program may, while the frames are being read.
    std::thread other([this] {
      ASSERT_TRUE(ranges_->discard(address_, Bytes(kPageSize)));
      word() = 0x2222;
    });
    other.join();
    // The drain takes the tier in hand by the granule, and this page is not in it any more.
    EXPECT_EQ(stateOf().state(), PageState::kLocal);
  };
  first_->close();
  EXPECT_EQ(evacuator_->moveOff(1, Nanoseconds(10'000'000'000)), Evacuator::Progress::kDone);
  EXPECT_EQ(word(), 0x2222u);
  EXPECT_EQ(first_->held(), 0u);
  EXPECT_EQ(second_->held(), kFresh - 1);
}

TEST_F(LateReads, ADrainThatLosesADiscardedPageLosesTheOthersAlone) {
  evictBlock();
  first_->read_fails = true;
  first_->during_read = [this] {
    std::thread other([this] { ASSERT_TRUE(ranges_->discard(address_, Bytes(kPageSize))); });
    other.join();
  };
  first_->close();
  EXPECT_EQ(evacuator_->moveOff(1, Nanoseconds(10'000'000'000)), Evacuator::Progress::kDone);
  EXPECT_EQ(word(), 0u);
  EXPECT_EQ(readBySystemCall(word(1)), EFAULT);
  EXPECT_EQ(core_.stats->lost_pages.load(), kFresh - 1);
  EXPECT_EQ(first_->held(), 0u);
}

TEST_F(LateReads, FaultsBeyondTheReadsInFlightWaitForOneToEndAndAskNobodyForMemory) {
  constexpr uint64_t kReaders = 80;  // more than reads are in flight at a time
  constexpr uint64_t kInFlight = 64;
  for (uint64_t page = 0; page < kReaders; ++page) word(page) = page + 1;
  uint64_t local = 0;
  while (stateOf(local).state() == PageState::kLocal) ++local;
  evict(1, local);
  first_->stall();
  core_.need_memory.clear();
  const uint64_t faults_before = core_.stats->faults_missing.load();
  std::vector<std::thread> readers;
  std::atomic<uint64_t> wrong{0};
  for (uint64_t page = 0; page < kReaders; ++page) {
    readers.emplace_back([this, page, &wrong] { wrong += word(page) == page + 1 ? 0 : 1; });
  }
  first_->awaitReads(kInFlight);
  while (core_.stats->faults_missing.load() < faults_before + kReaders) std::this_thread::yield();
  // The service has read all of them; once it has served one more, it has seen to those, too.
  ASSERT_TRUE(ranges_->place(address_, Bytes(kGranuleSize), Placement()));
  word(kPagesPerGranule - 1) = 7;
  EXPECT_FALSE(core_.room.faultsWait()) << "there is room";
  pollfd bell{core_.need_memory.fd(), POLLIN, 0};
  EXPECT_EQ(poll(&bell, 1, 0), 0) << "the migrator has nothing to do for them";
  first_->letEnd();
  for (std::thread& reader : readers) reader.join();
  EXPECT_EQ(wrong, 0u);
}

TEST_F(LateReads, WhatIsBeingReadWhenTheServiceEndsStaysWhereItIs) {
  evictBlock();
  first_->stall();
  Advice advice(core_, *policy_, mover_->demoter);
  advice.willNeed(address_, Bytes(kPageSize));
  first_->awaitReads(1);
  EXPECT_EQ(stateOf().state(), PageState::kFetching);
  faults_.reset();
  EXPECT_EQ(stateOf(), PageWord(PageState::kFar, 0, 1, 0));
  EXPECT_EQ(first_->held(), kFresh);
}

TEST(FarClaimDeathTest, APageThatNobodyEndsIsAFault) {
  Core core;
  core.space = std::move(*ManagedSpace::create(Bytes(kGiB)));
  const PageIndex page(0);
  const GranuleLock granule(*core.space, granuleOf(page));
  const PageWord words[] = {PageWord(), PageWord(PageState::kLocal, 0, 0, 0),
                            PageWord(PageState::kEvicting, 0, 0, 0),
                            PageWord(PageState::kFar, 0, 1, 7)};
  for (size_t i = 1; i < std::size(words); ++i) {
    ASSERT_TRUE(core.space->change(granule, page, words[i - 1], words[i]));
  }
  EXPECT_DEATH(claimFar(core, granule, {page, PageCount(1)}), "empty");
  EXPECT_DEATH(
      {
        FarClaim claim = claimFar(core, granule, {page, PageCount(1)});
        claim = FarClaim();
      },
      "empty");
  EXPECT_TRUE(claimFar(core, granule, {page + 1, PageCount(1)}).empty()) << "it is not far";
}

}  // namespace
}  // namespace tidepool
