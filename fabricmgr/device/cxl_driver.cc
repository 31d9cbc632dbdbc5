// SPDX-License-Identifier: Apache-2.0
// CxlDriver: the table of grants, made durable before anything is answered, and in step with the
// switch: bound before a grant is noted, unbound before its end is. What a crash left between the
// two is undone when the driver is opened.
#include "fabricmgr/device/cxl_driver.h"

#include <algorithm>

#include "fabricmgr/cxl/dax_bytes.h"
#include "fabricmgr/cxl/host.h"
#include "fabricmgr/device/grant_log.h"
#include "fabricmgr/device/grant_table.h"
#include "fabricmgr/device/switch_command.h"
#include "fabricmgr/model/fault_point.h"
#include "fabricmgr/model/hash.h"

namespace tidepool::fabric {
namespace {

constexpr Nanoseconds kSwitchPatience(60'000'000'000);
constexpr Nanoseconds kHotPlugPatience(30'000'000'000);
// A terabyte at a few gigabytes a second, with room to spare.
constexpr Nanoseconds kSanitizePatience(1'800'000'000'000);

class CxlDriver final : public DeviceDriver {
 public:
  CxlDriver(std::string serial, CxlSettings settings, Bytes capacity, std::unique_ptr<GrantLog> log,
            const Clock& wall_clock)
      : serial_(std::move(serial)),
        settings_(std::move(settings)),
        switch_(settings_.switch_program, kSwitchPatience),
        capacity_(capacity),
        log_(std::move(log)),
        wall_clock_(wall_clock),
        table_(capacity) {}

  /// Takes over what is noted, and brings the switch in step with it.
  Status restore(const std::vector<GrantReport>& grants, const std::string& bound_to);

  Result<Bytes> capacity() override { return capacity_; }
  Status attach(const Grant& grant) override;
  Status revoke(const Grant& grant) override;
  Result<ScrubEvidence> scrub(const Grant& grant, const Progress& progress) override;
  Result<ScrubEvidence> verify(const Grant& grant, const ScrubEvidence& scrubbed,
                               const Progress& progress) override;
  Status forget(RegionId region) override;
  Result<std::vector<GrantReport>> inspect() override {
    MutexLock lock(mutex_);
    return table_.all();
  }
  Result<Pass> pass(const Grant&) override { return Pass{kCxlScheme + serial_, ""}; }

 private:
  bool isSwitched() const { return !settings_.switch_program.empty(); }
  Status check(const Grant& grant) TP_EXCLUDES(mutex_);
  Status record(const GrantReport& report) TP_EXCLUDES(mutex_);
  Status mayErase(const Grant& grant) TP_EXCLUDES(mutex_);
  Result<UniqueFd> openHere();
  Status leaveHere();

  const std::string serial_;
  const CxlSettings settings_;
  const SwitchCommand switch_;
  const Bytes capacity_;
  const std::unique_ptr<GrantLog> log_;
  const Clock& wall_clock_;
  const cxl::Host host_;
  Mutex mutex_;
  GrantTable table_ TP_GUARDED_BY(mutex_);
};

bool isGranted(const GrantReport& report) { return report.grant.state == GrantState::kGranted; }

Status CxlDriver::restore(const std::vector<GrantReport>& grants, const std::string& bound_to) {
  {
    MutexLock lock(mutex_);
    for (const GrantReport& report : grants) table_.put(report);
  }
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
  MutexLock lock(mutex_);
  return table_.check(grant);
}

Status CxlDriver::record(const GrantReport& report) {
  uint64_t ticket = 0;
  {
    MutexLock lock(mutex_);
    table_.put(report);
    ticket = log_->enqueue(GrantLog::lineOf(report));
    if (log_->isLong()) log_->renew(table_.all());
  }
  return log_->await(ticket);
}

Status CxlDriver::attach(const Grant& grant) {
  TP_TRY(check(grant));
  if (isSwitched()) {
    TP_TRY(grant.extents.empty() ? switch_.unbind(serial_) : switch_.bind(serial_, grant.host));
  }
  GrantReport report{grant, {}};
  report.grant.state = GrantState::kGranted;
  return record(report);
}

Status CxlDriver::revoke(const Grant& grant) {
  TP_TRY(check(grant));
  if (isSwitched()) TP_TRY(switch_.unbind(serial_));
  GrantReport report{grant, {}};
  report.grant.state = GrantState::kRevoked;
  return record(report);
}

Status CxlDriver::mayErase(const Grant& grant) {
  MutexLock lock(mutex_);
  const GrantReport* known = table_.find(grant.region);
  if (known == nullptr || known->grant.extents != grant.extents) {
    return fail(ErrorCode::kConflict, "the device does not hold these extents for region %llu",
                static_cast<unsigned long long>(grant.region.value()));
  }
  if (!isGranted(*known)) return {};
  return fail(ErrorCode::kRefused, "region %llu is granted: revoke it first",
              static_cast<unsigned long long>(grant.region.value()));
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
  TP_TRY(mayErase(grant));
  ScrubEvidence evidence;
  evidence.region = grant.region;
  evidence.device = grant.extents.front().device;
  evidence.epoch = grant.epoch;
  evidence.started = wall_clock_.now();
  evidence.passes = 1;
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
  TP_TRY(mayErase(grant));
  ScrubEvidence evidence = scrubbed;
  evidence.bytes = evidence.nonzero = Bytes();
  Sha256 hash;
  {
    const auto dax = openHere();
    if (!dax) return tl::unexpected(dax.error());
    for (const Extent& extent : grant.extents) {
      TP_TRY(cxl::readBytes(*dax, extent.offset, extent.length, [&](auto piece) {
        hash.add(piece);
        const auto zeros = std::count(piece.begin(), piece.end(), std::byte{});
        evidence.nonzero += Bytes(piece.size() - static_cast<size_t>(zeros));
        progress(evidence.bytes += Bytes(piece.size()));
      }));
    }
  }
  evidence.digest = hexOf(hash.finish());
  evidence.finished = wall_clock_.now();
  if (isSwitched()) TP_TRY(leaveHere());
  if (evidence.nonzero.value() > 0) {
    return fail(ErrorCode::kCorrupt, "%llu bytes of region %llu were not zero when read back",
                static_cast<unsigned long long>(evidence.nonzero.value()),
                static_cast<unsigned long long>(grant.region.value()));
  }
  GrantReport report{grant, evidence};
  report.grant.state = GrantState::kScrubbed;
  TP_TRY(record(report));
  return evidence;
}

Status CxlDriver::forget(RegionId region) {
  MutexLock lock(mutex_);
  const GrantReport* known = table_.find(region);
  if (known == nullptr || known->grant.state != GrantState::kScrubbed) return {};
  table_.drop(region);
  log_->enqueue(GrantLog::forgetLine(region));  // goes to the disk with the next grant
  return {};
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

Result<std::shared_ptr<DeviceDriver>> openCxl(const Device& device, const CxlSettings& settings,
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
  std::vector<GrantReport> grants;
  auto log =
      GrantLog::open(settings.state_folder + "/cxl-" + serial + ".grants", device.id, &grants);
  if (!log) return tl::unexpected(log.error());
  auto driver =
      std::make_shared<CxlDriver>(serial, settings, now->size, std::move(*log), wall_clock);
  TP_TRY(driver->restore(grants, now->host));
  return std::shared_ptr<DeviceDriver>(std::move(driver));
}

}  // namespace tidepool::fabric
