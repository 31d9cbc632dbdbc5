// SPDX-License-Identifier: Apache-2.0
// EmbeddingTable as the keeper of rows that have to be moved: between two calls, with nothing under
// way.
#include <time.h>

#include "allocator/table/table.h"

namespace tidepool {
namespace {

// Longer than calls take, shorter than a checkpoint is restored: who waits has others to see to.
constexpr int kTries = 1000;
constexpr timespec kBetween{0, 50'000};

}  // namespace

Status EmbeddingTable::usable() const {
  if (broken_) return tl::unexpected(*broken_);
  return intact();
}

Status EmbeddingTable::intact() const {
  const Status verdict = backing_->verdict();
  if (verdict) return {};
  return fail(verdict.error().code(), "table %s was given up: %s", options_.name.c_str(),
              verdict.error().text());
}

bool EmbeddingTable::hold() TP_LOCKS_BY_HAND {
  others_waiting_.store(1, std::memory_order_relaxed);
  bool held = mutex_.tryLock();
  for (int i = 0; !held && i < kTries; ++i) {
    nanosleep(&kBetween, nullptr);
    held = mutex_.tryLock();
  }
  others_waiting_.store(0, std::memory_order_release);  // pairs with letOthersIn()
  wakeWaiters(others_waiting_);
  if (!held || !fetches()) return held;
  // Requests under way say where rows are now.
  if (!broken_ && backing_->link()->finishAll()) return true;
  mutex_.unlock();
  return false;
}

void EmbeddingTable::letGo() TP_LOCKS_BY_HAND { mutex_.unlock(); }

}  // namespace tidepool
