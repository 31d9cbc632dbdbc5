// SPDX-License-Identifier: Apache-2.0
// The drivers of all devices, and whether their devices answer. Thread-safe.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "fabricmgr/device/device_driver.h"
#include "fabricmgr/manager/views.h"
#include "runtime/base/mutex.h"

namespace tidepool::fabric {

class DriverTable {
 public:
  /// `leadership` is borrowed.
  DriverTable(DriverFactory factory, Leadership& leadership)
      : factory_(std::move(factory)), leadership_(leadership) {}

  struct Health {
    DeviceHealth health = DeviceHealth::kUnknown;
    std::string trouble;
  };

  /// A device that answers no more, or answers again. Not the first answer after a start.
  struct Turn {
    DeviceId device;
    Health now;
  };
  std::vector<Turn> takeTurns() TP_EXCLUDES(mutex_);

  /// The driver in use. Errors: kUnreachable while the device is known not to answer, or was not
  /// looked at yet.
  Result<std::shared_ptr<DeviceDriver>> of(const Device& device) TP_EXCLUDES(mutex_);
  /// Opens a driver that nobody uses yet: the caller inspects the device, then puts it in use.
  /// The one in use, if any, is closed first: a pool file has one user.
  Result<std::shared_ptr<DeviceDriver>> open(const Device& device) TP_EXCLUDES(mutex_);
  void use(DeviceId device, std::shared_ptr<DeviceDriver> driver) TP_EXCLUDES(mutex_);
  /// What came of an action: an error of the device's own makes it unreachable.
  void note(DeviceId device, const Status& outcome) TP_EXCLUDES(mutex_);
  /// The device answers, but must not be used: as if it did not answer.
  void refuse(DeviceId device, const std::string& why) TP_EXCLUDES(mutex_);
  void forget(DeviceId device) TP_EXCLUDES(mutex_);
  Health healthOf(DeviceId device) TP_EXCLUDES(mutex_);
  /// That do not answer, or do not obey; only those of `health`, if that is not kUnknown.
  std::vector<DeviceId> away(DeviceHealth health = DeviceHealth::kUnknown) TP_EXCLUDES(mutex_);
  /// Asks every device that is in use for something cheap, and notes which do not answer.
  void look() TP_EXCLUDES(mutex_);

 private:
  void become(DeviceId device, Health now) TP_REQUIRES(mutex_);

  struct Entry {
    std::shared_ptr<DeviceDriver> driver;
    Health health;
  };

  const DriverFactory factory_;
  Leadership& leadership_;
  Mutex mutex_;
  std::map<DeviceId, Entry> entries_ TP_GUARDED_BY(mutex_);
  std::vector<Turn> turns_ TP_GUARDED_BY(mutex_);
};

/// An error after which it is not known whether the device did what it was told.
bool outcomeUnknown(ErrorCode code);

}  // namespace tidepool::fabric
