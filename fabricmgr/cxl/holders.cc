// SPDX-License-Identifier: Apache-2.0
// holdersOf(): the kernel does not refuse to unbind a device that programs use, so it is looked for
// in /proc first.
#include <fstream>

#include "fabricmgr/cxl/host.h"

namespace tidepool::cxl {
namespace {

bool hasOpen(const Sysfs& sysfs, const std::string& process, const std::string& device) {
  const std::string folder = "/proc/" + process + "/fd";
  for (const std::string& number : sysfs.list(folder)) {
    if (sysfs.target(folder + "/" + number) == device) return true;
  }
  return false;
}

bool hasMapped(const Sysfs& sysfs, const std::string& process, const std::string& device) {
  std::ifstream maps(sysfs.inRoot("/proc/" + process + "/maps"));
  for (std::string line; std::getline(maps, line);) {
    if (line.ends_with(" " + device)) return true;
  }
  return false;
}

}  // namespace

Result<std::string> holdersOf(const Sysfs& sysfs, const DaxDevice& dax) {
  const std::string device = "/dev/" + dax.name;
  std::string found;
  for (const std::string& process : sysfs.list("/proc")) {
    if (process.find_first_not_of("0123456789") != std::string::npos) continue;
    const auto readable = sysfs.read("/proc/" + process + "/maps");
    if (!readable && readable.error().code() == ErrorCode::kPermission) {
      return fail(ErrorCode::kPermission,
                  "cannot see whether process %.20s uses %s: be root (CAP_SYS_PTRACE)",
                  process.c_str(), device.c_str());
    }
    if (!hasOpen(sysfs, process, device) && !hasMapped(sysfs, process, device)) continue;
    const std::string name = sysfs.read("/proc/" + process + "/comm").value_or("?");
    found += (found.empty() ? "" : ", ") + ("pid " + process) + " (" + name + ")";
  }
  return found;
}

}  // namespace tidepool::cxl
