// SPDX-License-Identifier: Apache-2.0
// A set of addresses that come in few, long intervals. Not thread-safe; allocates as it grows.
// Addresses are bytes, intervals half-open.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <map>

namespace tidepool {

class IntervalSet {
 public:
  /// Whether the address asked about is in the set, and for how many bytes that stays so.
  struct Span {
    bool inside;
    size_t size;
  };

  void add(uintptr_t start, uintptr_t end) {
    auto next = atOrBefore(start);
    while (next != ends_.end() && next->first <= end) {
      start = std::min(start, next->first);
      end = std::max(end, next->second);
      next = ends_.erase(next);
    }
    ends_.emplace(start, end);
  }

  void remove(uintptr_t start, uintptr_t end) {
    auto next = atOrBefore(start);
    while (next != ends_.end() && next->first < end) {
      const auto [first, last] = *next;
      next = ends_.erase(next);
      if (first < start) ends_.emplace(first, std::min(last, start));
      if (last > end) ends_.emplace(std::max(first, end), last);
    }
  }

  /// At most `size`.
  Span spanAt(uintptr_t address, size_t size) const {
    const auto next = ends_.upper_bound(address);
    if (next != ends_.begin() && std::prev(next)->second > address) {
      return {true, std::min<size_t>(size, std::prev(next)->second - address)};
    }
    if (next == ends_.end()) return {false, size};
    return {false, std::min<size_t>(size, next->first - address)};
  }

  /// The lowest interval: start and end. Not to be asked of an empty set.
  std::pair<uintptr_t, uintptr_t> lowest() const { return *ends_.begin(); }
  size_t count() const { return ends_.size(); }
  /// Calls `act(start, end)` for every interval, from the lowest on.
  template <typename Act>
  void forEach(Act act) const {
    for (const auto& [start, end] : ends_) act(start, end);
  }

 private:
  using Ends = std::map<uintptr_t, uintptr_t>;  // by start; they neither touch nor overlap

  /// The first interval that reaches `start` or lies behind it.
  Ends::iterator atOrBefore(uintptr_t start) {
    auto next = ends_.upper_bound(start);
    return next != ends_.begin() && std::prev(next)->second >= start ? std::prev(next) : next;
  }

  Ends ends_;
};

}  // namespace tidepool
