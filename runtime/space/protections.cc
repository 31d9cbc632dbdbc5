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

namespace {

bool accessible(int protection) { return protection != PROT_NONE && protection != kNotHandedOut; }

}  // namespace

uint64_t Protections::clear(uintptr_t start, uintptr_t end) {
  uint64_t hidden = 0;
  auto at = odd_.lower_bound(start);
  if (at != odd_.begin() && std::prev(at)->second.end > start) --at;
  while (at != odd_.end() && at->first < end) {
    const auto [first, range] = *at;
    at = odd_.erase(at);
    if (!accessible(range.protection)) hidden += std::min(end, range.end) - std::max(start, first);
    if (first < start) odd_.emplace(first, Range{start, range.protection});
    if (range.end > end) odd_.emplace(end, range);
  }
  return hidden;
}

int64_t Protections::set(uintptr_t start, Bytes size, int protection) {
  MutexLock lock(mutex_);
  uintptr_t end = start + size.value();
  const uint64_t hides = accessible(protection) ? 0 : size.value();
  const auto grown = static_cast<int64_t>(clear(start, end) - hides);
  if (rightsOf(protection) == Rights::kReadWrite) return grown;
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
      return grown;
    }
  }
  odd_.emplace(start, Range{end, protection});
  return grown;
}

Rights Protections::at(uintptr_t address) const {
  MutexLock lock(mutex_);
  const auto next = odd_.upper_bound(address);
  if (next == odd_.begin()) return Rights::kReadWrite;
  const Range& range = std::prev(next)->second;
  return address < range.end ? rightsOf(range.protection) : Rights::kReadWrite;
}

ProtectionStretch Protections::stretchAround(uintptr_t address, uintptr_t from,
                                             uintptr_t end) const {
  MutexLock lock(mutex_);
  const auto next = odd_.upper_bound(address);
  if (next != odd_.begin()) {
    const auto& [start, range] = *std::prev(next);
    if (address < range.end) {
      return {std::max(from, start), std::min(end, range.end), range.protection};
    }
    from = std::max(from, range.end);
  }
  if (next != odd_.end()) end = std::min(end, next->first);
  return {from, end, PROT_READ | PROT_WRITE};
}

ProtectionSpan Protections::spanAt(uintptr_t address, Bytes size) const {
  const ProtectionStretch found = stretchAround(address, address, address + size.value());
  return {found.protection, Bytes(found.end - address)};
}

bool Protections::plain(uintptr_t start, Bytes size) const {
  MutexLock lock(mutex_);
  auto next = odd_.lower_bound(start);
  if (next != odd_.end() && next->first < start + size.value()) return false;
  return next == odd_.begin() || std::prev(next)->second.end <= start;
}

}  // namespace tidepool
