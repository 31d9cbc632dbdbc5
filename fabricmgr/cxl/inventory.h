// SPDX-License-Identifier: Apache-2.0
// What this machine has of CXL, as the kernel shows it: memory devices, decoders, regions, and the
// DAX devices of regions. Plain values of one moment (Bus::look()); they are not kept up to date.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "fabricmgr/cxl/sysfs.h"
#include "runtime/base/result.h"
#include "runtime/base/units.h"

namespace tidepool::cxl {

inline constexpr const char* kCxlDevices = "/sys/bus/cxl/devices/";
inline constexpr const char* kDaxDevices = "/sys/bus/dax/devices/";

struct Decoder {
  enum class Kind : uint8_t { kRoot, kSwitch, kEndpoint };
  std::string name;  // decoderPORT.NUMBER
  Kind kind = Kind::kSwitch;
  uint64_t start = 0;  // a host's physical address
  Bytes size;
  uint64_t ways = 1;
  uint64_t granularity = 0;
  std::string region;            // that it is a part of; empty: none
  Bytes dpa_size;                // of an endpoint: what it has of the device
  std::string mode;              // of an endpoint: ram, pmem, none
  bool volatile_memory = false;  // of a root: a window for it
};

struct Memdev {
  std::string name;  // memN
  uint64_t serial = 0;
  Bytes ram, pmem;
  std::string firmware;
  std::string security;  // "disabled", "sanitize", ...; empty if the device has no such commands
  std::string endpoint;  // its port; empty until the driver has one
  std::vector<std::string> decoders;  // of the endpoint, in the order in which they are committed
  std::vector<std::string> windows;   // root decoders that lead to it
};

struct DaxDevice {
  std::string name;    // daxN.M
  std::string driver;  // kmem, device_dax; empty: none
  uint64_t start = 0;
  Bytes size, align;
  int node = -1;  // NUMA node that it is, or would be
};

struct Region {
  std::string name;  // regionN
  std::string root;  // its root decoder
  Bytes size;
  uint64_t start = 0;
  uint64_t ways = 1;
  bool committed = false;
  bool bound = false;                // the driver has it
  std::vector<std::string> targets;  // endpoint decoders, by position; empty names are left out
  std::vector<DaxDevice> dax;
};

struct Inventory {
  std::vector<Memdev> memdevs;
  std::vector<Decoder> decoders;
  std::vector<Region> regions;

  const Decoder* decoder(const std::string& name) const;
  const Region* region(const std::string& name) const;
  /// "mem0", or a serial number as decimal or 0x. Errors: kNotFound, kConflict for a serial number
  /// that two devices claim.
  Result<const Memdev*> memdev(const std::string& which) const;
  /// Those with a part on the device.
  std::vector<const Region*> regionsOf(const Memdev& memdev) const;
};

/// Errors: kUnsupported without a CXL bus.
Status checkCxl(const Sysfs& sysfs);

/// Of a region, as the kernel has them now.
std::vector<DaxDevice> daxDevicesOf(const Sysfs& sysfs, const std::string& region);

/// "mem" and digits, "region" and digits...: names come from the kernel, but go into paths.
bool isNumbered(const std::string& name, const char* prefix);

}  // namespace tidepool::cxl
