// SPDX-License-Identifier: Apache-2.0
// A map of disjoint address ranges.
#include "runtime/space/protections.h"

#include <sys/mman.h>

#include <algorithm>
#include <iterator>

namespace tidepool {

Rights rightsOf(int protection) {
  if (protection == (PROT_READ | PROT_WRITE)) return Rights::kReadWrite;
  const bool reads = (protection & PROT_READ) != 0;
  return reads && (protection & PROT_WRITE) == 0 ? Rights::kReadOnly : Rights::kOther;
}

void Protections::clear(uintptr_t start, uintptr_t end) {
  auto at = odd_.lower_bound(start);
  if (at != odd_.begin() && std::prev(at)->second.end > start) --at;
  while (at != odd_.end() && at->first < end) {
    const auto [first, range] = *at;
    at = odd_.erase(at);
    if (first < start) odd_.emplace(first, Range{start, range.protection});
    if (range.end > end) odd_.emplace(end, range);
  }
}

void Protections::set(uintptr_t start, Bytes size, int protection) {
  MutexLock lock(mutex_);
  uintptr_t end = start + size.value();
  clear(start, end);
  if (rightsOf(protection) == Rights::kReadWrite) return;
  // Neighbours become one, so that the set stays as small as what it says.
  auto next = odd_.lower_bound(start);
  if (next != odd_.end() && next->first == end && next->second.protection == protection) {
    end = next->second.end;
    next = odd_.erase(next);
  }
  if (next != odd_.begin()) {
    Range& before = std::prev(next)->second;
    if (before.end == start && before.protection == protection) {
      before.end = end;
      return;
    }
  }
  odd_.emplace(start, Range{end, protection});
}

Rights Protections::at(uintptr_t address) const {
  MutexLock lock(mutex_);
  const auto next = odd_.upper_bound(address);
  if (next == odd_.begin()) return Rights::kReadWrite;
  const Range& range = std::prev(next)->second;
  return address < range.end ? rightsOf(range.protection) : Rights::kReadWrite;
}

ProtectionSpan Protections::spanAt(uintptr_t address, Bytes size) const {
  MutexLock lock(mutex_);
  const auto next = odd_.upper_bound(address);
  if (next != odd_.begin() && address < std::prev(next)->second.end) {
    const Range& range = std::prev(next)->second;
    return {range.protection, std::min(size, Bytes(range.end - address))};
  }
  const Bytes gap(next == odd_.end() ? size.value() : next->first - address);
  return {PROT_READ | PROT_WRITE, std::min(size, gap)};
}

bool Protections::plain(uintptr_t start, Bytes size) const {
  MutexLock lock(mutex_);
  auto next = odd_.lower_bound(start);
  if (next != odd_.end() && next->first < start + size.value()) return false;
  return next == odd_.begin() || std::prev(next)->second.end <= start;
}

}  // namespace tidepool
