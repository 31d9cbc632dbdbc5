// SPDX-License-Identifier: Apache-2.0
// PCI functions by which a switch takes commands (switch mailbox CCI), and their registers, mapped
// through sysfs: Linux has no driver for them. Functions are thread-safe; what they return is not.
// Source: CXL Specification 3.1, section 8.1.9 (Register Locator DVSEC).
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "fabricmgr/cxl/fmapi/payload.h"
#include "fabricmgr/cxl/fmapi/registers.h"
#include "fabricmgr/cxl/sysfs.h"
#include "runtime/base/result.h"

namespace tidepool::cxl::fmapi {

inline constexpr const char* kPciDevices = "/sys/bus/pci/devices/";

struct CciFunction {
  std::string address;  // 0000:0d:00.1
  uint16_t vendor = 0, device = 0;
};

/// All functions of class 0C0Bh (serial bus, CXL fabric management), by address.
std::vector<CciFunction> findSwitchCcis(const Sysfs& sysfs);

/// Where the CXL device registers are: a BAR, and bytes from its start.
struct RegisterBlock {
  uint8_t bar = 0;
  uint64_t offset = 0;
};
/// Of a function's configuration space, all 4096 bytes of it. Errors: kPermission (only the first
/// 64 bytes were readable), kUnsupported (no register locator, or none of device registers),
/// kCorrupt.
Result<RegisterBlock> locateDeviceRegisters(PayloadView configuration);

/// Maps a function's device registers. Until they are let go nobody else gets them from here, and
/// the function is enabled. `sysfs` has to live longer. Access to a function that the kernel has
/// removed meanwhile is SIGBUS. Errors: kPermission, kConflict (a driver or another program has
/// it), and those of locateDeviceRegisters() and Sysfs.
Result<std::unique_ptr<Registers>> mapDeviceRegisters(const Sysfs& sysfs,
                                                      const std::string& address);

}  // namespace tidepool::cxl::fmapi
