// SPDX-License-Identifier: Apache-2.0
// Finding things in an inventory, and the DAX devices of regions: those by the kernel's own
// attributes, since libdaxctl leaves out a device that has no node in /dev. To a step it would seem
// that nobody uses the region's memory.
#include "fabricmgr/cxl/inventory.h"

#include <algorithm>
#include <cstring>

namespace tidepool::cxl {
namespace {

DaxDevice readDax(const Sysfs& sysfs, const std::string& name) {
  const std::string path = kDaxDevices + name + "/";
  DaxDevice dax;
  dax.name = name;
  dax.driver = sysfs.targetName(path + "driver");
  dax.start = sysfs.readNumber(path + "resource").value_or(0);
  dax.size = Bytes(sysfs.readNumber(path + "size").value_or(0));
  dax.align = Bytes(sysfs.readNumber(path + "align").value_or(0));
  dax.node = static_cast<int>(sysfs.readNumber(path + "target_node").value_or(UINT64_MAX));
  return dax;
}

}  // namespace

bool isNumbered(const std::string& name, const char* prefix) {
  const size_t length = std::strlen(prefix);
  return name.size() > length && name.starts_with(prefix) && name.back() != '.' &&
         name[length] != '.' && name.find_first_not_of("0123456789.", length) == std::string::npos;
}

const Decoder* Inventory::decoder(const std::string& name) const {
  for (const Decoder& one : decoders) {
    if (one.name == name) return &one;
  }
  return nullptr;
}

const Region* Inventory::region(const std::string& name) const {
  for (const Region& one : regions) {
    if (one.name == name) return &one;
  }
  return nullptr;
}

Result<const Memdev*> Inventory::memdev(const std::string& which) const {
  const auto serial = parseNumber(which, Radix::kByPrefix);
  const Memdev* found = nullptr;
  for (const Memdev& one : memdevs) {
    if (one.name != which && (!serial || one.serial != *serial)) continue;
    if (found != nullptr) {
      return fail(ErrorCode::kConflict, "%s and %s have the serial number %.30s both: name one",
                  found->name.c_str(), one.name.c_str(), which.c_str());
    }
    found = &one;
  }
  if (found != nullptr) return found;
  return fail(ErrorCode::kNotFound,
              "there is no CXL memory device %.40s: `fabricmgr cxl list` shows all", which.c_str());
}

std::vector<const Region*> Inventory::regionsOf(const Memdev& memdev) const {
  std::vector<const Region*> found;
  for (const Region& one : regions) {
    const auto isOurs = [&](const std::string& target) {
      return std::find(memdev.decoders.begin(), memdev.decoders.end(), target) !=
             memdev.decoders.end();
    };
    if (std::any_of(one.targets.begin(), one.targets.end(), isOurs)) found.push_back(&one);
  }
  return found;
}

Status checkCxl(const Sysfs& sysfs) {
  if (sysfs.exists(kCxlDevices)) return {};
  return fail(ErrorCode::kUnsupported,
              "this machine has no CXL: there is no %s (hardware, or the modules cxl_acpi, "
              "cxl_pci and cxl_mem)",
              kCxlDevices);
}

std::vector<DaxDevice> daxDevicesOf(const Sysfs& sysfs, const std::string& region) {
  std::vector<DaxDevice> found;
  for (const std::string& name : sysfs.list(kCxlDevices + region + "/dax_" + region)) {
    if (isNumbered(name, "dax")) found.push_back(readDax(sysfs, name));
  }
  return found;
}

}  // namespace tidepool::cxl
