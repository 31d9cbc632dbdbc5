// SPDX-License-Identifier: Apache-2.0
// A fault service over a fake core, a turn of its loop at a time, and touches of pages.
#pragma once

#include <memory>
#include <string>
#include <utility>

#include "runtime/migrate/evict/pool_keeper.h"
#include "runtime/migrate/fault/fault_service.h"
#include "tests/migrate/fake_core.h"

namespace tidepool {

constexpr uint64_t kReads = 64;  // that can be in flight

class FaultServiceTest : public FakeCoreTest {
 protected:
  void SetUp() override {
    FakeCoreTest::SetUp();
    tier_ = &addTier();
  }
  void makeService(std::unique_ptr<PerfPort> samples = openKernelPerfPort()) {
    waker_ = std::make_unique<Waker>(*core_.port);
    auto faults =
        FaultService::create(core_, *staging_, *policy_, *mover_, *waker_, std::move(samples));
    ASSERT_TRUE(faults);
    faults_ = std::move(*faults);
  }
  void turn() {
    if (faults_ == nullptr) makeService();
    faults_->turn();
  }
  /// A thread touches the page, which is not there.
  void touch(PageIndex page) { ASSERT_FALSE(kernel_.touch(addressOf(page))); }
  void ask(PageIndex page) {
    touch(page);
    turn();
  }
  bool waits(PageIndex page) const { return kernel_.waits(addressOf(page)); }
  /// Pages [first, first + count) are far; none of them is beside another in the tier.
  PageIndex farPages(uint64_t count) {
    const PageIndex first = allocate();
    makeFar(first, count);
    return first;
  }
  /// One page to which nothing is near.
  PageIndex farPage() { return farPages(1); }
  /// All reads end, and what they bring is installed.
  void arrive(ErrorCode error = ErrorCode{}) {
    tier_->endAll(error);
    turn();
  }
  void expectLocal(PageIndex page, uint64_t value, uint8_t flags = 0) {
    EXPECT_EQ(word(page), PageWord(PageState::kLocal, flags, 0, 0)) << page.value();
    ASSERT_TRUE(present(page));
    EXPECT_EQ(load(page), value);
    EXPECT_FALSE(waits(page));
  }
  void expectFresh(PageIndex first, uint64_t count) {
    for (uint64_t i = 0; i < count; ++i) expectLocal(first + i, 0);
  }
  /// So many of the pages from `first` on are in that state.
  uint64_t countIn(PageState wanted, PageIndex first, uint64_t count) const {
    uint64_t found = 0;
    for (uint64_t i = 0; i < count; ++i) found += state(first + i) == wanted ? 1 : 0;
    return found;
  }
  uint64_t answered() const {
    uint64_t sum = 0;
    for (const StatCounter& bucket : core_.stats->fault_latency.buckets) sum += bucket.load();
    return sum;
  }
  bool faultsWait() const { return core_.room.faultsWait(); }
  uint64_t errors() const { return core_.stats->error_count.load(); }
  bool errorSays(const char* text) const {
    return std::string(core_.stats->errors[0]).find(text) != std::string::npos;
  }
  void addPool() {
    auto pool = CompressedPool::create(Bytes(4 * kGranuleSize));
    ASSERT_TRUE(pool);
    core_.pool = pool->get();
    core_.pool_number = core_.tiers.add(std::move(*pool));
  }
  /// Puts an empty page into the compressed pool.
  void pack(PageIndex page) {
    Channels channels(core_.tiers);
    auto keeper = PoolKeeper::create(core_, *policy_, channels);
    ASSERT_TRUE(keeper);
    const auto frame = (*keeper)->put(page, numbered(page).bytes);
    ASSERT_TRUE(frame);
    sendOut(page, PageWord(PageState::kFar, 0, core_.pool_number, frame->value()));
  }
  /// A page of which a copy is in a staging slot, on its way out.
  void makeEvicting(PageIndex page, uint64_t slot) {
    const PageWord evicting(PageState::kEvicting, 0, 0, slot);
    change(page, word(page), evicting);
    ASSERT_EQ(
        core_.port->move(staging_->slotAddress(slot), addressOf(page), Bytes(kPageSize), Wake::kNo)
            .outcome,
        PortOutcome::kDone);
  }

  FakeTier* tier_ = nullptr;
  std::unique_ptr<Waker> waker_;
  std::unique_ptr<FaultService> faults_;
};

}  // namespace tidepool
