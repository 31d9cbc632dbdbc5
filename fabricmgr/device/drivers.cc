// SPDX-License-Identifier: Apache-2.0
// Chooses the driver of a device. Stateless.
#include "fabricmgr/device/drivers.h"

namespace tidepool::fabric {

DriverFactory makeDriverFactory(const DriverSettings& settings) {
  return [settings](const Device& device,
                    Leadership& leadership) -> Result<std::shared_ptr<DeviceDriver>> {
    if (device.memory_class == MemoryClass::kCxl && device.address.starts_with(kCxlScheme)) {
      return openCxl(device, leadership, settings.cxl, *settings.wall_clock);
    }
    if (device.memory_class == MemoryClass::kCxl)
      return openPoolFile(device, leadership, *settings.wall_clock);
    if (settings.tls == nullptr) {
      return fail(
          ErrorCode::kUnsupported,
          "device %s is a memory server, and this manager has no certificate for those: see "
          "[memservers] in its configuration",
          device.name.c_str());
    }
    return openMemserver(device, leadership, settings.tls, settings.timeout);
  };
}

}  // namespace tidepool::fabric
