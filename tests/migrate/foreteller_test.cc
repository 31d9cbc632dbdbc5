// SPDX-License-Identifier: Apache-2.0
// When threads are sampled and when no longer, with rings in the kernel's place; and that what
// comes of it is right: an index array in this process's own memory, targets in the managed space.
#include "runtime/migrate/fault/foreteller.h"

#include <gtest/gtest.h>

#include <random>
#include <vector>

#include "runtime/space/granule_lock.h"
#include "tests/migrate/fake_perf_port.h"

namespace tidepool {
namespace {

constexpr uint64_t kPages = 4096;
constexpr Nanoseconds kSecond{1'000'000'000};
constexpr PageCount kRoom(512);

class ForetellerTest : public testing::Test {
 protected:
  void SetUp() override {
    auto space = ManagedSpace::create(Bytes(64 * kMiB));
    ASSERT_TRUE(space);
    core_.space = std::move(*space);
    core_.stats = &page_;
    for (uint64_t page = 0; page < kPages; ++page) {
      const GranuleLock granule(*core_.space, granuleOf(PageIndex(page)));
      // By way of what a page goes through on its way out.
      for (const PageState state : {PageState::kLocal, PageState::kEvicting, PageState::kFar}) {
        const PageWord before = core_.space->word(PageIndex(page));
        const bool far = state == PageState::kFar;
        ASSERT_TRUE(core_.space->change(granule, PageIndex(page), before,
                                        PageWord(state, 0, far ? 1 : 0, far ? page : 0)));
      }
    }
    std::mt19937_64 random(4);
    for (uint32_t& index : indexes_) index = static_cast<uint32_t>(random() % kPages);
    foreteller_ = Foreteller::create(core_, std::make_unique<FakePerfPort>(threads_));
    ASSERT_NE(foreteller_, nullptr);
  }
  /// A thread faults on what element `at` leads to, `later` after the fault before.
  void fault(size_t at, Nanoseconds later = Nanoseconds(100'000), int thread = 7) {
    now_ = now_ + later;
    const uintptr_t address = core_.space->addressOf(PageIndex(indexes_[at % indexes_.size()]));
    FaultSample sample{.code = 0x1234, .address = address + 8, .thread = thread};
    sample.registers[6] = reinterpret_cast<uint64_t>(&indexes_[at % indexes_.size()]);
    threads_.latest[thread] = sample;
    foreteller_->onFarFault({.address = address, .thread = thread}, kRoom, now_);
  }
  /// One whose registers lead nowhere.
  void blankFault(int thread = 7, uint64_t code = 0x99) {
    now_ = now_ + Nanoseconds(100'000);
    const uintptr_t address = core_.space->addressOf(PageIndex(random_() % kPages));
    threads_.latest[thread] = {.code = code, .address = address, .thread = thread};
    foreteller_->onFarFault({.address = address, .thread = thread}, kRoom, now_);
  }

  StatsPage page_{};
  Core core_;
  FakeThreads threads_;
  std::vector<uint32_t> indexes_ = std::vector<uint32_t>(20'000);
  std::unique_ptr<Foreteller> foreteller_;
  std::mt19937_64 random_{9};
  Nanoseconds now_ = kSecond;
};

TEST_F(ForetellerTest, SamplesAThreadThatFaultsOften) {
  for (size_t i = 0; i < 1000; ++i) fault(i, Nanoseconds(20'000'000));
  EXPECT_EQ(threads_.opened, 0) << "fifty a second";
  for (size_t i = 0; i < 64 + 63; ++i) fault(i);
  EXPECT_EQ(threads_.opened, 1);
  EXPECT_TRUE(foreteller_->watching());
  for (size_t i = 0; i < 400; ++i) fault(200 + i * 3);
  EXPECT_GT(page_.foretold_pages.load(), 100u);
  EXPECT_EQ(threads_.open, 1);
}

TEST_F(ForetellerTest, NamesThePagesOfTheNextElements) {
  for (size_t i = 0; i < 200; ++i) fault(i * 3);
  now_ = now_ + Nanoseconds(100'000);
  const uintptr_t address = core_.space->addressOf(PageIndex(indexes_[5000]));
  threads_.latest[7].address = address + 8;
  threads_.latest[7].registers[6] = reinterpret_cast<uint64_t>(&indexes_[5000]);
  const auto pages = foreteller_->onFarFault({.address = address, .thread = 7}, kRoom, now_);
  ASSERT_GT(pages.size(), 4u);
  size_t at = 5001;
  for (const uint64_t page : pages) {
    // One may have been left out, or come twice.
    while (at < 5000 + 600 && core_.space->pageAt(page) != PageIndex(indexes_[at])) ++at;
    ASSERT_LT(at, 5600u);
  }
}

TEST_F(ForetellerTest, EndsWhenTheThreadFaultsNoMore) {
  for (size_t i = 0; i < 200; ++i) fault(i);
  ASSERT_EQ(threads_.open, 1);
  foreteller_->tend(now_ + Nanoseconds(500'000'000));
  EXPECT_EQ(threads_.open, 1);
  foreteller_->tend(now_ + kSecond + kSecond);
  EXPECT_EQ(threads_.open, 0);
  EXPECT_FALSE(foreteller_->watching());
}

TEST_F(ForetellerTest, PausesWhereNothingComesOfItForSecondsAtMost) {
  for (int i = 0; i < 400'000; ++i) blankFault();  // 40 s
  EXPECT_GE(threads_.opened, 9);
  EXPECT_LE(threads_.opened, 13) << "after 1 s, 2 s, and 4 s each time";
}

TEST_F(ForetellerTest, FindsALoopThatBeginsAfterALongTimeInVain) {
  for (int i = 0; i < 1'000'000; ++i) blankFault();  // 100 s
  EXPECT_EQ(page_.foretold_pages.load(), 0u);
  for (size_t i = 0; i < 50'000; ++i) fault(i % 6000 * 3);  // 5 s
  EXPECT_GT(page_.foretold_pages.load(), 100u);
}

// Lessons that others' lessons follow are no reason to go on.
TEST_F(ForetellerTest, PausesWhereLessonsComeToNothing) {
  for (uint64_t i = 0; i < 2 * 64 + 512; ++i) blankFault(7, 0x99 + i % 40);
  EXPECT_EQ(threads_.opened, 1);
  EXPECT_EQ(threads_.open, 0);
}

TEST_F(ForetellerTest, GoesOnThroughOtherFaultsWhereMuchCameOfIt) {
  for (size_t i = 0; i < 1000; ++i) fault(i * 3);
  for (int i = 0; i < 10'000; ++i) blankFault();
  EXPECT_EQ(threads_.open, 1);
  for (int i = 0; i < 20'000; ++i) blankFault();
  EXPECT_EQ(threads_.open, 0) << "it does not come again";
}

TEST_F(ForetellerTest, EndsWhereSamplesAreNotOfTheThreadsFaults) {
  for (size_t i = 0; i < 200; ++i) fault(i);
  ASSERT_EQ(threads_.open, 1);
  threads_.latest[7].address = 4096;
  for (int i = 0; i < 40; ++i) {
    foreteller_->onFarFault({.address = core_.space->addressOf(PageIndex(1)), .thread = 7}, kRoom,
                            now_);
  }
  EXPECT_EQ(threads_.open, 0);
}

TEST_F(ForetellerTest, AsksNoMoreWhereItIsNotPermitted) {
  threads_.refuses = ErrorCode::kPermission;
  for (size_t i = 0; i < 200; ++i) fault(i);
  threads_.refuses.reset();
  for (size_t i = 0; i < 2000; ++i) fault(i);
  EXPECT_EQ(threads_.opened, 0);
  EXPECT_EQ(page_.foretold_pages.load(), 0u);
}

TEST_F(ForetellerTest, SamplesNoMoreThreadsThanItHasRoomFor) {
  for (size_t i = 0; i < 100'000; ++i) {
    fault(i, Nanoseconds(1'000), 100 + static_cast<int>(i % 40));
    ASSERT_LE(threads_.open, 16);
  }
  EXPECT_GT(threads_.opened, 0);
}

}  // namespace
}  // namespace tidepool
