// SPDX-License-Identifier: Apache-2.0
// The compressed pool within the budget, step by step: what goes in, what is written back and when,
// and what becomes of pages and frames when the program or a tier comes in between.
#include "runtime/migrate/evict/pool_keeper.h"

#include <random>

#include "runtime/migrate/evict/evictor.h"
#include "tests/migrate/fake_core.h"

namespace tidepool {
namespace {

using PageBytes = std::array<std::byte, kPageSize>;
constexpr uint64_t kChunk = CompressedPool::kChunkPages.value();

class PoolKeeperTest : public FakeCoreTest {
 protected:
  void SetUp() override {
    FakeCoreTest::SetUp();
    far_ = &addTier();
    usePool(64);
  }
  void usePool(uint64_t chunks) {
    auto pool = CompressedPool::create(toBytes(CompressedPool::kChunkPages) * chunks);
    ASSERT_TRUE(pool);
    pool_ = pool->get();
    core_.pool = pool_;
    core_.pool_number = core_.tiers.add(std::move(*pool));
    keeper_ = std::move(*PoolKeeper::create(core_, *policy_, channels_));
    first_ = allocate(8);
  }
  /// A page of which so many bytes do not compress.
  static PageBytes bytesOf(PageIndex page, uint32_t random = 2000) {
    PageBytes bytes{};
    const uint64_t number = page.value();
    std::mt19937 generator(static_cast<uint32_t>(number));
    for (uint32_t i = sizeof number; i < random; ++i) {
      bytes[i] = static_cast<std::byte>(generator());
    }
    memcpy(bytes.data(), &number, sizeof number);
    return bytes;
  }
  /// Makes an empty page far, in the pool; false if it does not take it.
  bool put(PageIndex page, uint32_t random = 2000) {
    const auto frame = keeper_->put(page, bytesOf(page, random).data());
    if (!frame) return false;
    PageWord word;
    for (const PageWord next :
         {PageWord(PageState::kLocal, 0, 0, 0), PageWord(PageState::kEvicting, 0, 0, 0),
          PageWord(PageState::kFar, 0, core_.pool_number, frame->value())}) {
      change(page, word, next);
      word = next;
    }
    return true;
  }
  /// Pages from the first on until one does not find room even when what left has arrived; returns
  /// how many.
  uint64_t fill(uint64_t most) {
    uint64_t count = 0;
    while (count < most && (put(first_ + count) || (endWrites() && put(first_ + count)))) ++count;
    return count;
  }
  /// The far tier's writes end, and the keeper hears of it; false if there were none.
  bool endWrites(ErrorCode error = ErrorCode{}) {
    far_->endAll(error);
    FetchCompletion written;
    bool any = false;
    for (const auto& channel : channels_) {
      while (channel != nullptr && channel->poll({&written, 1}) == 1) {
        keeper_->finish(written);
        any = true;
      }
    }
    return any;
  }
  /// As the migrator does, until there is nothing to do.
  void tend() {
    do {
      keeper_->tend();
    } while (endWrites());
  }
  bool isPacked(PageIndex page) const {
    return state(page) == PageState::kFar && word(page).tier() == core_.pool_number;
  }
  void expectRight(PageIndex page, uint32_t random = 2000) {
    ASSERT_EQ(state(page), PageState::kFar);
    PageBytes read;
    ASSERT_TRUE(
        core_.tiers.tier(word(page).tier()).read({word(page).frame(), PageCount(1)}, read.data()));
    EXPECT_EQ(read, bytesOf(page, random)) << page.value();
  }
  /// What the pool has of the budget.
  uint64_t charged() const { return (pool_->held() + keeper_->reserved()).value(); }
  void release(PageIndex page) {
    const PageWord far = word(page);
    change(page, far, PageWord());
    core_.tiers.tier(far.tier()).release({far.frame(), PageCount(1)});
  }

  FakeTier* far_ = nullptr;
  CompressedPool* pool_ = nullptr;
  Channels channels_{core_.tiers};
  std::unique_ptr<PoolKeeper> keeper_;
  PageIndex first_;
};

TEST_F(PoolKeeperTest, IsNotThereWithoutAPool) {
  core_.pool = nullptr;
  EXPECT_EQ(*PoolKeeper::create(core_, *policy_, channels_), nullptr);
}

TEST_F(PoolKeeperTest, ChargesTheBudgetByTheChunk) {
  EXPECT_EQ(held(), 0u);
  EXPECT_TRUE(put(first_));
  EXPECT_EQ(pool_->held(), CompressedPool::kChunkPages);
  EXPECT_EQ(held(), charged());
  for (uint64_t i = 1; i < 100; ++i) EXPECT_TRUE(put(first_ + i));
  EXPECT_EQ(held(), charged());
  EXPECT_LT(pool_->held().value(), 100u);
  for (uint64_t i = 0; i < 100; ++i) expectRight(first_ + i);
}

TEST_F(PoolKeeperTest, GivesMemoryBackWhenPagesHaveGone) {
  ASSERT_EQ(fill(200), 200u);
  const uint64_t before = held();
  for (uint64_t i = 0; i < 200; ++i) release(first_ + i);
  EXPECT_EQ(held(), before) << "a release does not give memory back";
  keeper_->tend();
  EXPECT_EQ(held(), charged());
  EXPECT_EQ(pool_->held().value(), kChunk) << "what is being filled";
}

TEST_F(PoolKeeperTest, NeverExceedsTheBudget) {
  setLimit(kChunk * 3);
  const uint64_t pages = fill(400);
  EXPECT_EQ(pages, 400u) << "the oldest make room";
  EXPECT_LE(held(), kChunk * 3);
  EXPECT_FALSE(isPacked(first_));
  EXPECT_TRUE(isPacked(first_ + 399));
  for (uint64_t i = 0; i < 400; ++i) expectRight(first_ + i);
  EXPECT_EQ(core_.stats->compressed_written_back.load() + pool_->pages().value(), 400u);
}

TEST_F(PoolKeeperTest, ReservesAThirtySecondOfTheBudgetAtMost) {
  keeper_->reserve();
  EXPECT_EQ(keeper_->reserved(), CompressedPool::kChunkPages * 6) << "what a batch needs";
  EXPECT_EQ(held(), charged());
  keeper_->reserve();
  EXPECT_EQ(held(), charged());
  // They are there for the pool when others have taken the rest.
  setLimit(held());
  EXPECT_EQ(fill(180), 180u);
  EXPECT_EQ(pool_->pages(), PageCount(180)) << "nothing had to be written back";
  EXPECT_EQ(held(), charged());
}

TEST_F(PoolKeeperTest, ReservesNothingOfASmallBudget) {
  setLimit(kChunk * 31);
  keeper_->reserve();
  EXPECT_EQ(held(), 0u);
}

TEST_F(PoolKeeperTest, RefusesWhenNothingCanMakeRoom) {
  setLimit(kChunk - 1);
  EXPECT_FALSE(put(first_));
  EXPECT_EQ(held(), 0u);
  setLimit(kChunk * 2);
  far_->close();
  const uint64_t pages = fill(400);
  EXPECT_LT(pages, 100u);
  EXPECT_LE(held(), kChunk * 2);
  for (uint64_t i = 0; i < pages; ++i) expectRight(first_ + i);
}

TEST_F(PoolKeeperTest, TakesNothingThatDoesNotCompress) {
  EXPECT_FALSE(put(first_, kPageSize));
  EXPECT_EQ(held(), 0u);
  EXPECT_EQ(pool_->pages(), PageCount());
}

TEST_F(PoolKeeperTest, TriesGranulesThatDoNotCompressSeldom) {
  // Granules that did not compress are asked in vain now and then, others each time.
  uint64_t taken = 0;
  for (uint64_t i = 0; i < 200; ++i) EXPECT_FALSE(put(first_ + i, kPageSize));
  for (uint64_t i = 200; i < 264; ++i) taken += put(first_ + i) ? 1u : 0u;
  EXPECT_GT(taken, 30u) << "one that compresses is enough";
  EXPECT_LT(taken, 64u);
  EXPECT_TRUE(put(first_ + kPagesPerGranule));
}

TEST_F(PoolKeeperTest, ShrinksWhenTheLimitFalls) {
  ASSERT_EQ(fill(600), 600u);
  const uint64_t before = held();
  ASSERT_GT(before, kChunk * 8);
  setLimit(kChunk * 8);
  tend();
  EXPECT_LE(pool_->held().value(), kChunk * 4) << "half of it";
  EXPECT_EQ(held(), charged());
  for (uint64_t i = 0; i < 600; ++i) expectRight(first_ + i);
}

TEST_F(PoolKeeperTest, ClosesGaps) {
  ASSERT_EQ(fill(600), 600u);
  for (uint64_t i = 0; i < 600; ++i) {
    if (i % 4 != 0) release(first_ + i);
  }
  const uint64_t before = held();
  // Each new chunk empties one or two with gaps.
  for (uint64_t i = 600; i < 1200; ++i) {
    ASSERT_TRUE(put(first_ + i));
    if (i % 4 != 0) release(first_ + i);
  }
  EXPECT_LT(held(), before);
  for (uint64_t i = 0; i < 1200; i += 4) expectRight(first_ + i);
  EXPECT_EQ(core_.stats->compressed_written_back.load(), 0u);
}

TEST_F(PoolKeeperTest, KeepsNothingOfALimitNearZero) {
  ASSERT_EQ(fill(100), 100u);
  keeper_->reserve();
  ASSERT_GT(keeper_->reserved(), PageCount());
  setLimit(kChunk);
  tend();
  EXPECT_EQ(held(), 0u) << "neither what is being filled nor what is kept for it";
  EXPECT_EQ(pool_->held(), PageCount());
  for (uint64_t i = 0; i < 100; ++i) expectRight(first_ + i);
  EXPECT_FALSE(put(first_ + 100));
  setLimit(kChunk * 100);
  tend();
  EXPECT_TRUE(put(first_ + 100));
}

TEST_F(PoolKeeperTest, PagesThatLeaveAreWaitedFor) {
  ASSERT_EQ(fill(100), 100u);
  setLimit(kChunk * 2);
  keeper_->tend();
  EXPECT_TRUE(keeper_->busy());
  EXPECT_EQ(state(first_), PageState::kFetching);
  EXPECT_FALSE(kernel_.touch(addressOf(first_)));
  tend();
  EXPECT_FALSE(kernel_.waits(addressOf(first_)));
  expectRight(first_);
  EXPECT_EQ(word(first_).tier(), 1);
}

TEST_F(PoolKeeperTest, NobodyWaitsForAServerToWriteBack) {
  far_->before = [](FrameRun, bool) { ADD_FAILURE() << "it may be silent for seconds"; };
  setLimit(kChunk * 3);
  uint64_t taken = 0;
  for (uint64_t i = 0; i < 400; ++i) taken += put(first_ + i) ? 1u : 0u;
  EXPECT_LT(taken, 400u) << "others go elsewhere, while what makes room is on its way";
  ASSERT_EQ(far_->requests().size(), 1u);
  EXPECT_TRUE(far_->requests()[0].writes);
  EXPECT_TRUE(keeper_->busy());
  far_->before = nullptr;
  EXPECT_TRUE(endWrites());
  EXPECT_FALSE(keeper_->busy());
  EXPECT_TRUE(put(first_ + 400));
  EXPECT_LE(held(), kChunk * 3);
}

TEST_F(PoolKeeperTest, MakesRoomAheadOfNeed) {
  ASSERT_EQ(fill(3000), 3000u);
  ASSERT_EQ(toPages(pool_->capacity()), CompressedPool::kChunkPages * 64);
  ASSERT_GT(pool_->held(), CompressedPool::kChunkPages * 58);
  const uint64_t back = core_.stats->compressed_written_back.load();
  tend();
  EXPECT_EQ(pool_->held(), CompressedPool::kChunkPages * 58) << "as a batch of evictions needs";
  EXPECT_GT(core_.stats->compressed_written_back.load(), back);
}

TEST_F(PoolKeeperTest, WritesSoManyBatchesAtATime) {
  ASSERT_EQ(fill(600), 600u);
  setLimit(kChunk);
  keeper_->tend();
  EXPECT_EQ(far_->requests().size(), 4u);
  keeper_->tend();
  EXPECT_EQ(far_->requests().size(), 4u);
  for (uint64_t i = 0; i < 64; ++i) EXPECT_EQ(state(first_ + i), PageState::kFetching);
  // Nobody is there any more to hear of them.
  keeper_.reset();
  for (uint64_t i = 0; i < 600; ++i) expectRight(first_ + i);
  EXPECT_EQ(far_->held(), 0u);
}

TEST_F(PoolKeeperTest, WhatFindsNoFrameStays) {
  ASSERT_EQ(fill(100), 100u);
  ASSERT_TRUE(far_->allocate(PageCount(2040)));
  setLimit(kChunk * 2);
  tend();
  EXPECT_EQ(core_.stats->compressed_written_back.load(), 8u);
  EXPECT_EQ(core_.stats->error_count.load(), 0u);
  for (uint64_t i = 0; i < 100; ++i) expectRight(first_ + i);
  EXPECT_EQ(pool_->pages(), PageCount(92));
}

TEST_F(PoolKeeperTest, FramesThatAreTakenAwayMeanwhileGetNothing) {
  ASSERT_EQ(fill(100), 100u);
  setLimit(kChunk * 2);
  keeper_->tend();
  far_->close();
  far_->forsake(FrameIndex(1));
  tend();
  for (uint64_t i = 0; i < 100; ++i) expectRight(first_ + i);
  EXPECT_EQ(pool_->pages(), PageCount(100));
  EXPECT_EQ(core_.stats->error_count.load(), 0u) << "who took them says so";
}

TEST_F(PoolKeeperTest, PagesDiscardedOnTheirWayLeaveNothingBehind) {
  ASSERT_EQ(fill(100), 100u);
  setLimit(kChunk * 2);
  keeper_->tend();
  discard(first_, 3);
  tend();
  EXPECT_EQ(state(first_), PageState::kEmpty);
  discard(first_, 100);
  keeper_->tend();
  EXPECT_EQ(far_->held(), 0u);
  EXPECT_EQ(pool_->pages(), PageCount());
}

TEST_F(PoolKeeperTest, PagesInSomebodysHandsStay) {
  ASSERT_EQ(fill(100), 100u);
  FarClaim claim = [&] {
    const GranuleLock granule(*core_.space, granuleOf(first_));
    return claimFar(core_, granule, {first_, PageCount(1)});
  }();
  const FrameIndex frame = claim.frames().first;
  setLimit(kChunk * 2);
  tend();
  PageBytes read;
  ASSERT_TRUE(pool_->read({frame, PageCount(1)}, read.data()));
  EXPECT_EQ(read, bytesOf(first_));
  claim.abandon(core_, GranuleLock(*core_.space, granuleOf(first_)));
  expectRight(first_);
}

TEST_F(PoolKeeperTest, StayWhenTheFarTierFails) {
  ASSERT_EQ(fill(100), 100u);
  setLimit(kChunk * 2);
  keeper_->tend();
  EXPECT_TRUE(endWrites(ErrorCode::kUnreachable));
  tend();
  EXPECT_TRUE(far_->closed());
  EXPECT_EQ(core_.stats->error_count.load(), 1u);
  EXPECT_EQ(far_->held(), 0u);
  for (uint64_t i = 0; i < 100; ++i) {
    EXPECT_TRUE(isPacked(first_ + i));
    expectRight(first_ + i);
  }
}

TEST_F(PoolKeeperTest, StayWhenTheFarTierTakesNoRequest) {
  ASSERT_EQ(fill(100), 100u);
  far_->submits = 0;
  setLimit(kChunk * 2);
  tend();
  EXPECT_TRUE(far_->closed());
  EXPECT_FALSE(keeper_->busy());
  EXPECT_EQ(far_->held(), 0u);
  for (uint64_t i = 0; i < 100; ++i) expectRight(first_ + i);
}

// With the evictor: pages that compress are not written, others are.
class EvictorWithPool : public PoolKeeperTest {
 protected:
  void SetUp() override {
    PoolKeeperTest::SetUp();
    evictor_ = std::move(*Evictor::create(core_, *staging_, *policy_));
  }
  /// Makes empty pages local, with these bytes.
  void fillLocal(PageIndex first, uint64_t count, uint32_t random) {
    for (PageIndex page = first; page < first + count; ++page) {
      const PageBytes bytes = bytesOf(page, random);
      ASSERT_EQ(
          core_.port->copy(addressOf(page), bytes.data(), Bytes(kPageSize), Wake::kNo).outcome,
          PortOutcome::kDone);
      change(page, PageWord(), PageWord(PageState::kLocal, 0, 0, 0));
    }
    core_.budget.charge(PageCount(count));
  }
  void evictAll(uint64_t pages) {
    evictor_->start(PageCount(pages));
    far_->endAll();
    evictor_->advance();
    while (evictor_->recycle()) {
    }
  }
  std::unique_ptr<Evictor> evictor_;
};

TEST_F(EvictorWithPool, WhatCompressesIsNotWritten) {
  fillLocal(first_, 32, 1000);
  evictor_->start(PageCount(32));
  EXPECT_TRUE(far_->requests().empty());
  evictAll(0);
  EXPECT_EQ(held(), pool_->held().value() + 6 * kChunk) << "and what is reserved";
  for (uint64_t i = 0; i < 32; ++i) {
    EXPECT_TRUE(isPacked(first_ + i));
    expectRight(first_ + i, 1000);
  }
  EXPECT_EQ(core_.stats->clean_evictions.load(), 0u);
  EXPECT_EQ(core_.stats->demotions.load(), 32u);
}

TEST_F(EvictorWithPool, WhatDoesNotCompressIsWritten) {
  fillLocal(first_, 16, 1000);
  fillLocal(first_ + kPagesPerGranule, 16, kPageSize);
  evictAll(32);
  for (uint64_t i = 0; i < 16; ++i) {
    EXPECT_TRUE(isPacked(first_ + i));
    EXPECT_EQ(word(first_ + kPagesPerGranule + i).tier(), 1);
    expectRight(first_ + i, 1000);
    expectRight(first_ + kPagesPerGranule + i, kPageSize);
  }
  EXPECT_EQ(far_->held(), 16u);
}

TEST_F(EvictorWithPool, HearsOfWhatIsWrittenBack) {
  fillLocal(first_, 600, 2000);
  evictAll(600);
  ASSERT_EQ(far_->held(), 0u);
  setLimit(kChunk * 8);
  evictor_->tendPool();
  EXPECT_TRUE(evictor_->busy());
  while (!far_->requests().empty()) {
    evictAll(0);
    evictor_->tendPool();
  }
  EXPECT_FALSE(evictor_->busy());
  EXPECT_GT(far_->held(), 100u);
  EXPECT_LE(pool_->used(), pool_->capacity());
  for (uint64_t i = 0; i < 600; ++i) expectRight(first_ + i);
}

TEST_F(EvictorWithPool, RescuedPagesLeaveThePool) {
  fillLocal(first_, 8, 1000);
  evictor_->start(PageCount(8));
  EXPECT_EQ(pool_->pages(), PageCount(8));
  discard(first_, 8);
  evictAll(0);
  EXPECT_EQ(pool_->pages(), PageCount());
}

TEST_F(EvictorWithPool, PagesStayWhenTheOthersOfTheirBatchCannotBeWritten) {
  fillLocal(first_, 8, 1000);
  fillLocal(first_ + kPagesPerGranule, 8, kPageSize);
  evictor_->start(PageCount(16));
  far_->endAll(ErrorCode::kUnreachable);
  evictor_->advance();
  EXPECT_EQ(pool_->pages(), PageCount());
  for (uint64_t i = 0; i < 8; ++i) EXPECT_EQ(state(first_ + i), PageState::kLocal);
}

}  // namespace
}  // namespace tidepool
