// SPDX-License-Identifier: Apache-2.0
// A set of disjoint address ranges.
#include "runtime/space/protections.h"

#include <iterator>

namespace tidepool {

void Protections::clearLocked(uintptr_t start, uintptr_t end) {
  auto at = odd_.lower_bound(start);
  if (at != odd_.begin() && std::prev(at)->second > start) --at;
  while (at != odd_.end() && at->first < end) {
    const auto [first, last] = *at;
    at = odd_.erase(at);
    if (first < start) odd_.emplace(first, start);
    if (last > end) odd_.emplace(end, last);
  }
}

void Protections::mark(uintptr_t start, Bytes size) {
  MutexLock lock(mutex_);
  uintptr_t end = start + size.value();
  clearLocked(start, end);
  // Neighbours become one, so that the set stays as small as what it says.
  auto next = odd_.lower_bound(start);
  if (next != odd_.end() && next->first == end) {
    end = next->second;
    next = odd_.erase(next);
  }
  if (next != odd_.begin() && std::prev(next)->second == start) {
    std::prev(next)->second = end;
  } else {
    odd_.emplace(start, end);
  }
}

void Protections::clear(uintptr_t start, Bytes size) {
  MutexLock lock(mutex_);
  clearLocked(start, start + size.value());
}

bool Protections::plain(uintptr_t start, Bytes size) const {
  MutexLock lock(mutex_);
  auto next = odd_.lower_bound(start);
  if (next != odd_.end() && next->first < start + size.value()) return false;
  return next == odd_.begin() || std::prev(next)->second <= start;
}

}  // namespace tidepool
