// SPDX-License-Identifier: Apache-2.0
// What one device holds for whom, and which changes of that are allowed. In memory; its owner
// makes it durable. Not thread-safe.
#pragma once

#include <map>
#include <span>
#include <vector>

#include "fabricmgr/device/device_driver.h"

namespace tidepool::fabric {

class GrantTable {
 public:
  explicit GrantTable(Bytes capacity) : capacity_(capacity) {}

  /// Whether a device of `capacity` could hold them for one region: none is empty or reaches beyond
  /// it, and no two have a byte in common.
  static bool couldHold(Bytes capacity, std::span<const Extent> extents);
  /// Whether `grant` may take effect. Errors: kStaleEpoch, kConflict, kInvalidArgument (extents
  /// that the device cannot hold).
  Status check(const Grant& grant) const;
  /// Regions that put() would make the device forget, since they are erased and their place is
  /// given to another.
  std::vector<RegionId> displacedBy(const Grant& grant) const;
  /// The table as it is once `report` has taken effect. Scrubbed regions that it overlaps are gone.
  void put(const GrantReport& report);
  void drop(RegionId region);
  /// Null if the device holds nothing for it.
  const GrantReport* find(RegionId region) const;
  std::vector<GrantReport> all() const;
  size_t size() const { return grants_.size(); }

 private:
  struct Piece {
    uint64_t end;
    RegionId region;
  };
  /// Calls `visit` with the region of every piece that overlaps `extent`.
  template <typename Visit>
  void overlapping(const Extent& extent, Visit visit) const;

  const Bytes capacity_;
  std::map<RegionId, GrantReport> grants_;
  std::map<uint64_t, Piece> pieces_;  // by offset
};

}  // namespace tidepool::fabric
