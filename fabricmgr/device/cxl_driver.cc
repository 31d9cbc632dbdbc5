// SPDX-License-Identifier: Apache-2.0
// CxlDriver: the table of grants, made durable before anything is answered, and in step with the
// switch: bound before a grant is noted, unbound before its end is. What a crash left between the
// two is undone when the driver is opened.
#include "fabricmgr/device/cxl_driver.h"

#include <unistd.h>

#include <algorithm>

#include "fabricmgr/cxl/dax_bytes.h"
#include "fabricmgr/cxl/host.h"
#include "fabricmgr/device/erasure.h"
#include "fabricmgr/device/logged_grants.h"
#include "fabricmgr/device/switch_command.h"
#include "fabricmgr/model/fault_point.h"

namespace tidepool::fabric {
namespace {

constexpr Nanoseconds kSwitchPatience(60'000'000'000);
constexpr Nanoseconds kHotPlugPatience(30'000'000'000);
// A terabyte at a few gigabytes a second, with room to spare.
constexpr Nanoseconds kSanitizePatience(1'800'000'000'000);

class CxlDriver final : public DeviceDriver {
 public:
  CxlDriver(std::string serial, CxlSettings settings, Bytes capacity,
            std::unique_ptr<LoggedGrants> grants, const Clock& wall_clock)
      : serial_(std::move(serial)),
        settings_(std::move(settings)),
        switch_(settings_.switch_program, kSwitchPatience),
        capacity_(capacity),
        grants_(std::move(grants)),
        wall_clock_(wall_clock) {}

  /// Brings the switch in step with what is noted.
  Status restore(const std::string& bound_to);

  Result<Bytes> capacity() override { return capacity_; }
  Status attach(const Grant& grant) override;
  Status revoke(const Grant& grant) override;
  Result<ScrubEvidence> scrub(const Grant& grant, const Progress& progress) override;
  Result<ScrubEvidence> verify(const Grant& grant, const ScrubEvidence& scrubbed,
                               const Progress& progress) override;
  Status forget(RegionId region) override {
    grants_->forget(region);
    return {};
  }
  Result<std::vector<GrantReport>> inspect() override { return grants_->all(); }
  Result<Pass> pass(const Grant&) override { return Pass{kCxlScheme + serial_, ""}; }
  Status release() override { return grants_->release(); }

 private:
  bool isSwitched() const { return !settings_.switch_program.empty(); }
  Status check(const Grant& grant);
  Result<UniqueFd> openHere();
  Status leaveHere();

  const std::string serial_;
  const CxlSettings settings_;
  const SwitchCommand switch_;
  const Bytes capacity_;
  const std::unique_ptr<LoggedGrants> grants_;
  const Clock& wall_clock_;
  const cxl::Host host_;
};

bool isGranted(const GrantReport& report) { return report.grant.state == GrantState::kGranted; }

Status CxlDriver::restore(const std::string& bound_to) {
  const std::vector<GrantReport> grants = grants_->all();
  // Bound, and granted to nobody: a grant that was not noted any more, or an erasure that was cut
  // off. Both begin anew.
  if (!isSwitched() || bound_to.empty() || std::any_of(grants.begin(), grants.end(), isGranted)) {
    return {};
  }
  return bound_to == settings_.host ? leaveHere() : switch_.unbind(serial_);
}

/// Of whole devices alone with a switch.
Status CxlDriver::check(const Grant& grant) {
  const bool whole = grant.extents.size() == 1 && grant.extents.front().length == capacity_;
  if (isSwitched() && !grant.extents.empty() && !whole) {
    return fail(ErrorCode::kInvalidArgument, "a logical device is given out whole: %llu bytes",
                static_cast<unsigned long long>(capacity_.value()));
  }
  return grants_->check(grant);
}

Status CxlDriver::attach(const Grant& grant) {
  TP_TRY(check(grant));
  if (isSwitched()) {
    TP_TRY(grant.extents.empty() ? switch_.unbind(serial_) : switch_.bind(serial_, grant.host));
  }
  GrantReport report{grant, {}};
  report.grant.state = GrantState::kGranted;
  return grants_->record(report);
}

Status CxlDriver::revoke(const Grant& grant) {
  TP_TRY(check(grant));
  if (isSwitched()) TP_TRY(switch_.unbind(serial_));
  GrantReport report{grant, {}};
  report.grant.state = GrantState::kRevoked;
  return grants_->record(report);
}

/// The device's memory on the manager's own machine.
Result<UniqueFd> CxlDriver::openHere() {
  const auto made = [&]() -> Status {
    if (isSwitched()) {
      TP_TRY(switch_.bind(serial_, settings_.host));
      TP_TRY(host_.await(serial_, kHotPlugPatience));
    }
    TP_TRY(host_.create(serial_));
    return host_.use(serial_, cxl::Mode::kDevice);
  }();
  if (!made) return tl::unexpected(made.error());
  const auto dax = host_.daxOf(serial_);
  if (!dax) return tl::unexpected(dax.error());
  return cxl::openDax("/dev/" + dax->name);
}

Status CxlDriver::leaveHere() {
  const Status destroyed = host_.destroy(serial_);
  // It may not have come here at all before it was cut off.
  if (!destroyed && destroyed.error().code() != ErrorCode::kNotFound) return destroyed;
  return switch_.unbind(serial_);
}

Result<ScrubEvidence> CxlDriver::scrub(const Grant& grant, const Progress& progress) {
  TP_TRY(grants_->mayErase(grant));
  const ScrubEvidence evidence = beginErasure(grant, wall_clock_);
  if (isSwitched()) {
    TP_TRY(switch_.bind(serial_, settings_.host));
    TP_TRY(host_.await(serial_, kHotPlugPatience));
    TP_TRY(host_.destroy(serial_));
    TP_TRY(host_.sanitize(serial_, kSanitizePatience, [](Nanoseconds) {}));
  } else {
    const auto dax = openHere();
    if (!dax) return tl::unexpected(dax.error());
    Bytes done;
    for (const Extent& extent : grant.extents) {
      TP_TRY(cxl::zeroBytes(*dax, extent.offset, extent.length));
      progress(done += extent.length);
    }
  }
  faultPoint(FaultPoint::kPoolExtentErased);
  return evidence;
}

Result<ScrubEvidence> CxlDriver::verify(const Grant& grant, const ScrubEvidence& scrubbed,
                                        const Progress& progress) {
  TP_TRY(grants_->mayErase(grant));
  ReadBack read(scrubbed, progress);
  {
    const auto dax = openHere();
    if (!dax) return tl::unexpected(dax.error());
    for (const Extent& extent : grant.extents) {
      TP_TRY(
          cxl::readBytes(*dax, extent.offset, extent.length, [&](auto piece) { read.add(piece); }));
    }
  }
  const auto evidence = read.finish(wall_clock_);
  if (isSwitched()) TP_TRY(leaveHere());
  if (!evidence) return evidence;
  GrantReport report{grant, *evidence};
  report.grant.state = GrantState::kScrubbed;
  TP_TRY(grants_->record(report));
  return evidence;
}

/// How large it is, and to whom it is bound.
Result<Binding> lookAt(const std::string& serial, const CxlSettings& settings) {
  if (!settings.switch_program.empty()) {
    return SwitchCommand(settings.switch_program, kSwitchPatience).show(serial);
  }
  const auto inventory = cxl::Host().look();
  const auto memdev = inventory ? inventory->memdev(serial) : tl::unexpected(inventory.error());
  if (memdev) return Binding{(*memdev)->ram, ""};
  return fail(ErrorCode::kUnreachable, "%s", memdev.error().text());
}

}  // namespace

Result<std::shared_ptr<DeviceDriver>> openCxl(const Device& device, Leadership& leadership,
                                              const CxlSettings& settings,
                                              const Clock& wall_clock) {
  const std::string serial = device.address.substr(std::string(kCxlScheme).size());
  if (!serial.starts_with("0x") || serial.size() < 3 || serial.size() > 18 ||
      serial.find_first_not_of("0123456789abcdef", 2) != std::string::npos) {
    return fail(ErrorCode::kInvalidArgument, "%.60s: give the serial number as cxl:0x101",
                device.address.c_str());
  }
  const auto now = lookAt(serial, settings);
  if (!now) return tl::unexpected(now.error());
  if (now->size < device.capacity) {
    return fail(ErrorCode::kInvalidArgument, "the CXL device %s has %llu bytes, not %llu",
                serial.c_str(), static_cast<unsigned long long>(now->size.value()),
                static_cast<unsigned long long>(device.capacity.value()));
  }
  if (!settings.switch_program.empty() && device.granularity != now->size) {
    return fail(ErrorCode::kInvalidArgument,
                "a logical device is given out whole: add it with --granularity %llu",
                static_cast<unsigned long long>(now->size.value()));
  }
  const std::string log = settings.state_folder + "/cxl-" + serial + ".grants";
  if (!now->host.empty() && now->host != settings.host && access(log.c_str(), F_OK) != 0) {
    return fail(
        ErrorCode::kRefused,
        "the CXL device %s is bound to host %.40s, and there is no record of that, %.80s: is "
        "another manager in charge of it? Put the record there, or unbind it",
        serial.c_str(), now->host.c_str(), log.c_str());
  }
  auto grants = LoggedGrants::open(log, device, leadership, now->size, "the device");
  if (!grants) return tl::unexpected(grants.error());
  auto driver =
      std::make_shared<CxlDriver>(serial, settings, now->size, std::move(*grants), wall_clock);
  TP_TRY(driver->restore(now->host));
  return std::shared_ptr<DeviceDriver>(std::move(driver));
}

}  // namespace tidepool::fabric
