// SPDX-License-Identifier: Apache-2.0
// The free runs of one device, by offset and by length. Neighbouring runs are always joined. Every
// call costs the logarithm of the number of runs. Not thread-safe; offsets and lengths are bytes.
#pragma once

#include <map>
#include <set>
#include <vector>

#include "runtime/base/units.h"

namespace tidepool::fabric {

struct Run {
  uint64_t offset = 0;
  uint64_t length = 0;
  uint64_t end() const { return offset + length; }
  bool operator==(const Run&) const = default;
};

class FreeMap {
 public:
  FreeMap() = default;
  explicit FreeMap(Bytes capacity) { give({0, capacity.value()}); }

  Bytes free() const { return Bytes(free_); }
  Bytes largest() const { return Bytes(by_length_.empty() ? 0 : by_length_.rbegin()->first); }
  size_t runs() const { return by_offset_.size(); }
  /// True if all of `run` is free.
  bool holds(Run run) const;
  /// Takes `run` out, all of which must be free.
  void take(Run run);
  /// Puts `run` back, none of which may be free.
  void give(Run run);
  /// Where `length` bytes fit most tightly, lowest offset first; length 0 if nowhere.
  Run tightest(uint64_t length) const;
  /// Runs that make up `length` bytes, as few as can be: the tightest one that holds all of it, or
  /// the longest ones and then the tightest for the rest. `length` <= free().
  std::vector<Run> choose(uint64_t length) const;

 private:
  void insert(Run run);
  void erase(std::map<uint64_t, uint64_t>::const_iterator at);

  std::map<uint64_t, uint64_t> by_offset_;             // offset -> length
  std::set<std::pair<uint64_t, uint64_t>> by_length_;  // length, offset
  uint64_t free_ = 0;
};

}  // namespace tidepool::fabric
