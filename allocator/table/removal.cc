// SPDX-License-Identifier: Apache-2.0
// EmbeddingTable: giving up rows of hashed ids. A row stays where it is until another id gets it;
// what goes is everything that says whose it is: its id, its slot, its place among rows read ahead.
#include <algorithm>

#include "allocator/table/table.h"

namespace tidepool {
namespace {

// Rows that are looked at under one hold of the lock.
constexpr RowNumber kExpirePiece = 256 * 1024;

}  // namespace

/// Each of them once, and live.
Status EmbeddingTable::removeRows(std::span<const RowNumber> rows) {
  if (rows.empty()) return {};
  TP_TRY(keepForCheckpoint(rows));
  if (fetches()) {
    // What was staged for a step, and rows on their way home, go before others have their place.
    staged_->clear();
    Status settled = absorb();
    if (settled) settled = cache_->sendWriteBack();
    if (!settled) return broken(settled.error());
  }
  for (const RowNumber row : rows) {
    changes_.created(row);
    const Slot slot = cache_ ? cache_->map().find(row) : kNoSlot;
    if (slot != kNoSlot) cache_->drop(slot);
    if (prefetched_) prefetched_->drop(row);
    ids_.erase(row);
  }
  // Their places are not those of their rows any more.
  batches_.dropWith([this](RowNumber row) TP_LOCKS_OF_CALLER { return !ids_.live(row); });
  counts_.removed += rows.size();
  return {};
}

Result<uint64_t> EmbeddingTable::removeIds(std::span<const int64_t> ids) {
  TP_TRY(TableIds::checkHashed(options_, "remove_ids() is for"));
  letOthersIn();
  MutexLock lock(mutex_);
  TP_TRY(usable());
  const std::vector<RowNumber> rows = ids_.present(ids);
  TP_TRY(removeRows(rows));
  return rows.size();
}

Result<uint64_t> EmbeddingTable::expire(const Expiry& expiry) {
  TP_TRY(TableIds::checkExpiry(options_, expiry));
  uint64_t removed = 0;
  std::vector<RowNumber> rows;
  for (RowNumber from = 0;; from += kExpirePiece) {
    letOthersIn();
    MutexLock lock(mutex_);
    TP_TRY(usable());
    if (from >= ids_.end()) return removed;
    const RowNumber end = std::min(from + kExpirePiece, ids_.end());
    rows.clear();
    ids_.expired(expiry, step_.number(), from, end, rows);
    TP_TRY(removeRows(rows));
    removed += rows.size();
  }
}

}  // namespace tidepool
