// SPDX-License-Identifier: Apache-2.0
// The evidence that a region was erased: made when that begins, completed by what is read back.
#pragma once

#include <cstddef>
#include <span>

#include "fabricmgr/device/device_driver.h"
#include "fabricmgr/model/hash.h"
#include "runtime/base/clock.h"

namespace tidepool::fabric {

/// Of an erasure that begins now, in one pass.
ScrubEvidence beginErasure(const Grant& grant, const Clock& wall_clock);

/// Looks at the bytes of an erased region, all of them, in the order of its extents. Not
/// thread-safe.
class ReadBack {
 public:
  /// `progress` hears of the bytes that were looked at; it outlives this.
  ReadBack(const ScrubEvidence& scrubbed, const Progress& progress);
  void add(std::span<const std::byte> bytes);
  /// Errors: kCorrupt, when there was a byte that is not zero.
  Result<ScrubEvidence> finish(const Clock& wall_clock);

 private:
  ScrubEvidence evidence_;
  const Progress& progress_;
  Sha256 hash_;
};

}  // namespace tidepool::fabric
