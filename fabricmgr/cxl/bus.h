// SPDX-License-Identifier: Apache-2.0
// The seam between the steps that change CXL memory and what carries them out: libcxl and libdaxctl
// on a real machine (libraryBus()), a tree of files in tests. Each call looks at the kernel anew,
// so objects and values of an earlier one are never used. Thread-safe.
#pragma once

#include <memory>
#include <string>

#include "fabricmgr/cxl/inventory.h"
#include "fabricmgr/cxl/sysfs.h"
#include "runtime/base/result.h"
#include "runtime/base/units.h"

namespace tidepool::cxl {

/// What a region's memory is used as.
enum class Mode : uint8_t {
  kDevice,     // programs map /dev/daxN.M
  kSystemRam,  // a NUMA node of the kernel's, movable
};

class Bus {
 public:
  Bus() = default;
  virtual ~Bus() = default;
  Bus(const Bus&) = delete;
  Bus& operator=(const Bus&) = delete;

  /// What cannot be read of a device is left at its default. Errors: kUnsupported without a CXL
  /// bus, kIo when something is there that cannot be read at all.
  virtual Result<Inventory> look() const = 0;

  // Names are those of look(). Errors of all that follow: kNotFound, kPermission, kRefused (busy),
  // kUnreachable, kNoSpace, kInvalidArgument, kIo.
  /// An empty region below a root decoder for volatile memory; returns its name.
  virtual Result<std::string> newRegion(const std::string& window) const = 0;
  /// One device wide, of `size` bytes of the window. Errors also: kNoSpace.
  virtual Status shape(const std::string& region, uint64_t granularity, Bytes size) const = 0;
  /// Volatile memory of the device behind an endpoint decoder; none gives it back.
  virtual Status reserve(const std::string& decoder, Bytes size) const = 0;
  virtual Status setTarget(const std::string& region, const std::string& decoder) const = 0;
  virtual Status commit(const std::string& region) const = 0;
  virtual Status reset(const std::string& region) const = 0;
  /// The driver takes a committed region, which makes its DAX device; or leaves it.
  virtual Status enable(const std::string& region) const = 0;
  virtual Status disable(const std::string& region) const = 0;
  virtual Status remove(const std::string& region) const = 0;

  /// The driver of a mode takes a DAX device that has none; its module is loaded if need be. Errors
  /// also: kUnsupported when there is no such driver.
  virtual Status enableDax(const std::string& dax, Mode mode) const = 0;
  /// Checks nothing: the caller knows that nobody uses it. See leaveDriver().
  virtual Status disableDax(const std::string& dax) const = 0;
};

/// By libcxl and libdaxctl. `sysfs`, which has to outlive it, must be the real one: the libraries
/// know no other.
std::unique_ptr<const Bus> libraryBus(const Sysfs& sysfs);

/// The driver's name on the DAX bus.
const char* driverOf(Mode mode);

}  // namespace tidepool::cxl
