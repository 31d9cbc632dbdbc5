// SPDX-License-Identifier: Apache-2.0
// The access rights of ranges of the managed space, as far as they are not plain read and write:
// what is not handed out, or not any more, and what the program protected. Such mappings are not
// replaced, because that would lose the rights, or bring a released range back. Grows with the
// number of such ranges. Thread-safe.
#pragma once

#include <cstdint>
#include <map>

#include "runtime/base/mutex.h"
#include "runtime/base/units.h"

namespace tidepool {

enum class Rights : uint8_t {
  kReadWrite,
  /// Nobody can store to it, so a copy of it stays true. It may be executable.
  kReadOnly,
  kOther,  // no access, write and execute, or not handed out
};

/// In place of a protection: nobody was given this part of the space.
inline constexpr int kNotHandedOut = -1;

/// `protection` as for mprotect(2), or kNotHandedOut.
Rights rightsOf(int protection);

/// The protection at an address, and for how many bytes from there it is the same.
struct ProtectionSpan {
  int protection;
  Bytes size;
};

struct ProtectionStretch {
  uintptr_t start;
  uintptr_t end;
  int protection;
};

class Protections {
 public:
  /// Addresses in bytes; size > 0. Returns by how many bytes what can be accessed at all has grown.
  int64_t set(uintptr_t start, Bytes size, int protection);
  Rights at(uintptr_t address) const;
  /// True if all of it can be read and written.
  bool plain(uintptr_t start, Bytes size) const;
  /// Looks no further than `size` (> 0).
  ProtectionSpan spanAt(uintptr_t address, Bytes size) const;
  /// The longest stretch around `address`, within [from, end), that has its protection.
  ProtectionStretch stretchAround(uintptr_t address, uintptr_t from, uintptr_t end) const;
  /// For fork(), which must find the set whole.
  Mutex& mutex() { return mutex_; }

 private:
  struct Range {
    uintptr_t end;
    int protection;
  };
  /// Returns how many bytes without any access it has cleared.
  uint64_t clear(uintptr_t start, uintptr_t end) TP_REQUIRES(mutex_);
  mutable Mutex mutex_;
  std::map<uintptr_t, Range> odd_ TP_GUARDED_BY(mutex_);  // by start; disjoint, none plain
};

}  // namespace tidepool
