// SPDX-License-Identifier: Apache-2.0
// Memory blocks: the pieces in which the kernel takes a DAX device's memory as its own (system RAM)
// and gives it up again. Functions block; nothing is kept between calls. Thread-safe.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "fabricmgr/cxl/inventory.h"
#include "fabricmgr/cxl/sysfs.h"
#include "runtime/base/result.h"
#include "runtime/base/units.h"

namespace tidepool::cxl {

struct MemoryBlock {
  std::string name;  // memoryN
  bool online = false;
  bool movable = false;  // in the zone whose pages can always be moved off
  Bytes size;
};

/// Those that lie within the device; none unless it is system RAM.
Result<std::vector<MemoryBlock>> blocksOf(const Sysfs& sysfs, const DaxDevice& dax);
bool anyOnline(const std::vector<MemoryBlock>& blocks);

/// Every block online and movable. A block that the kernel has brought online by itself in another
/// zone is taken offline first. Errors: kRefused when one cannot be: it is in use by the kernel.
Status bringOnline(const Sysfs& sysfs, const DaxDevice& dax);

/// Bytes that are offline, out of those there are.
using DrainProgress = std::function<void(Bytes done, Bytes total)>;
/// Every block offline: the kernel moves its pages elsewhere. What has been drained stays so when
/// it fails. Errors: kTimedOut when pages are still there at the end of `patience`.
Status takeOffline(const Sysfs& sysfs, const DaxDevice& dax, Nanoseconds patience,
                   const DrainProgress& progress);

/// While it lives, new memory does not come online by itself: what does lands in a zone that can
/// not always be drained. The former setting is kept in a file, too: if the process is killed, the
/// next one puts it back.
class OfflineAtFirst {
 public:
  OfflineAtFirst(const Sysfs& sysfs, std::string note);
  ~OfflineAtFirst();
  OfflineAtFirst(const OfflineAtFirst&) = delete;
  OfflineAtFirst& operator=(const OfflineAtFirst&) = delete;
  /// Whether new memory stays offline.
  Status status() const { return status_; }

 private:
  Status begin();
  const Sysfs& sysfs_;
  const std::string note_;  // the file's path
  Status status_;
};

}  // namespace tidepool::cxl
