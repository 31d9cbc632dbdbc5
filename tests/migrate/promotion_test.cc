// SPDX-License-Identifier: Apache-2.0
// Promotion of several granules after one look at the process's descriptors: nobody holds a lock
// between the steps, and what the program does there is neither lost nor undone.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstring>
#include <fstream>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "tests/migrate/direct_core.h"

namespace tidepool {
namespace {

constexpr uint64_t kGranules = 4;

class Promotions : public DirectCoreTest {
 protected:
  void SetUp() override {
    auto tier = DirectFileTier::createEmulated(Bytes(16 * kMiB));
    ASSERT_TRUE(tier);
    ASSERT_NO_FATAL_FAILURE(build(std::move(*tier), PageCount(8 * kPagesPerGranule)));
    address_ = allocate(kGranules);
    first_ = core_.space->pageAt(address_);
    for (uint64_t i = 0; i < kGranules; ++i) ASSERT_TRUE(placeFar(granuleOf(first_) + i));
    for (uint64_t page = 0; page < kGranules * kPagesPerGranule; ++page) word(page) = page + 1;
  }

  volatile uint64_t& word(uint64_t page) const {
    return *reinterpret_cast<volatile uint64_t*>(address_ + page * kPageSize);
  }
  PageState stateOf(uint64_t page) const { return core_.space->word(first_ + page).state(); }
  /// Pages [10, 20) and [100, 300) of the granule.
  void close(uint64_t number) {
    Promoter::Promotion& promotion = promotions_[number];
    promotion.count = 2;
    promotion.runs[0] = {pageOf(number, 10), 10};
    promotion.runs[1] = {pageOf(number, 100), 200};
    const GranuleLock granule(*core_.space, granuleOf(first_) + number);
    mover_->promoter.close(granule, promotion);
    ASSERT_EQ(promotion.closed, 2u);
  }
  size_t finish(uint64_t number, bool pinned) {
    const GranuleLock granule(*core_.space, granuleOf(first_) + number);
    return mover_->promoter.finish(granule, promotions_[number], pinned);
  }
  PageIndex pageOf(uint64_t granule, uint64_t page) const {
    return first_ + granule * kPagesPerGranule + page;
  }
  void expectContents() const {
    for (uint64_t page = 0; page < kGranules * kPagesPerGranule; ++page) {
      ASSERT_EQ(word(page), page + 1) << page;
    }
  }
  /// Writes; returns once the writer sleeps, which is before it has written.
  std::thread writer(uint64_t page) {
    std::atomic<pid_t> id{0};
    std::thread thread([this, page, &id] {
      id = static_cast<pid_t>(syscall(SYS_gettid));
      word(page) = 4711;
    });
    while (id == 0) std::this_thread::yield();
    const std::string path = "/proc/self/task/" + std::to_string(id) + "/stat";
    for (std::string line;
         line.find(") S ") == std::string::npos && line.find(") D ") == std::string::npos;) {
      std::ifstream file(path);
      std::getline(file, line);
    }
    return thread;
  }

  uintptr_t address_ = 0;
  PageIndex first_;
  std::array<Promoter::Promotion, kGranules> promotions_;
};

TEST_F(Promotions, SeveralGranulesMoveAfterOneLook) {
  for (uint64_t i = 0; i < kGranules; ++i) close(i);
  EXPECT_FALSE(mover_->promoter.lookForPins());
  for (uint64_t i = 0; i < kGranules; ++i) EXPECT_EQ(finish(i, false), 2u);
  for (uint64_t i = 0; i < kGranules; ++i) {
    EXPECT_EQ(stateOf(i * kPagesPerGranule + 10), PageState::kLocal);
    EXPECT_EQ(stateOf(i * kPagesPerGranule + 299), PageState::kLocal);
    EXPECT_EQ(stateOf(i * kPagesPerGranule + 300), PageState::kDirect);
  }
  expectContents();
  EXPECT_EQ(core_.budget.held(), PageCount(kGranules * 210));
}

TEST_F(Promotions, APinBeforeTheLookKeepsAllOfThem) {
  for (uint64_t i = 0; i < kGranules; ++i) close(i);
  const UniqueFd file(open("/var/tmp", O_TMPFILE | O_RDWR | O_DIRECT | O_CLOEXEC, 0600));
  ASSERT_TRUE(file.valid());
  const bool pinned = mover_->promoter.lookForPins();
  EXPECT_TRUE(pinned);
  for (uint64_t i = 0; i < kGranules; ++i) EXPECT_EQ(finish(i, pinned), 0u);
  for (uint64_t page = 0; page < kGranules * kPagesPerGranule; ++page) word(page) = page + 1;
  expectContents();
  EXPECT_EQ(core_.budget.held(), PageCount());
  // Nothing is closed, to begin with, as long as that is open.
  Promoter::Promotion again;
  again.count = 1;
  again.runs[0] = {first_, 1};
  const GranuleLock granule(*core_.space, granuleOf(first_));
  mover_->promoter.close(granule, again);
  EXPECT_EQ(again.closed, 0u);
  EXPECT_EQ(core_.stats->promotions_held_by_pins, kGranules * 210 + 1);
}

TEST_F(Promotions, WhoIsSaidToPinNothingIsNotLookedAt) {
  const UniqueFd file(open("/var/tmp", O_TMPFILE | O_RDWR | O_DIRECT | O_CLOEXEC, 0600));
  ASSERT_TRUE(file.valid());
  core_.options.pins = Pins::kNever;
  for (uint64_t i = 0; i < kGranules; ++i) close(i);
  EXPECT_FALSE(mover_->promoter.lookForPins());
  for (uint64_t i = 0; i < kGranules; ++i) EXPECT_EQ(finish(i, false), 2u);
  EXPECT_EQ(core_.stats->promotions_held_by_pins, 0u);
  expectContents();
}

// A writer that the kernel holds back in the midst of a store looks like a race to TSan.
#ifndef TIDEPOOL_SANITIZED_THREAD
TEST_F(Promotions, AWriterWaitsAndWritesToWhereThePageIsThen) {
  for (const bool pinned : {false, true}) {
    close(pinned ? 1 : 0);
    const uint64_t page = (pinned ? kPagesPerGranule : 0) + 150;
    std::thread thread = writer(page);
    EXPECT_EQ(word(page), page + 1) << "readers go on";
    finish(pinned ? 1 : 0, pinned);
    thread.join();
    EXPECT_EQ(word(page), 4711u);
    EXPECT_EQ(stateOf(page), pinned ? PageState::kDirect : PageState::kLocal);
  }
}
#endif

TEST_F(Promotions, WhatIsDoneToAGranuleMeanwhileEndsItsPromotionAlone) {
  for (uint64_t i = 0; i < kGranules; ++i) close(i);
  // Discarded, given back, closed to access, and nothing at all.
  const uintptr_t page = address_ + 150 * kPageSize;
  ASSERT_TRUE(ranges_->discard(page, Bytes(kPageSize)));
  ASSERT_TRUE(ranges_->release(address_ + kGranuleSize + 12 * kPageSize, Bytes(2 * kPageSize)));
  ASSERT_TRUE(ranges_->protect(address_ + 2 * kGranuleSize, Bytes(kGranuleSize), PROT_READ));
  EXPECT_EQ(finish(0, false), 0u);
  EXPECT_EQ(finish(1, false), 0u);
  EXPECT_EQ(finish(2, false), 0u);
  EXPECT_EQ(finish(3, false), 2u);
  EXPECT_EQ(word(150), 0u);
  EXPECT_EQ(core_.budget.held(), PageCount(210));
  // Open again, all of them.
  ASSERT_TRUE(
      ranges_->protect(address_ + 2 * kGranuleSize, Bytes(kGranuleSize), PROT_READ | PROT_WRITE));
  for (uint64_t at = 0; at < kGranules * kPagesPerGranule; ++at) {
    if (at / 2 == (kPagesPerGranule + 12) / 2) continue;
    ASSERT_EQ(word(at), at == 150 ? 0 : at + 1);
    word(at) = at + 1;
  }
}

}  // namespace
}  // namespace tidepool
