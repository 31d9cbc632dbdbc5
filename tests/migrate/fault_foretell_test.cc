// SPDX-License-Identifier: Apache-2.0
// The fault service's reads of pages that are foretold, a turn of its loop at a time: a thread goes
// by an index array of the test's, and the test gives the samples of its faults.
#include <sys/mman.h>

#include <algorithm>
#include <random>
#include <utility>
#include <vector>

#include "tests/migrate/fake_perf_port.h"
#include "tests/migrate/fault_service_fixture.h"

namespace tidepool {
namespace {

constexpr int kThread = 7;
constexpr uint64_t kAtOnce = 16;       // the first of what is foretold at a fault
constexpr uint64_t kTogether = 64;     // at most
constexpr uint64_t kGatherCount = 8;   // that can be under way
constexpr uint64_t kLeft = 16;         // pages of room that are left to faults
constexpr uint64_t kWalked = 1200;     // pages by which the thread's loop is learnt
constexpr uint64_t kIndexStep = 1024;  // elements; more than are looked at ahead

class Walk : public FaultServiceTest {
 protected:
  void SetUp() override {
    FaultServiceTest::SetUp();
    core_.options.foretell = true;
    kernel_.tracks_writes = false;  // no copies stay behind
    other_ = &addTier(PageCount(64), "other");
    addPool();
  }
  void start() { makeService(std::make_unique<FakePerfPort>(threads_)); }
  /// The thread touches the page that element `at` of the index array leads to.
  void askAt(size_t at) {
    const uintptr_t address = core_.space->addressOf(PageIndex(index_[at]));
    FaultSample sample{.code = 0x1234, .address = address + 8, .thread = kThread};
    sample.registers[6] = reinterpret_cast<uint64_t>(&index_[at]);
    if (hole_.valid()) {
      sample.registers[3] = reinterpret_cast<uint64_t>(hole_.data()) + at * kPageSize;
    }
    threads_.latest[kThread] = sample;
    ASSERT_FALSE(kernel_.touch(address, kThread));
    clock_.advance(Nanoseconds(100'000));
    turn();
  }
  /// It goes through far pages in no order; those that were foretold it finds there.
  void walk() {
    const PageIndex first = allocate(3);
    makeFar(first, kWalked);
    for (uint64_t i = 0; i < kWalked; ++i) index_[i] = static_cast<uint32_t>((first + i).value());
    std::shuffle(index_.begin(), index_.begin() + kWalked, std::mt19937_64(4));
    for (size_t i = 0; i < kWalked; ++i) {
      if (present(PageIndex(index_[i]))) continue;
      askAt(i);
      arrive();
    }
    std::fill(index_.begin(), index_.end(), index_[0]);  // it is there
  }

  FakeThreads threads_;
  Mapping hole_;  // where another register points to, if there is one
  FakeTier* other_ = nullptr;
  std::vector<uint32_t> index_ = std::vector<uint32_t>(200 * kIndexStep);
};

TEST_F(Walk, PagesAreForetold) {
  start();
  walk();
  EXPECT_EQ(threads_.opened, 1);
  EXPECT_GT(core_.stats->foretold_pages.load(), kWalked / 2);
}

// What a register points to need not be meant as an address. A read that brought pages in would
// take local memory that nobody uses.
TEST_F(Walk, WhatIsReadToFindOutIsNotBroughtIn) {
  auto hole = Mapping::reserved(Bytes(index_.size() * kPageSize), Bytes(kPageSize));
  ASSERT_TRUE(hole);
  hole_ = std::move(*hole);
  start();
  walk();
  EXPECT_GT(core_.stats->foretold_pages.load(), kWalked / 2);
  std::vector<unsigned char> resident(index_.size());
  ASSERT_EQ(mincore(hole_.data(), hole_.size().value(), resident.data()), 0);
  EXPECT_EQ(std::count(resident.begin(), resident.end(), 0), static_cast<long>(resident.size()));
}

TEST_F(Walk, NoneAreUnlessTheUserSaysSo) {
  core_.options.foretell = false;
  start();
  walk();
  EXPECT_EQ(threads_.opened, 0);
  EXPECT_EQ(core_.stats->foretold_pages.load(), 0u);
}

TEST_F(Walk, NoneAreWhereNothingIsReadAhead) {
  core_.options.prefetch = false;
  start();
  walk();
  EXPECT_EQ(threads_.opened, 0);
}

// ---- Of a thread whose loop is known.

class Foretold : public Walk {
 protected:
  void SetUp() override {
    Walk::SetUp();
    start();
    walk();
    at_ = 2 * kIndexStep;
    const PageIndex first = allocate(2);
    demands_ = first;
    makeFar(first, 1000);
    targets_ = allocate(2);
    makeFar(targets_, 500);
    passOver();
    held_ = held();
  }
  /// Some pages are left out, to see whether they would have been right. From here on the next are
  /// not.
  void passOver() {
    for (int i = 0; i < 300; ++i) {
      const PageIndex page = target();
      know({page});
      arrive();
      if (state(page) == PageState::kFar) return;
    }
    FAIL() << "every page is foretold";
  }
  /// A far page that has not been named yet.
  PageIndex target() { return std::exchange(targets_, targets_ + 1); }
  std::vector<PageIndex> targets(uint64_t count) {
    std::vector<PageIndex> pages;
    for (uint64_t i = 0; i < count; ++i) pages.push_back(target());
    return pages;
  }
  /// The thread touches a far page, which is returned; those that its index leads to next are
  /// `pages`.
  PageIndex know(const std::vector<PageIndex>& pages) {
    const PageIndex demanded = std::exchange(demands_, demands_ + 3);
    at_ += kIndexStep;
    index_[at_] = static_cast<uint32_t>(demanded.value());
    for (size_t i = 0; i < pages.size(); ++i) {
      index_[at_ + 1 + i] = static_cast<uint32_t>(pages[i].value());
    }
    askAt(at_);
    return demanded;
  }
  /// As know(), of new pages.
  std::vector<PageIndex> foretell(uint64_t count) {
    const auto pages = targets(count);
    know(pages);
    return pages;
  }
  /// These are being read together, behind the demanded page.
  void expectTogether(const std::vector<PageIndex>& pages) {
    ASSERT_EQ(tier_->requests().size(), 2u);
    EXPECT_EQ(tier_->requests()[1].scattered, framesOf(pages));
  }
  void arriveDemanded() {
    tier_->end(1);
    turn();
  }
  std::vector<FrameIndex> framesOf(const std::vector<PageIndex>& pages) const {
    std::vector<FrameIndex> frames;
    for (const PageIndex page : pages) frames.push_back(word(page).frame());
    return frames;
  }
  uint64_t countIn(PageState wanted, const std::vector<PageIndex>& pages) const {
    return static_cast<uint64_t>(
        std::count_if(pages.begin(), pages.end(), [&](PageIndex p) { return state(p) == wanted; }));
  }
  void expectUnproven(const std::vector<PageIndex>& pages) {
    for (const PageIndex page : pages) expectLocal(page, page.value(), kFlagUnproven);
  }
  PageIndex zeroPage() {
    const PageIndex page = allocate();
    sendOut(page, PageWord(PageState::kZero, 0, 0, 0));
    return page;
  }

  size_t at_ = 0;
  PageIndex demands_;
  PageIndex targets_;
  uint64_t held_ = 0;
};

TEST_F(Foretold, PagesAreReadTogetherAfterTheDemandedOne) {
  const auto pages = targets(5);
  const uint64_t far = tier_->held(), flushes = tier_->flushes, before = answered();
  const PageIndex demanded = know(pages);
  expectTogether(pages);
  EXPECT_TRUE(tier_->requests()[0].scattered.empty());
  EXPECT_EQ(tier_->requests()[0].run.first, word(demanded).frame());
  EXPECT_EQ(tier_->flushes, flushes + 2) << "the demanded page goes before the others are known";
  for (const PageIndex page : pages) {
    EXPECT_EQ(state(page), PageState::kFetching);
    EXPECT_TRUE(word(page).has(kFlagUnproven));
  }
  EXPECT_EQ(held(), held_) << "room is taken when they arrive";
  arriveDemanded();
  expectLocal(demanded, demanded.value());
  EXPECT_EQ(countIn(PageState::kFetching, pages), 5u);
  arrive();
  expectUnproven(pages);
  EXPECT_EQ(held(), held_ + 6);
  EXPECT_EQ(tier_->held(), far - 6);
  EXPECT_EQ(answered(), before + 1) << "nobody waited for the others";
  EXPECT_FALSE(faultsWait());
}

TEST_F(Foretold, NobodyIsWokenForPagesThatNobodyWaitsFor) {
  const auto pages = foretell(4);
  arriveDemanded();
  ask(pages[2]);
  const uint64_t before = kernel_.wakes();
  arrive();
  expectUnproven({pages[0], pages[1], pages[3]});
  EXPECT_FALSE(waits(pages[2]));
  EXPECT_EQ(kernel_.wakes(), before + 1) << "only who asked for one";
}

TEST_F(Foretold, ManyPagesAreReadInSeveralPartsASmallOneFirst) {
  auto pages = foretell(100);
  std::erase_if(pages, [&](PageIndex page) { return state(page) == PageState::kFar; });
  ASSERT_GT(pages.size(), 90u) << "few are left out";
  ASSERT_EQ(tier_->requests().size(), 4u);
  EXPECT_EQ(tier_->requests()[1].scattered.size(), kAtOnce);
  EXPECT_EQ(tier_->requests()[2].scattered.size(), kTogether);
  std::vector<FrameIndex> asked;
  for (const auto& request : tier_->requests()) {
    asked.insert(asked.end(), request.scattered.begin(), request.scattered.end());
  }
  EXPECT_EQ(asked, framesOf(pages));
  arrive();
  expectUnproven(pages);
}

TEST_F(Foretold, PartsEndInAnyNumberAndTheirPlacesAreFreeAgain) {
  for (int i = 0; i < 20; ++i) {
    const auto pages = foretell(1);
    foretell(1);
    tier_->end(2);
    turn();
    EXPECT_NE(state(pages[0]), PageState::kFetching);
    EXPECT_LE(tier_->requests().size(), 2u);
    arrive();
    EXPECT_TRUE(tier_->requests().empty());
  }
}

TEST_F(Foretold, NothingIsReadWhileAllPartsAreUnderWay) {
  std::vector<PageIndex> pages = targets(kGatherCount);
  for (const PageIndex page : pages) know({page});
  ASSERT_EQ(tier_->requests().size(), 2 * kGatherCount);
  const auto late = foretell(2);
  EXPECT_EQ(tier_->requests().size(), 2 * kGatherCount + 1) << "the demanded page";
  EXPECT_EQ(countIn(PageState::kFar, late), 2u);
  arrive();
  expectUnproven(pages);
  know(late);
  EXPECT_EQ(countIn(PageState::kFetching, late), 2u);
}

TEST_F(Foretold, NoMoreIsReadThanTheLastFreePartHolds) {
  for (uint64_t i = 0; i + 1 < kGatherCount; ++i) foretell(1);
  ASSERT_EQ(tier_->requests().size(), 2 * (kGatherCount - 1));
  const auto pages = foretell(40);
  EXPECT_EQ(tier_->requests().size(), 2 * kGatherCount);
  EXPECT_EQ(countIn(PageState::kFetching, pages), kAtOnce);
  EXPECT_EQ(countIn(PageState::kFar, pages), 40 - kAtOnce);
}

TEST_F(Foretold, RoomIsLeftToFaults) {
  const auto pages = targets(5);
  setLimit(held_ + kLeft);
  know(pages);
  EXPECT_EQ(tier_->requests().size(), 1u);
  setLimit(held_ + kLeft + 3);
  know(pages);
  ASSERT_EQ(tier_->requests().size(), 3u);
  EXPECT_EQ(tier_->requests()[2].scattered, framesOf({pages[0], pages[1], pages[2]}));
  EXPECT_EQ(countIn(PageState::kFar, pages), 2u);
}

TEST_F(Foretold, WhatIsUnderWayHasItsRoomAlready) {
  const auto pages = targets(4), more = targets(5);
  know(pages);
  setLimit(held_ + kLeft + 4 + 2);
  know(more);
  EXPECT_EQ(countIn(PageState::kFetching, more), 2u);
}

TEST_F(Foretold, OnlyPagesOfOneTierAreReadTogether) {
  const auto pages = targets(3);
  const PageIndex beside = allocate();
  makeFar(beside, 1, 2);
  know({pages[0], beside, pages[1]});
  expectTogether({pages[0], pages[1]});
  EXPECT_EQ(state(beside), PageState::kFar);
  know({beside, pages[2]});
  EXPECT_EQ(tier_->requests().size(), 3u) << "the demanded page";
  ASSERT_EQ(other_->requests().size(), 1u);
  EXPECT_EQ(other_->requests()[0].scattered, framesOf({beside}));
  other_->endAll();
  arrive();
  expectUnproven({pages[0], beside, pages[1]});
  EXPECT_EQ(state(pages[2]), PageState::kFar);
}

TEST_F(Foretold, APageThatComesTwiceIsReadOnce) {
  auto pages = targets(12);
  const auto once = pages;
  pages.push_back(pages[0]);
  pages.push_back(pages[1]);
  know(pages);
  expectTogether(once);
  arrive();
  expectUnproven(once);
}

TEST_F(Foretold, ZerosAreFilledAtOnce) {
  const PageIndex zeros = zeroPage();
  const auto pages = targets(2);
  know({pages[0], zeros, pages[1]});
  expectLocal(zeros, 0, kFlagUnproven);
  EXPECT_EQ(held(), held_ + 1);
  expectTogether(pages);
  know({zeroPage()});
  EXPECT_EQ(tier_->requests().size(), 3u) << "the demanded page";
}

TEST_F(Foretold, ZerosThatCannotBeFilledStayAway) {
  const PageIndex zeros = zeroPage();
  const auto pages = targets(1);
  kernel_.fail(Call::kCopy, 1, PortOutcome::kExists);
  know({zeros, pages[0]});
  EXPECT_EQ(state(zeros), PageState::kZero);
  EXPECT_EQ(held(), held_);
  EXPECT_EQ(state(pages[0]), PageState::kFetching);
}

TEST_F(Foretold, PagesOfThePoolAreThereAtOnce) {
  const PageIndex packed = allocate();
  pack(packed);
  const uint64_t before = answered();
  const auto pages = targets(1);
  know({packed, pages[0]});
  expectUnproven({packed});
  EXPECT_EQ(core_.pool->pages(), PageCount());
  expectTogether(pages);
  EXPECT_EQ(answered(), before) << "nobody has asked for it";
  EXPECT_EQ(core_.stats->compressed_hits.load(), 1u);
}

TEST_F(Foretold, ToThePolicyAPageThatIsForetoldReturns) {
  const PageIndex zeros = zeroPage(), packed = allocate();
  pack(packed);
  const std::vector<PageIndex> pages{target(), zeros, packed};
  const auto score = [this](PageIndex page) {
    MutexLock lock(policy_->mutex());
    return policy_->chooser().score(page);
  };
  for (const PageIndex page : pages) {
    MutexLock lock(policy_->mutex());
    ASSERT_EQ(policy_->chooser().classify(page, WriteBit::kNotArmed), Verdict::kEvict);
  }
  know(pages);
  for (const PageIndex page : pages) EXPECT_GT(score(page), 0u) << page.value();
}

TEST_F(Foretold, ATouchOfAPageUnderWayWaitsForIt) {
  const uint64_t before = answered();
  const auto pages = foretell(3);
  ask(pages[1]);
  EXPECT_TRUE(waits(pages[1]));
  EXPECT_EQ(tier_->requests().size(), 2u);
  arrive();
  expectLocal(pages[1], pages[1].value());
  expectUnproven({pages[0], pages[2]});
  EXPECT_EQ(answered(), before + 2);
}

TEST_F(Foretold, AReadThatFailsLeavesItsPagesFar) {
  const uint64_t far = tier_->held();
  const auto pages = foretell(3);
  const auto frames = framesOf(pages);
  ask(pages[1]);
  tier_->end(1);
  arrive(ErrorCode::kTimedOut);
  EXPECT_EQ(framesOf(pages), frames);
  EXPECT_EQ(countIn(PageState::kFar, pages), 3u);
  EXPECT_FALSE(waits(pages[1])) << "it looks again";
  EXPECT_EQ(held(), held_ + 1);
  EXPECT_EQ(tier_->held(), far - 1);
  EXPECT_EQ(core_.stats->lost_pages.load(), 0u);
  EXPECT_FALSE(faultsWait());
  // It is read alone then.
  ask(pages[1]);
  ASSERT_EQ(tier_->requests().size(), 1u);
  EXPECT_TRUE(tier_->requests()[0].scattered.empty());
  arrive();
  expectLocal(pages[1], pages[1].value());
  EXPECT_EQ(countIn(PageState::kFar, pages), 2u);
  know({pages[0], pages[2]});
  arrive();
  expectUnproven({pages[0], pages[2]});
}

TEST_F(Foretold, OfALostTierAPageIsLostOnceItIsTouched) {
  const auto pages = foretell(2);
  tier_->end(1);
  arrive(ErrorCode::kLost);
  EXPECT_EQ(core_.stats->lost_pages.load(), 0u);
  ask(pages[0]);
  arrive(ErrorCode::kLost);
  EXPECT_EQ(state(pages[0]), PageState::kLost);
  EXPECT_FALSE(waits(pages[0]));
  EXPECT_EQ(state(pages[1]), PageState::kFar);
  EXPECT_EQ(core_.stats->lost_pages.load(), 1u);
}

TEST_F(Foretold, AReadThatIsRefusedLeavesItsPagesFar) {
  const auto pages = targets(3);
  for (uint64_t i = 0; i < kGatherCount + 1; ++i) {
    tier_->submits = 1;
    know(pages);
    EXPECT_EQ(countIn(PageState::kFar, pages), 3u);
  }
  EXPECT_EQ(tier_->requests().size(), kGatherCount + 1);
  EXPECT_FALSE(faultsWait());
  tier_->submits = 2;
  know(pages);
  EXPECT_EQ(countIn(PageState::kFetching, pages), 3u);
  arrive();
  expectUnproven(pages);
}

TEST_F(Foretold, PagesThatAreDiscardedMeanwhileKeepTheFramesBalanced) {
  const uint64_t far = tier_->held();
  const auto pages = foretell(4);
  discard(pages[1]);
  discard(pages[3]);
  arrive();
  expectUnproven({pages[0], pages[2]});
  EXPECT_EQ(word(pages[1]), PageWord());
  EXPECT_EQ(word(pages[3]), PageWord());
  EXPECT_EQ(held(), held_ + 3);
  EXPECT_EQ(tier_->held(), far - 5);
}

TEST_F(Foretold, SoDoPagesThatAreDiscardedWhileTheirReadFails) {
  const uint64_t far = tier_->held();
  const auto pages = foretell(2);
  discard(pages[0]);
  tier_->end(1);
  arrive(ErrorCode::kTimedOut);
  EXPECT_EQ(word(pages[0]), PageWord());
  EXPECT_EQ(state(pages[1]), PageState::kFar);
  EXPECT_EQ(held(), held_ + 1);
  EXPECT_EQ(tier_->held(), far - 2);
}

TEST_F(Foretold, WhatArrivesWithoutRoomStaysFarUnlessSomebodyWaits) {
  const auto pages = foretell(3);
  ask(pages[1]);
  arriveDemanded();
  setLimit(held());
  rung(core_.need_memory);
  arrive();
  EXPECT_EQ(state(pages[0]), PageState::kFar);
  EXPECT_EQ(state(pages[1]), PageState::kFetching);
  EXPECT_EQ(state(pages[2]), PageState::kFar);
  EXPECT_TRUE(waits(pages[1]));
  EXPECT_TRUE(faultsWait());
  EXPECT_TRUE(rung(core_.need_memory));
  turn();
  EXPECT_TRUE(faultsWait());
  setLimit(held() + 1);
  turn();
  expectLocal(pages[1], pages[1].value());
  EXPECT_FALSE(faultsWait());
  EXPECT_EQ(held(), held_ + 2);
}

TEST_F(Foretold, WhatIsUnderWayIsNotInstalledWhenOthersHaveWaitedForRoom) {
  const auto pages = foretell(3);
  arriveDemanded();
  setLimit(held());
  ask(allocate());
  ASSERT_TRUE(faultsWait());
  setLimit(4096);
  turn();
  EXPECT_FALSE(faultsWait());
  EXPECT_EQ(countIn(PageState::kFetching, pages), 3u);
  arrive();
  expectUnproven(pages);
}

TEST_F(Foretold, NoRoomIsAskedForWhereNobodyWaits) {
  const auto pages = foretell(3);
  arriveDemanded();
  setLimit(held());
  rung(core_.need_memory);
  arrive();
  EXPECT_EQ(countIn(PageState::kFar, pages), 3u);
  EXPECT_FALSE(rung(core_.need_memory));
}

TEST_F(Foretold, WhatIsUnderWayAtTheEndStaysFar) {
  const auto pages = targets(3);
  const auto frames = framesOf(pages);
  const PageIndex demanded = know(pages);
  faults_.reset();
  EXPECT_EQ(countIn(PageState::kFar, pages), 3u);
  EXPECT_EQ(state(demanded), PageState::kFar);
  EXPECT_EQ(framesOf(pages), frames);
}

TEST_F(Foretold, AThreadThatFaultsNoMoreIsNoLongerSampled) {
  constexpr Nanoseconds kSecond{1'000'000'000};
  ASSERT_EQ(threads_.open, 1);
  turn();
  EXPECT_EQ(kernel_.waitedUpTo(), kSecond);
  clock_.advance(kSecond * 2);
  ask(demands_);
  EXPECT_EQ(threads_.open, 1) << "there was something to do";
  turn();
  EXPECT_EQ(threads_.open, 0);
  arrive();
  turn();
  EXPECT_EQ(kernel_.waitedUpTo(), std::nullopt);
}

TEST_F(Foretold, AReadsDeadlineIsWaitedForIfItIsSooner) {
  tier_->deadline = Nanoseconds(5'000'000);
  foretell(1);
  turn();
  EXPECT_EQ(kernel_.waitedUpTo(), Nanoseconds(5'000'000));
  tier_->deadline = Nanoseconds(7'000'000'000);
  turn();
  EXPECT_EQ(kernel_.waitedUpTo(), Nanoseconds(1'000'000'000));
}

}  // namespace
}  // namespace tidepool
