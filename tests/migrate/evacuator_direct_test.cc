// SPDX-License-Identifier: Apache-2.0
// The evacuator and memory that is mapped in place: it leaves a direct tier, or passes pages on to
// one.
#include "runtime/migrate/fabric/evacuator.h"

#include "runtime/tier/direct_file_tier.h"
#include "tests/migrate/direct_core.h"
#include "tests/migrate/fake_tier.h"

namespace tidepool {
namespace {

using Progress = Evacuator::Progress;
constexpr Nanoseconds kLong(1'000'000'000);

class EvacuatorOfDirectTier : public DirectCoreTest {
 protected:
  void SetUp() override {
    auto tier = DirectFileTier::createEmulated(Bytes(4 * kGranuleSize));
    ASSERT_TRUE(tier);
    tier_ = tier->get();
    build(std::move(*tier), PageCount(2 * kPagesPerGranule));
    evacuator_ = std::move(*Evacuator::create(core_, *mover_));
    address_ = allocate(2);
    for (uint64_t g = 0; g < 2; ++g) {
      ASSERT_TRUE(placeFar(granuleOf(first() + g * kPagesPerGranule)));
      at(g) = 100 + g;
    }
    tier_->close();
  }
  PageIndex first() const { return core_.space->pageAt(address_); }
  volatile uint64_t& at(uint64_t g) const {
    return *reinterpret_cast<volatile uint64_t*>(address_ + g * kGranuleSize);
  }
  DirectTier* tier_ = nullptr;
  std::unique_ptr<Evacuator> evacuator_;
  uintptr_t address_ = 0;
};

TEST_F(EvacuatorOfDirectTier, MovesGranules) {
  EXPECT_EQ(evacuator_->moveOff(1, kLong), Progress::kDone);
  EXPECT_TRUE(tier_->holdsNothing());
  for (uint64_t g = 0; g < 2; ++g) EXPECT_EQ(at(g), 100 + g);
  EXPECT_EQ(core_.budget.held(), PageCount(2 * kPagesPerGranule));
}

TEST_F(EvacuatorOfDirectTier, MovesWhatThereIsRoomForAndIsStuckThen) {
  core_.budget.setLimit(PageCount(kPagesPerGranule));
  EXPECT_EQ(evacuator_->moveOff(1, kLong), Progress::kStuck);
  EXPECT_EQ(tier_->table().heldHere(), PageCount(1)) << "of two granules";
  core_.budget.setLimit(PageCount(2 * kPagesPerGranule));
  EXPECT_EQ(evacuator_->moveOff(1, kLong), Progress::kDone);
  for (uint64_t g = 0; g < 2; ++g) EXPECT_EQ(at(g), 100 + g);
}

TEST_F(EvacuatorOfDirectTier, LosesGranules) {
  const FrameIndex second = core_.space->word(first() + kPagesPerGranule).frame();
  EXPECT_EQ(evacuator_->lose(1, second), kPagesPerGranule);
  EXPECT_EQ(core_.space->word(first() + kPagesPerGranule).state(), PageState::kLost);
  EXPECT_EQ(at(0), 100u);
  EXPECT_EQ(core_.stats->lost_pages.load(), kPagesPerGranule);
}

/// A fetch tier is left, and a direct tier has room.
class EvacuatorToDirectTier : public DirectCoreTest {
 protected:
  static constexpr uint64_t kGranules = 3;
  void SetUp() override {
    auto direct = DirectFileTier::createEmulated(Bytes(4 * kGranuleSize));
    ASSERT_TRUE(direct);
    direct_ = direct->get();
    build(std::move(*direct), PageCount(1));
    core_.budget.setLimit(PageCount(0));
    auto fetch = std::make_unique<FakeTier>(PageCount(kGranules * kPagesPerGranule), "left");
    from_ = fetch.get();
    core_.tiers.add(std::unique_ptr<FetchTier>(std::move(fetch)));
    evacuator_ = std::move(*Evacuator::create(core_, *mover_));
    address_ = allocate(kGranules);
    first_ = core_.space->pageAt(address_);
    for (uint64_t i = 0; i < kGranules * kPagesPerGranule; i += 3) makeFar(first_ + i);
    from_->close();
  }
  void makeFar(PageIndex page) {
    const auto frame = from_->allocate(PageCount(1));
    ASSERT_TRUE(frame);
    std::vector<std::byte> bytes(kPageSize);
    const uint64_t number = page.value();
    memcpy(bytes.data(), &number, sizeof number);
    ASSERT_TRUE(from_->write(*frame, bytes.data()));
    PageWord word;
    for (const PageWord next :
         {PageWord(PageState::kLocal, 0, 0, 0), PageWord(PageState::kEvicting, 0, 0, 0),
          PageWord(PageState::kFar, 0, 2, frame->first.value())}) {
      change(page, word, next);
      word = next;
    }
  }
  uint64_t countIn(PageState state) const {
    uint64_t count = 0;
    for (uint64_t i = 0; i < kGranules * kPagesPerGranule; i += 3) {
      count += core_.space->word(first_ + i).state() == state ? 1 : 0;
    }
    return count;
  }
  void expectTheSameBytes() const {
    for (uint64_t i = 0; i < kGranules * kPagesPerGranule; i += 3) {
      const auto* at = reinterpret_cast<volatile uint64_t*>(address_ + i * kPageSize);
      ASSERT_EQ(*at, (first_ + i).value());
    }
  }
  static constexpr uint64_t kFar = (kGranules * kPagesPerGranule + 2) / 3;
  DirectTier* direct_ = nullptr;
  FakeTier* from_ = nullptr;
  std::unique_ptr<Evacuator> evacuator_;
  uintptr_t address_ = 0;
  PageIndex first_;
};

TEST_F(EvacuatorToDirectTier, PassesOnWhatLocalMemoryHasNoRoomFor) {
  EXPECT_EQ(evacuator_->moveOff(2, kLong), Progress::kDone);
  EXPECT_EQ(from_->held(), 0u);
  EXPECT_EQ(countIn(PageState::kDirect), kFar);
  EXPECT_EQ(core_.budget.held(), PageCount(0));
  expectTheSameBytes();
}

TEST_F(EvacuatorToDirectTier, LocalMemoryTakesWhatItHasRoomFor) {
  core_.budget.setLimit(PageCount(7));
  EXPECT_EQ(evacuator_->moveOff(2, kLong), Progress::kDone);
  EXPECT_EQ(countIn(PageState::kLocal), 7u);
  EXPECT_EQ(countIn(PageState::kDirect), kFar - 7);
  EXPECT_EQ(core_.budget.held(), PageCount(7));
  expectTheSameBytes();
}

TEST_F(EvacuatorToDirectTier, WhatFitsNowhereStaysAndTheBudgetIsKept) {
  std::vector<FrameRun> taken;
  while (const auto run = direct_->allocate(PageCount(kPagesPerGranule))) taken.push_back(*run);
  direct_->release(taken.back());
  from_->before = [this](FrameRun, bool) { EXPECT_LE(core_.budget.held(), core_.budget.limit()); };
  EXPECT_EQ(evacuator_->moveOff(2, kLong), Progress::kStuck);
  EXPECT_EQ(countIn(PageState::kDirect), (kPagesPerGranule + 2) / 3) << "of one granule";
  EXPECT_EQ(core_.budget.held(), PageCount(0));
  taken.pop_back();
  for (const FrameRun& run : taken) direct_->release(run);
  EXPECT_EQ(evacuator_->moveOff(2, kLong), Progress::kDone);
  EXPECT_EQ(countIn(PageState::kDirect), kFar);
  expectTheSameBytes();
}

TEST_F(EvacuatorToDirectTier, ItWaitsWhileMoreIsLocalThanMayBe) {
  core_.budget.charge(PageCount(1));
  EXPECT_EQ(evacuator_->moveOff(2, kLong), Progress::kWaits);
  EXPECT_EQ(from_->held(), kFar);
  core_.budget.discharge(PageCount(1));
  EXPECT_EQ(evacuator_->moveOff(2, kLong), Progress::kDone);
}

}  // namespace
}  // namespace tidepool
