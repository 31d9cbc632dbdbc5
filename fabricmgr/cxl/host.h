// SPDX-License-Identifier: Apache-2.0
// CXL memory of this host, by steps that people and the agent take: make a region, choose what it
// is used as, drain, destroy, sanitize.
//
// Nothing is remembered between calls but what the kernel shows, so each step may be taken in any
// state: it looks, does what is missing, looks again, and a step that is done already is a success.
// A step that was cut off at any point (even killed) is taken again from where it stopped. One
// region a device, of all its volatile memory; others' regions (interleaved, several of a device)
// are shown, never touched. Steps that change something exclude each other by a lock, in all
// processes. Calls block; the class is thread-safe.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "fabricmgr/cxl/bus.h"
#include "fabricmgr/cxl/inventory.h"
#include "fabricmgr/cxl/memory_blocks.h"
#include "fabricmgr/cxl/sysfs.h"
#include "runtime/base/result.h"
#include "runtime/base/units.h"

namespace tidepool::cxl {

/// How long it has taken so far. Devices do not tell the kernel how far they are.
using SanitizeProgress = std::function<void(Nanoseconds elapsed)>;

class Host {
 public:
  /// This machine, by the libraries.
  Host();
  /// `bus` may use `sysfs`. `run` is a folder for the note of a setting (see OfflineAtFirst); made
  /// if absent.
  Host(std::unique_ptr<const Sysfs> sysfs, std::unique_ptr<const Bus> bus, std::string run);

  Result<Inventory> look() const { return bus_->look(); }
  const Sysfs& sysfs() const { return *sysfs_; }

  /// Waits until a device that was just bound to this host is ready. Errors: kTimedOut,
  /// kUnsupported.
  Status await(const std::string& memdev, Nanoseconds patience) const;

  // `memdev` is a name or a serial number. Errors of all: kNotFound, kUnsupported (no CXL, or a
  // module is missing), kPermission, kConflict (regions that Tidepool did not make), kRefused.
  /// A committed region of the device with its DAX device; removes what a killed one left half
  /// made. Errors also: kNoSpace when the window is full.
  Status create(const std::string& memdev) const;
  /// Errors also: kRefused to leave system RAM that is online, or device mode while a process has
  /// the device open.
  Status use(const std::string& memdev, Mode mode) const;
  /// System RAM offline. Nothing to do in device mode, or without a region.
  Status drain(const std::string& memdev, Nanoseconds patience,
               const DrainProgress& progress) const;
  /// No region, and nothing of the device reserved. Errors also: kRefused as of use().
  Status destroy(const std::string& memdev) const;
  /// The device overwrites all it has. Waits for one that is under way instead of beginning again.
  /// Errors also: kRefused while a region is active, kTimedOut.
  Status sanitize(const std::string& memdev, Nanoseconds patience,
                  const SanitizeProgress& progress) const;
  /// The DAX device of the device's region. Errors also: kNotFound when there is none.
  Result<DaxDevice> daxOf(const std::string& memdev) const;

 private:
  const std::unique_ptr<const Sysfs> sysfs_;
  const std::unique_ptr<const Bus> bus_;
  const std::string run_;
};

/// Processes that have the DAX device open or mapped: "pid 12 (trainer)"; empty if none. Errors:
/// kPermission when a process cannot be looked into: it might be one.
Result<std::string> holdersOf(const Sysfs& sysfs, const DaxDevice& dax);

}  // namespace tidepool::cxl
