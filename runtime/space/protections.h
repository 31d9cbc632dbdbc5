// SPDX-License-Identifier: Apache-2.0
// Ranges of the managed space that are not plain read-write memory: what is not handed out, or not
// any more, and what the program protected. Mappings there are left alone, because replacing one
// would lose the rights, or bring a released range back. Grows with the number of such ranges.
// Thread-safe.
#pragma once

#include <cstdint>
#include <map>

#include "runtime/base/mutex.h"
#include "runtime/base/units.h"

namespace tidepool {

class Protections {
 public:
  /// Marks [start, start + size) as odd, or as plain again. Addresses in bytes.
  void mark(uintptr_t start, Bytes size);
  void clear(uintptr_t start, Bytes size);
  bool plain(uintptr_t start, Bytes size) const;
  /// For fork(), which must find the set whole.
  Mutex& mutex() { return mutex_; }

 private:
  void clearLocked(uintptr_t start, uintptr_t end) TP_REQUIRES(mutex_);
  mutable Mutex mutex_;
  std::map<uintptr_t, uintptr_t> odd_ TP_GUARDED_BY(mutex_);  // start -> end, disjoint
};

}  // namespace tidepool
