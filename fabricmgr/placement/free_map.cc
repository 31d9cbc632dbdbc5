// SPDX-License-Identifier: Apache-2.0
// FreeMap: two ordered containers that say the same. Not thread-safe.
#include "fabricmgr/placement/free_map.h"

#include "runtime/base/check.h"

namespace tidepool::fabric {

void FreeMap::insert(Run run) {
  by_offset_.emplace(run.offset, run.length);
  by_length_.emplace(run.length, run.offset);
  free_ += run.length;
}

void FreeMap::erase(std::map<uint64_t, uint64_t>::const_iterator at) {
  free_ -= at->second;
  by_length_.erase({at->second, at->first});
  by_offset_.erase(at);
}

bool FreeMap::holds(Run run) const {
  auto after = by_offset_.upper_bound(run.offset);
  if (after == by_offset_.begin()) return false;
  --after;
  return run.end() <= after->first + after->second;
}

void FreeMap::take(Run run) {
  if (run.length == 0) return;
  TP_CHECK(holds(run));
  const auto at = std::prev(by_offset_.upper_bound(run.offset));
  const Run whole{at->first, at->second};
  erase(at);
  if (whole.offset < run.offset) insert({whole.offset, run.offset - whole.offset});
  if (run.end() < whole.end()) insert({run.end(), whole.end() - run.end()});
}

void FreeMap::give(Run run) {
  if (run.length == 0) return;
  const auto after = by_offset_.lower_bound(run.offset);
  if (after != by_offset_.end()) {
    TP_CHECK_OP(run.end(), <=, after->first);
  }
  if (after != by_offset_.begin()) {
    const auto before = std::prev(after);
    TP_CHECK_OP(before->first + before->second, <=, run.offset);
    if (before->first + before->second == run.offset) {
      run = {before->first, before->second + run.length};
      erase(before);
    }
  }
  const auto next = by_offset_.lower_bound(run.end());
  if (next != by_offset_.end() && next->first == run.end()) {
    run.length += next->second;
    erase(next);
  }
  insert(run);
}

Run FreeMap::tightest(uint64_t length) const {
  const auto found = by_length_.lower_bound({length, 0});
  if (length == 0 || found == by_length_.end()) return {};
  return {found->second, length};
}

std::vector<Run> FreeMap::choose(uint64_t length) const {
  TP_CHECK_OP(length, <=, free_);
  std::vector<Run> chosen;
  auto longest = by_length_.rbegin();
  while (length > 0 && longest->first < length) {
    chosen.push_back({longest->second, longest->first});
    length -= longest->first;
    ++longest;
  }
  if (length == 0) return chosen;
  // The tightest for the rest is none of those taken: they are longer than the longest that is
  // left, or as long, but then at a higher offset.
  chosen.push_back(tightest(length));
  return chosen;
}

}  // namespace tidepool::fabric
