// SPDX-License-Identifier: Apache-2.0
// An evictor over a fake core: on the test's own thread, writes end when the test says so.
#pragma once

#include <memory>

#include "runtime/migrate/evict/evictor.h"
#include "tests/migrate/fake_core.h"

namespace tidepool {

constexpr uint64_t kBatch = Staging::kSlotsPerSegment;

class EvictorTest : public FakeCoreTest {
 protected:
  void SetUp() override {
    FakeCoreTest::SetUp();
    tier_ = &addTier();
  }
  void makeEvictor() {
    auto evictor = Evictor::create(core_, *staging_, *policy_);
    ASSERT_TRUE(evictor);
    evictor_ = std::move(*evictor);
  }
  /// So many local pages, each of which holds its number, and the evictor.
  PageIndex begin(uint64_t pages, uint64_t granules = 1) {
    if (evictor_ == nullptr) makeEvictor();
    const PageIndex first = allocate(granules);
    makeLocal(first, pages);
    return first;
  }
  uint64_t start(uint64_t pages) { return evictor_->start(PageCount(pages)).value(); }
  /// All that is on its way arrives, and its memory is freed.
  void finish() {
    tier_->endAll();
    evictor_->advance();
    while (evictor_->recycle()) {
    }
  }
  uint64_t inStaging() const { return evictor_->inStaging().value(); }
  /// A local page with the same bytes in a new frame of the tier, armed since it came.
  PageWord giveCopy(PageIndex page, uint8_t tier = 1) {
    const auto frame = core_.tiers.tier(tier).allocate(PageCount(1));
    EXPECT_TRUE(frame);
    EXPECT_TRUE(core_.tiers.tier(tier).write(*frame, bytesOf(page)));
    const PageWord copy(PageState::kLocal, kFlagFarCopy, tier, frame->first.value());
    change(page, word(page), copy);
    EXPECT_TRUE(core_.port->writeProtect(addressOf(page), Bytes(kPageSize), Wake::kNo));
    return copy;
  }
  const std::byte* bytesOf(PageIndex page) const {
    return reinterpret_cast<const std::byte*>(addressOf(page));
  }
  /// As the fault service does when a page is touched on its way out.
  void rescue(PageIndex page) {
    const PageWord evicting = word(page);
    ASSERT_EQ(evicting.state(), PageState::kEvicting);
    core_.budget.charge(PageCount(1));
    ASSERT_EQ(core_.port
                  ->copy(addressOf(page), staging_->slotMemory(evicting.index()), Bytes(kPageSize),
                         Wake::kNo)
                  .outcome,
              PortOutcome::kDone);
    change(page, evicting, PageWord(PageState::kLocal, 0, 0, 0));
  }
  /// The page is far, and its frame has this word.
  void expectFar(PageIndex page, uint64_t value, uint8_t tier = 1) {
    ASSERT_EQ(state(page), PageState::kFar);
    EXPECT_EQ(word(page).tier(), tier);
    EXPECT_EQ(word(page), PageWord(PageState::kFar, 0, tier, word(page).index()));
    EXPECT_EQ(static_cast<FakeTier&>(core_.tiers.tier(tier)).word(word(page).frame()), value);
    EXPECT_FALSE(present(page));
  }
  void expectLocal(PageIndex page, uint64_t value) {
    EXPECT_EQ(word(page), PageWord(PageState::kLocal, 0, 0, 0));
    ASSERT_TRUE(present(page));
    EXPECT_EQ(load(page), value);
  }
  uint64_t errors() const { return core_.stats->error_count.load(); }
  bool exhausted() const { return core_.room.farExhausted(); }

  FakeTier* tier_ = nullptr;
  std::unique_ptr<Evictor> evictor_;
};

}  // namespace tidepool
