// SPDX-License-Identifier: Apache-2.0
// What the parts of the runtime share, over a fake kernel, a manual clock and fake fetch tiers: for
// unit tests of one part, on the test's own thread.
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <optional>

#include "runtime/migrate/core/shared_policy.h"
#include "runtime/migrate/core/staging.h"
#include "runtime/migrate/direct/granule_mover.h"
#include "runtime/migrate/range_ops.h"
#include "runtime/stats/stats_region.h"
#include "tests/migrate/fake_kernel.h"
#include "tests/migrate/fake_tier.h"

namespace tidepool {

class FakeCoreTest : public testing::Test {
 protected:
  void SetUp() override {
    auto region = StatsRegion::create("managed");
    auto space = ManagedSpace::create(Bytes(64 * kMiB));
    auto account = TreeAccount::open();
    ASSERT_TRUE(region && space && account);
    stats_.emplace(std::move(*region));
    core_.stats = &stats_->page();
    core_.kernel = &kernel_;
    core_.clock = &clock_;
    core_.port = std::make_unique<FakePort>(kernel_);
    core_.space = std::move(*space);
    core_.account = std::move(*account);
    ASSERT_TRUE(core_.need_memory.open() && core_.freed_memory.open());
    core_.budget.setLimit(PageCount(4096));
    VictimConfig config;
    config.capacity = PageCount(4096);
    config.sampling_cpu = 0;
    usePolicy(config);
    staging_ = std::move(*Staging::create(*core_.port, kernel_));
    mover_ = std::move(*GranuleMover::create(core_));
    ranges_ = std::make_unique<RangeOps>(core_, *policy_, *mover_);
  }

  /// Before anything that uses the policy is made.
  void usePolicy(const VictimConfig& config) {
    policy_ = std::move(*SharedPolicy::create(config, PageCount(core_.space->pageEnd().value())));
  }
  /// Its number is that of the call.
  FakeTier& addTier(PageCount frames = PageCount(2048), const char* name = "fake") {
    auto tier = std::make_unique<FakeTier>(frames, name);
    FakeTier& made = *tier;
    core_.tiers.add(std::unique_ptr<FetchTier>(std::move(tier)));
    return made;
  }
  /// The first page of so many granules, of which nothing is anywhere yet.
  PageIndex allocate(uint64_t granules = 1) {
    const auto address = ranges_->allocate(Bytes(granules * kGranuleSize), Bytes(kGranuleSize));
    EXPECT_TRUE(address);
    return core_.space->pageAt(address.value_or(core_.space->base()));
  }
  /// What makeLocal() and makeFar() fill a page with.
  struct Numbered {
    alignas(kPageSize) std::byte bytes[kPageSize] = {};
  };
  static Numbered numbered(PageIndex page) {
    Numbered filled;
    const uint64_t number = page.value();
    memcpy(filled.bytes, &number, sizeof number);
    filled.bytes[kPageSize - 1] = std::byte{1};
    return filled;
  }
  /// Makes empty pages local, each with its own number in its first word, and not all zeros.
  void makeLocal(PageIndex first, uint64_t count) {
    for (uint64_t i = 0; i < count; ++i) makeLocal(first + i, numbered(first + i).bytes);
  }
  void makeLocal(PageIndex page, const std::byte (&bytes)[kPageSize]) {
    ASSERT_EQ(core_.port->copy(addressOf(page), bytes, Bytes(kPageSize), Wake::kNo).outcome,
              PortOutcome::kDone);
    change(page, PageWord(), PageWord(PageState::kLocal, 0, 0, 0));
    core_.budget.charge(PageCount(1));
  }
  /// Makes empty pages far, in new frames of a tier, as makeLocal() would fill them.
  void makeFar(PageIndex first, uint64_t count, uint8_t tier = 1) {
    for (PageIndex page = first; page < first + count; ++page) {
      const auto frame = core_.tiers.tier(tier).allocate(PageCount(1));
      ASSERT_TRUE(frame);
      ASSERT_TRUE(core_.tiers.tier(tier).write(*frame, numbered(page).bytes));
      sendOut(page, PageWord(PageState::kFar, 0, tier, frame->first.value()));
    }
  }
  /// No state leads from kEmpty to kFar or kZero: as if it had been local and written out.
  void sendOut(PageIndex page, PageWord to) {
    PageWord from;
    for (const PageWord next :
         {PageWord(PageState::kLocal, 0, 0, 0), PageWord(PageState::kEvicting, 0, 0, 0), to}) {
      change(page, from, next);
      from = next;
    }
  }
  void change(PageIndex page, PageWord from, PageWord to) {
    const GranuleLock granule(*core_.space, granuleOf(page));
    ASSERT_TRUE(core_.space->change(granule, page, from, to));
  }

  PageWord word(PageIndex page) const { return core_.space->word(page); }
  PageState state(PageIndex page) const { return word(page).state(); }
  uintptr_t addressOf(PageIndex page) const { return core_.space->addressOf(page); }
  uint64_t load(PageIndex page) const { return kernel_.load(addressOf(page)); }
  void store(PageIndex page, uint64_t value) { kernel_.store(addressOf(page), value); }
  /// Every byte of a local page becomes zero.
  void wipe(PageIndex page) {
    store(page, 0);
    memset(reinterpret_cast<void*>(addressOf(page)), 0, kPageSize);
  }
  bool present(PageIndex page) const { return kernel_.present(addressOf(page)); }
  void discard(PageIndex page, uint64_t count = 1) {
    ASSERT_TRUE(ranges_->discard(addressOf(page), Bytes(count * kPageSize)));
  }
  uint64_t held() const { return core_.budget.held().value(); }
  void setLimit(uint64_t pages) { core_.budget.setLimit(PageCount(pages)); }
  static bool rung(Doorbell& bell) {
    pollfd wait{bell.fd(), POLLIN, 0};
    const bool is = poll(&wait, 1, 0) == 1;
    if (is) bell.clear();
    return is;
  }

  FakeKernel kernel_;
  ManualClock clock_;
  std::optional<StatsRegion> stats_;
  Core core_;
  std::unique_ptr<SharedPolicy> policy_;
  std::unique_ptr<Staging> staging_;
  std::unique_ptr<GranuleMover> mover_;
  std::unique_ptr<RangeOps> ranges_;
};

}  // namespace tidepool
