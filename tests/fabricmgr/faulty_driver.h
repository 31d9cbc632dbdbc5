// SPDX-License-Identifier: Apache-2.0
// A driver around the emulated pool's that fails when the test says so: before it has done what it
// was told, or after, so that the manager cannot tell. Thread-safe if the test's function is.
#pragma once

#include <functional>
#include <memory>
#include <utility>

#include "fabricmgr/device/drivers.h"

namespace tidepool::fabric {

enum class Fault { kNone, kBefore, kAfter, kNonzero };
/// Asked for every action: "attach", "revoke", "scrub", "verify", "inspect", "open"; "progress" is
/// of a verify, and what it answers does not matter.
using FaultPlan = std::function<Fault(const char* action, const Device& device)>;

class FaultyDriver final : public DeviceDriver {
 public:
  FaultyDriver(std::shared_ptr<DeviceDriver> real, Device device, FaultPlan plan)
      : real_(std::move(real)), device_(std::move(device)), plan_(std::move(plan)) {}

  Result<Bytes> capacity() override { return real_->capacity(); }
  Status attach(const Grant& grant) override {
    return faulty<Status>("attach", [&] { return real_->attach(grant); });
  }
  Status revoke(const Grant& grant) override {
    return faulty<Status>("revoke", [&] { return real_->revoke(grant); });
  }
  Result<ScrubEvidence> scrub(const Grant& grant, const Progress& progress) override {
    return faulty<Result<ScrubEvidence>>("scrub", [&] { return real_->scrub(grant, progress); });
  }
  Result<ScrubEvidence> verify(const Grant& grant, const ScrubEvidence& scrubbed,
                               const Progress& progress) override {
    const Progress told = [&](Bytes done) {
      progress(done);
      (void)plan_("progress", device_);
    };
    return faulty<Result<ScrubEvidence>>("verify",
                                         [&] { return real_->verify(grant, scrubbed, told); });
  }
  Status forget(RegionId region) override { return real_->forget(region); }
  Result<std::vector<GrantReport>> inspect() override {
    return faulty<Result<std::vector<GrantReport>>>("inspect", [&] { return real_->inspect(); });
  }
  Result<Pass> pass(const Grant& grant) override { return real_->pass(grant); }
  Status release() override { return real_->release(); }

 private:
  template <typename Outcome, typename Action>
  Outcome faulty(const char* name, Action action) {
    const Fault fault = plan_(name, device_);
    if (fault == Fault::kBefore) return fail(ErrorCode::kUnreachable, "the cable is out");
    if (fault == Fault::kNonzero) return fail(ErrorCode::kCorrupt, "a byte was not zero");
    auto outcome = action();
    if (fault == Fault::kAfter) return fail(ErrorCode::kTimedOut, "the answer was lost");
    return outcome;
  }

  const std::shared_ptr<DeviceDriver> real_;
  const Device device_;
  const FaultPlan plan_;
};

inline DriverFactory faultyDrivers(const Clock& wall, FaultPlan plan) {
  return [&wall, plan](const Device& device,
                       Leadership& leadership) -> Result<std::shared_ptr<DeviceDriver>> {
    if (plan("open", device) != Fault::kNone) {
      return fail(ErrorCode::kUnreachable, "the device is away");
    }
    auto real = openPoolFile(device, leadership, wall);
    if (!real) return real;
    return std::make_shared<FaultyDriver>(std::move(*real), device, plan);
  };
}

}  // namespace tidepool::fabric
