// SPDX-License-Identifier: Apache-2.0
// FramePool: free runs in order, so that neighbours grow together again.
#include "allocator/tensors/frame_pool.h"

#include <algorithm>
#include <iterator>

#include "runtime/base/check.h"

namespace tidepool {

FramePool::FramePool(Tier& tier, Bytes limit)
    : tier_(tier),
      limit_(std::min(limit, tier.capacity())),
      unit_(tier.kind() == TierKind::kDirect ? PageCount(kPagesPerGranule) : PageCount(1)) {}

FramePool::~FramePool() {
  trim();
  MutexLock lock(mutex_);
  TP_CHECK_OP(held_.value(), ==, 0u);
}

void FramePool::addFree(FrameRun run) {
  uint64_t first = run.first.value(), count = run.count.value();
  free_pages_ += run.count;
  TP_CHECK_OP(free_pages_.value(), <=, held_.value());
  auto after = free_.lower_bound(first);
  TP_CHECK(after == free_.end() || after->first >= first + count);  // given back twice
  if (after != free_.end() && after->first == first + count) {
    count += after->second;
    after = free_.erase(after);
  }
  if (after != free_.begin()) {
    const auto before = std::prev(after);
    TP_CHECK_OP(before->first + before->second, <=, first);
    if (before->first + before->second == first) {
      before->second += count;
      return;
    }
  }
  free_.emplace_hint(after, first, count);
}

/// Up to `wanted` frames from one free run: the shortest that has them all, else the longest.
PageCount FramePool::fromFree(PageCount wanted, std::vector<FrameRun>& to) {
  auto best = free_.end();
  for (auto run = free_.begin(); run != free_.end(); ++run) {
    const bool fits = run->second >= wanted.value();
    const bool best_fits = best != free_.end() && best->second >= wanted.value();
    if (best == free_.end() || (fits && (!best_fits || run->second < best->second)) ||
        (!fits && !best_fits && run->second > best->second)) {
      best = run;
    }
  }
  if (best == free_.end()) return {};
  const auto [first, count] = *best;
  const PageCount taken = std::min(wanted, PageCount(count));
  free_.erase(best);
  if (count > taken.value()) free_.emplace(first + taken.value(), count - taken.value());
  free_pages_ -= taken;
  to.push_back({FrameIndex(first), taken});
  return taken;
}

/// False when the tier or the limit gives nothing more.
bool FramePool::fetchMore(PageCount wanted) {
  const PageCount allowed(roundDown(toPages(limit_).value(), unit_.value()));
  if (held_ >= allowed) return false;
  const PageCount asked(roundUp(wanted.value(), unit_.value()));
  const auto run = tier_.allocate(std::min(asked, allowed - held_));
  if (!run) return false;
  held_ += run->count;
  addFree(*run);
  return true;
}

Result<std::vector<FrameRun>> FramePool::take(Bytes size) {
  std::vector<FrameRun> runs;
  // Compared before rounding up, which could overflow.
  const bool possible = size <= limit_;
  PageCount left = possible ? toPages(size) : PageCount(1);
  if (possible) {
    MutexLock lock(mutex_);
    while (free_pages_ < left && fetchMore(left - free_pages_)) {
    }
    // All or nothing.
    while (left.value() > 0 && free_pages_ >= left) left -= fromFree(left, runs);
  }
  if (left.value() == 0) return runs;
  return fail(ErrorCode::kNoSpace,
              "no room for %llu bytes: the store has taken %llu of the %llu bytes that it may, and "
              "%llu of the %llu bytes of %s are in use; delete tensors, or give it more",
              static_cast<unsigned long long>(size.value()),
              static_cast<unsigned long long>((held() - free()).value()),
              static_cast<unsigned long long>(limit_.value()),
              static_cast<unsigned long long>(tier_.used().value()),
              static_cast<unsigned long long>(tier_.capacity().value()), tier_.name());
}

void FramePool::giveBack(std::span<const FrameRun> runs) {
  MutexLock lock(mutex_);
  for (const FrameRun& run : runs) addFree(run);
}

void FramePool::trimLocked() {
  std::map<uint64_t, uint64_t> kept;
  for (const auto& [first, count] : free_) {
    const uint64_t begin = roundUp(first, unit_.value());
    const uint64_t end = roundDown(first + count, unit_.value());
    if (begin >= end) {
      kept.emplace(first, count);
      continue;
    }
    tier_.release({FrameIndex(begin), PageCount(end - begin)});
    held_ -= PageCount(end - begin);
    free_pages_ -= PageCount(end - begin);
    if (begin > first) kept.emplace(first, begin - first);
    if (first + count > end) kept.emplace(end, first + count - end);
  }
  free_ = std::move(kept);
}

void FramePool::trim() {
  MutexLock lock(mutex_);
  trimLocked();
}

Bytes FramePool::held() {
  MutexLock lock(mutex_);
  return toBytes(held_);
}

Bytes FramePool::free() {
  MutexLock lock(mutex_);
  return toBytes(free_pages_);
}

}  // namespace tidepool
