// SPDX-License-Identifier: Apache-2.0
// Pages that are all zeros when they are evicted: they take no frame and no request, and come back
// as zeros, each alone. The evictor and the fault service, step by step.
#include <sys/mman.h>

#include "runtime/migrate/evict/evictor.h"
#include "runtime/migrate/fault/fault_service.h"
#include "tests/migrate/fake_core.h"

namespace tidepool {
namespace {

constexpr PageWord kZeroWord(PageState::kZero, 0, 0, 0);

class ZeroPages : public FakeCoreTest {
 protected:
  void SetUp() override {
    FakeCoreTest::SetUp();
    tier_ = &addTier();
    evictor_ = std::move(*Evictor::create(core_, *staging_, *policy_));
    waker_ = std::make_unique<Waker>(*core_.port);
    faults_ = std::move(*FaultService::create(core_, *staging_, *policy_, *mover_, *waker_));
  }
  /// So many local pages without a byte that is not zero.
  PageIndex zeros(uint64_t count) {
    const PageIndex first = allocate();
    makeLocal(first, count);
    for (uint64_t i = 0; i < count; ++i) wipe(first + i);
    return first;
  }
  void evict(uint64_t pages) {
    ASSERT_EQ(evictor_->start(PageCount(pages)), PageCount(pages));
    tier_->endAll();
    evictor_->advance();
    while (evictor_->recycle()) {
    }
  }
  PageIndex evictedZeros(uint64_t count) {
    const PageIndex first = zeros(count);
    evict(count);
    return first;
  }
  void ask(PageIndex page) {
    ASSERT_FALSE(kernel_.touch(addressOf(page)));
    faults_->turn();
  }
  void expectLocal(PageIndex page, uint64_t value, uint8_t flags = 0) {
    EXPECT_EQ(word(page), PageWord(PageState::kLocal, flags, 0, 0)) << page.value();
    ASSERT_TRUE(present(page));
    EXPECT_EQ(load(page), value);
  }
  uint64_t zeroPages() const { return core_.stats->zero_pages.load(); }
  uint64_t policyFaults() {
    MutexLock lock(policy_->mutex());
    return policy_->chooser().stats().faults;
  }

  FakeTier* tier_ = nullptr;
  std::unique_ptr<Evictor> evictor_;
  std::unique_ptr<Waker> waker_;
  std::unique_ptr<FaultService> faults_;
};

TEST_F(ZeroPages, TakeNoFrameAndNoRequest) {
  const PageIndex first = zeros(4);
  ASSERT_EQ(evictor_->start(PageCount(4)), PageCount(4));
  EXPECT_TRUE(tier_->requests().empty());
  EXPECT_EQ(tier_->held(), 0u);
  EXPECT_EQ(state(first), PageState::kEvicting) << "in limbo, as others";
  EXPECT_EQ(held(), 4u);
  EXPECT_TRUE(evictor_->recycle()) << "there is nothing to wait for";
  for (uint64_t i = 0; i < 4; ++i) {
    EXPECT_EQ(word(first + i), kZeroWord);
    EXPECT_FALSE(present(first + i));
    EXPECT_FALSE(kernel_.present(staging_->slotAddress(i)));
  }
  EXPECT_EQ(held(), 0u);
  EXPECT_EQ(zeroPages(), 4u);
  EXPECT_EQ(core_.stats->demotions.load(), 4u);
}

TEST_F(ZeroPages, AreLeftOutOfTheWriteOfOthers) {
  const PageIndex first = allocate();
  makeLocal(first, 6);
  for (const uint64_t i : {uint64_t{0}, uint64_t{3}}) wipe(first + i);
  evict(6);
  EXPECT_EQ(tier_->held(), 4u);
  for (uint64_t i = 0; i < 6; ++i) {
    const bool zero = i == 0 || i == 3;
    ASSERT_EQ(state(first + i), zero ? PageState::kZero : PageState::kFar);
    if (!zero) {
      EXPECT_EQ(tier_->word(word(first + i).frame()), (first + i).value());
    }
  }
  EXPECT_EQ(zeroPages(), 2u);
}

TEST_F(ZeroPages, AreNotThoseWithOneByteThatIsNotZero) {
  const PageIndex first = zeros(4);
  const uint64_t places[] = {0, 8, 2048, kPageSize - 1};
  for (uint64_t i = 0; i < 4; ++i) {
    reinterpret_cast<std::byte*>(addressOf(first + i))[places[i]] = std::byte{1};
  }
  evict(4);
  for (uint64_t i = 0; i < 4; ++i) EXPECT_EQ(state(first + i), PageState::kFar) << i;
  EXPECT_EQ(zeroPages(), 0u);
}

TEST_F(ZeroPages, LeaveAlsoWhereFarMemoryIsFull) {
  const auto all = tier_->allocate(PageCount(2048));
  ASSERT_TRUE(all);
  const PageIndex first = evictedZeros(3);
  EXPECT_EQ(word(first + 2), kZeroWord);
  EXPECT_EQ(core_.stats->error_count.load(), 0u);
}

TEST_F(ZeroPages, GiveTheirFarCopyUp) {
  const PageIndex first = zeros(1);
  const auto frame = tier_->allocate(PageCount(1));
  ASSERT_TRUE(frame);
  change(first, word(first), PageWord(PageState::kLocal, kFlagFarCopy, 1, frame->first.value()));
  evict(1);
  EXPECT_EQ(word(first), kZeroWord);
  EXPECT_EQ(tier_->held(), 0u);
  EXPECT_EQ(core_.stats->clean_evictions.load(), 0u);
}

TEST_F(ZeroPages, AmongCopiesLeaveOnePageToProveTheServer) {
  const PageIndex first = allocate();
  makeLocal(first, 2);
  wipe(first);
  const auto frame = tier_->allocate(PageCount(1));
  ASSERT_TRUE(frame);
  ASSERT_TRUE(tier_->write(*frame, reinterpret_cast<const std::byte*>(addressOf(first + 1))));
  change(first + 1, word(first + 1),
         PageWord(PageState::kLocal, kFlagFarCopy, 1, frame->first.value()));
  ASSERT_TRUE(core_.port->writeProtect(addressOf(first + 1), Bytes(kPageSize), Wake::kNo));
  ASSERT_EQ(evictor_->start(PageCount(2)), PageCount(2));
  ASSERT_EQ(tier_->requests().size(), 1u);
  EXPECT_EQ(tier_->requests()[0].run.first, frame->first);
  tier_->endAll();
  evictor_->advance();
  EXPECT_TRUE(evictor_->recycle());
  EXPECT_EQ(word(first), kZeroWord);
  EXPECT_EQ(state(first + 1), PageState::kFar);
}

TEST_F(ZeroPages, InLimboAreTakenBackAsOthers) {
  const PageIndex first = zeros(2);
  ASSERT_EQ(evictor_->start(PageCount(2)), PageCount(2));
  ask(first);
  expectLocal(first, 0);
  store(first, 77);
  EXPECT_TRUE(evictor_->recycle());
  expectLocal(first, 77);
  EXPECT_EQ(word(first + 1), kZeroWord);
  EXPECT_EQ(zeroPages(), 1u);
  EXPECT_EQ(held(), 1u);
}

TEST_F(ZeroPages, InLimboMayBeDiscarded) {
  const PageIndex first = zeros(2);
  ASSERT_EQ(evictor_->start(PageCount(2)), PageCount(2));
  discard(first);
  EXPECT_TRUE(evictor_->recycle());
  EXPECT_EQ(word(first), PageWord());
  EXPECT_EQ(word(first + 1), kZeroWord);
}

TEST_F(ZeroPages, OfABatchWhoseWriteFailsStayLocal) {
  const PageIndex first = allocate();
  makeLocal(first, 2);
  wipe(first);
  ASSERT_EQ(evictor_->start(PageCount(2)), PageCount(2));
  tier_->endAll(ErrorCode::kUnreachable);
  evictor_->advance();
  expectLocal(first, 0);
  expectLocal(first + 1, (first + 1).value());
  EXPECT_EQ(held(), 2u);
  EXPECT_EQ(tier_->held(), 0u);
}

TEST_F(ZeroPages, ComeBackWithoutARequestEachAlone) {
  const PageIndex first = evictedZeros(20);
  ask(first + 5);
  EXPECT_TRUE(tier_->requests().empty());
  expectLocal(first + 5, 0);
  EXPECT_FALSE(kernel_.waits(addressOf(first + 5)));
  EXPECT_EQ(held(), 1u) << "its neighbours are cold";
  EXPECT_EQ(word(first + 4), kZeroWord);
  EXPECT_EQ(word(first + 6), kZeroWord);
  EXPECT_EQ(policyFaults(), 1u) << "as when a far page comes";
  store(first + 5, 9);
  evict(1);
  ASSERT_EQ(state(first + 5), PageState::kFar);
  EXPECT_EQ(tier_->word(word(first + 5).frame()), 9u);
}

TEST_F(ZeroPages, EndARunOfPagesThatWereNeverTouched) {
  const PageIndex first = evictedZeros(4);
  ask(first + 6);
  for (uint64_t i = 0; i < 4; ++i) EXPECT_EQ(word(first + i), kZeroWord);
  for (uint64_t i = 4; i < 16; ++i) expectLocal(first + i, 0);
}

TEST_F(ZeroPages, OfAScanComeAheadOfIt) {
  const PageIndex first = evictedZeros(64);
  for (uint64_t i = 0; i < 3; ++i) ask(first + i);
  EXPECT_TRUE(tier_->requests().empty());
  expectLocal(first + 2, 0);
  expectLocal(first + 3, 0, kFlagUnproven);
  const uint64_t ahead = core_.stats->prefetched_pages.load();
  EXPECT_GE(ahead, 2u);
  EXPECT_EQ(held(), 3 + ahead);
  EXPECT_EQ(word(first + 3 + ahead), kZeroWord);
}

TEST_F(ZeroPages, OfAScanComeBetweenThoseThatAreRead) {
  const PageIndex first = allocate();
  makeLocal(first, 8);
  for (const uint64_t i : {uint64_t{3}, uint64_t{5}}) wipe(first + i);
  evict(8);
  for (uint64_t i = 0; i < 3; ++i) {
    ask(first + i);
    tier_->endAll();
    faults_->turn();
  }
  expectLocal(first + 3, 0, kFlagUnproven);
  EXPECT_EQ(state(first + 4), PageState::kLocal);
  EXPECT_EQ(load(first + 4), (first + 4).value());
}

TEST_F(ZeroPages, WaitForRoom) {
  const PageIndex first = evictedZeros(2);
  setLimit(0);
  ask(first);
  EXPECT_TRUE(kernel_.waits(addressOf(first)));
  EXPECT_EQ(word(first), kZeroWord);
  setLimit(64);
  core_.freed_memory.ring();
  faults_->turn();
  expectLocal(first, 0);
  EXPECT_EQ(held(), 1u);
}

TEST_F(ZeroPages, ThatCannotBeFilledTakeNoRoom) {
  const PageIndex first = evictedZeros(1);
  kernel_.fail(Call::kCopy, 1, PortOutcome::kInvalid);
  ask(first);
  EXPECT_FALSE(kernel_.waits(addressOf(first)));
  EXPECT_EQ(word(first), kZeroWord);
  EXPECT_EQ(held(), 0u);
}

TEST_F(ZeroPages, AreForgottenWhenTheProgramGivesThemUp) {
  const PageIndex first = evictedZeros(4);
  EXPECT_TRUE(core_.space->hasPages(granuleOf(first)));
  discard(first, 2);
  EXPECT_EQ(word(first), PageWord());
  EXPECT_EQ(word(first + 2), kZeroWord);
  ASSERT_TRUE(ranges_->release(addressOf(first), Bytes(kGranuleSize)));
  EXPECT_EQ(word(first + 2), PageWord());
  EXPECT_FALSE(core_.space->hasPages(granuleOf(first)));
}

TEST_F(ZeroPages, NeedNotBeCopiedWhenARangeMoves) {
  const PageIndex first = evictedZeros(1);
  EXPECT_TRUE(ranges_->isEmpty(addressOf(first)));
  const auto where = ranges_->residency(addressOf(first), Bytes(kPageSize));
  ASSERT_TRUE(where);
  EXPECT_EQ(where->empty, PageCount(1));
}

TEST_F(ZeroPages, ThatMayOnlyBeReadLeaveToo) {
  const PageIndex first = zeros(1);
  ASSERT_TRUE(ranges_->protect(addressOf(first), Bytes(kPageSize), PROT_READ));
  evict(1);
  EXPECT_EQ(word(first), kZeroWord);
}

}  // namespace
}  // namespace tidepool
