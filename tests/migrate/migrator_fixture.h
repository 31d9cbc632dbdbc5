// SPDX-License-Identifier: Apache-2.0
// A migrator over a fake core, a turn of its loop at a time.
#pragma once

#include <memory>
#include <string>

#include "runtime/migrate/migrator.h"
#include "tests/migrate/fake_core.h"

namespace tidepool {

constexpr Nanoseconds kTick(20'000'000);
constexpr Bytes pages(uint64_t count) { return Bytes(count * kPageSize); }

class MigratorTest : public FakeCoreTest {
 protected:
  void SetUp() override {
    FakeCoreTest::SetUp();
    tier_ = &addTier(PageCount(4096));
    waker_ = std::make_unique<Waker>(*core_.port);
    advice_ = std::make_unique<Advice>(core_, *policy_, mover_->demoter);
  }
  void makeMigrator(std::unique_ptr<Balancer> balancer = nullptr) {
    auto evictor = Evictor::create(core_, *staging_, *policy_);
    ASSERT_TRUE(evictor);
    evictor_ = evictor->get();
    auto migrator =
        Migrator::create(core_, std::move(*evictor), std::move(balancer), *waker_, *advice_);
    ASSERT_TRUE(migrator);
    migrator_ = std::move(*migrator);
  }
  void turn() {
    if (migrator_ == nullptr) makeMigrator();
    migrator_->turn();
  }
  /// So many local pages with nothing in them but their numbers.
  PageIndex localPages(uint64_t count) {
    const PageIndex first = allocate(count / kPagesPerGranule + 1);
    makeLocal(first, count);
    return first;
  }
  /// Writes under way end; the migrator hears of it.
  void arrive(ErrorCode error = ErrorCode{}) {
    tier_->endAll(error);
    turn();
  }
  uint64_t limit() const { return core_.budget.limit().value(); }
  uint64_t out() const { return evictor_->inStaging().value(); }
  uint64_t errors() const { return core_.stats->error_count.load(); }
  std::string error() const { return core_.stats->errors[0]; }
  const StatsPage& stats() const { return *core_.stats; }
  /// A fault waits for room.
  void letFaultsWait() { RoomState::Demand(core_.room).setFaultsWait(true); }

  FakeTier* tier_ = nullptr;
  std::unique_ptr<Waker> waker_;
  std::unique_ptr<Advice> advice_;
  Evictor* evictor_ = nullptr;
  std::unique_ptr<Migrator> migrator_;
};

}  // namespace tidepool
