// SPDX-License-Identifier: Apache-2.0
// The seam to devices. A driver carries out what the manager has written down, durably: what it
// answered "done" to survives a crash of the device's keeper. Every action says all it means, so
// doing it twice is doing it once. Drivers are thread-safe; calls block.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "fabricmgr/device/leadership.h"
#include "fabricmgr/model/types.h"

namespace tidepool::fabric {

/// What a device knows about its part of a region.
enum class GrantState : uint8_t {
  kGranted = 1,   // the host of the epoch may read and write
  kRevoked = 2,   // nobody may; the bytes are still there
  kScrubbed = 3,  // every byte reads as zero; the evidence is kept until forget()
};

struct Grant {
  RegionId region;
  Epoch epoch{};
  GrantState state = GrantState::kGranted;
  std::vector<Extent> extents;  // of this device
  std::string host = {};        // of attach(): who gets it; not kept
};

struct GrantReport {
  Grant grant;
  ScrubEvidence evidence;  // of kScrubbed
};

/// A host's way to its part of a region.
struct Pass {
  std::string address;
  std::string token;  // empty if the device asks for none
};

/// Bytes that are done with, out of those to do. Called from the calling thread, often.
using Progress = std::function<void(Bytes done)>;

class DeviceDriver {
 public:
  virtual ~DeviceDriver() = default;

  /// How much there is to be had. Errors: kUnreachable.
  virtual Result<Bytes> capacity() = 0;
  /// From now on exactly `grant.extents` are the region's, for the holder of `grant.epoch`; with
  /// none, the device holds nothing for it any more.
  /// Errors: kStaleEpoch when the device knows a newer epoch, kConflict when another region holds a
  /// byte of them, kNoSpace, kUnreachable.
  virtual Status attach(const Grant& grant) = 0;
  /// From now on no epoch below `grant.epoch` reads or writes the region; when it returns none
  /// does. A device that never heard of the region holds the extents for it from now on.
  virtual Status revoke(const Grant& grant) = 0;
  /// Overwrites every byte of a revoked region. Errors: kRefused if it is granted.
  virtual Result<ScrubEvidence> scrub(const Grant& grant, const Progress& progress) = 0;
  /// Reads every byte back and completes the evidence; the region becomes kScrubbed if all are
  /// zero. Errors: kCorrupt when one is not: scrub again.
  virtual Result<ScrubEvidence> verify(const Grant& grant, const ScrubEvidence& scrubbed,
                                       const Progress& progress) = 0;
  /// The record of a scrubbed region may go. Need not be durable: it is asked again.
  virtual Status forget(RegionId region) = 0;
  /// Everything the device holds.
  virtual Result<std::vector<GrantReport>> inspect() = 0;
  /// Where the holder of `grant` finds its bytes, and what it shows to be let in.
  virtual Result<Pass> pass(const Grant& grant) = 0;
  /// The device is no fabric's any more: any manager may lead it next, and this driver is done
  /// with. Errors: kRefused while it holds something for somebody.
  virtual Status release() = 0;
};

/// Opens the driver of a device, which obeys this manager from then on, and no older one; called
/// again after the device was unreachable. Errors: kUnreachable, kInvalidArgument for an address
/// that is none, kUnsupported; kStaleEpoch when another manager of the fabric is in charge of it,
/// which `leadership` is told as well; kRefused when it is another fabric's.
using DriverFactory = std::function<Result<std::shared_ptr<DeviceDriver>>(const Device& device,
                                                                          Leadership& leadership)>;

}  // namespace tidepool::fabric
