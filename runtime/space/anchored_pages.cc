// SPDX-License-Identifier: Apache-2.0
// The set of anchored pages, by page.
#include "runtime/space/anchored_pages.h"

#include <algorithm>
#include <iterator>

namespace tidepool {

void AnchoredPages::keep(PageIndex first, PageIndex end) {
  MutexLock lock(mutex_);
  for (PageIndex page = first; page < end; ++page) pages_[page].kept = true;
  publish();
}

void AnchoredPages::hold(PageIndex page) {
  MutexLock lock(mutex_);
  ++pages_[page].waits;
  publish();
}

void AnchoredPages::letGo(PageIndex page) {
  MutexLock lock(mutex_);
  const auto found = pages_.find(page);
  if (found == pages_.end() || found->second.waits == 0) return;
  if (--found->second.waits == 0 && !found->second.kept) pages_.erase(found);
  publish();
}

void AnchoredPages::forget(PageIndex first, PageIndex end) {
  if (count_.load(std::memory_order_acquire) == 0) return;
  MutexLock lock(mutex_);
  pages_.erase(pages_.lower_bound(first), pages_.lower_bound(end));
  publish();
}

void AnchoredPages::forgetWaits() {
  MutexLock lock(mutex_);
  for (auto page = pages_.begin(); page != pages_.end();) {
    page->second.waits = 0;
    page = page->second.kept ? std::next(page) : pages_.erase(page);
  }
  publish();
}

bool AnchoredPages::any(PageIndex first, uint64_t count) const {
  if (count_.load(std::memory_order_acquire) == 0) return false;
  MutexLock lock(mutex_);
  const auto next = pages_.lower_bound(first);
  return next != pages_.end() && next->first < first + count;
}

bool AnchoredPages::anyKept(PageIndex first, uint64_t count) const {
  if (count_.load(std::memory_order_acquire) == 0) return false;
  MutexLock lock(mutex_);
  const auto end = pages_.lower_bound(first + count);
  return std::any_of(pages_.lower_bound(first), end,
                     [](const auto& page) { return page.second.kept; });
}

}  // namespace tidepool
