// SPDX-License-Identifier: Apache-2.0
// DriverTable: one mutex, not held while a driver is being opened or used.
#include "fabricmgr/manager/driver_table.h"

#include <utility>

namespace tidepool::fabric {

bool outcomeUnknown(ErrorCode code) {
  switch (code) {
    case ErrorCode::kUnreachable:
    case ErrorCode::kTimedOut:
    case ErrorCode::kIo:
    case ErrorCode::kInternal:
    case ErrorCode::kNoMemory:
      return true;
    default:
      return false;
  }
}

namespace {

/// Of a device whose driver could not be opened.
DeviceHealth healthBy(ErrorCode code) {
  if (code == ErrorCode::kStaleEpoch) return DeviceHealth::kSuperseded;
  return code == ErrorCode::kRefused ? DeviceHealth::kForeign : DeviceHealth::kUnreachable;
}

}  // namespace

Result<std::shared_ptr<DeviceDriver>> DriverTable::of(const Device& device) {
  MutexLock lock(mutex_);
  const auto found = entries_.find(device.id);
  if (found != entries_.end() && found->second.driver != nullptr) return found->second.driver;
  return fail(
      ErrorCode::kUnreachable, "device %s does not answer: %.120s", device.name.c_str(),
      found == entries_.end() ? "it was not looked at yet" : found->second.health.trouble.c_str());
}

Result<std::shared_ptr<DeviceDriver>> DriverTable::open(const Device& device) {
  {
    MutexLock lock(mutex_);
    entries_[device.id].driver.reset();
  }
  auto driver = factory_(device, leadership_);
  if (!driver) {
    MutexLock lock(mutex_);
    become(device.id, {healthBy(driver.error().code()), driver.error().text()});
  }
  return driver;
}

void DriverTable::use(DeviceId device, std::shared_ptr<DeviceDriver> driver) {
  MutexLock lock(mutex_);
  entries_[device].driver = std::move(driver);
  become(device, {DeviceHealth::kReachable, ""});
}

void DriverTable::become(DeviceId device, Health now) {
  Health& health = entries_[device].health;
  const bool first = health.health == DeviceHealth::kUnknown;
  if (health.health != now.health && !(first && now.health == DeviceHealth::kReachable)) {
    turns_.push_back({device, now});
  }
  health = std::move(now);
}

std::vector<DriverTable::Turn> DriverTable::takeTurns() {
  MutexLock lock(mutex_);
  return std::exchange(turns_, {});
}

void DriverTable::note(DeviceId device, const Status& outcome) {
  if (outcome || !outcomeUnknown(outcome.error().code())) return;
  MutexLock lock(mutex_);
  entries_[device].driver.reset();
  become(device, {DeviceHealth::kUnreachable, outcome.error().text()});
}

void DriverTable::refuse(DeviceId device, const std::string& why) {
  MutexLock lock(mutex_);
  entries_[device].driver.reset();
  become(device, {DeviceHealth::kUnreachable, why});
}

void DriverTable::forget(DeviceId device) {
  MutexLock lock(mutex_);
  entries_.erase(device);
}

DriverTable::Health DriverTable::healthOf(DeviceId device) {
  MutexLock lock(mutex_);
  const auto found = entries_.find(device);
  return found == entries_.end() ? Health() : found->second.health;
}

std::vector<DeviceId> DriverTable::away(DeviceHealth health) {
  MutexLock lock(mutex_);
  std::vector<DeviceId> found;
  for (const auto& [id, entry] : entries_) {
    const DeviceHealth now = entry.health.health;
    if (now == DeviceHealth::kUnknown || now == DeviceHealth::kReachable) continue;
    if (health == DeviceHealth::kUnknown || now == health) found.push_back(id);
  }
  return found;
}

void DriverTable::look() {
  std::map<DeviceId, std::shared_ptr<DeviceDriver>> in_use;
  {
    MutexLock lock(mutex_);
    for (const auto& [id, entry] : entries_) {
      if (entry.driver != nullptr) in_use.emplace(id, entry.driver);
    }
  }
  for (const auto& [id, driver] : in_use) {
    const auto answer = driver->capacity();
    if (!answer) note(id, tl::unexpected(answer.error()));
  }
}

}  // namespace tidepool::fabric
