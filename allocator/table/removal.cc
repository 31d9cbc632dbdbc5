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

Status EmbeddingTable::checkHashed(const char* what) const {
  if (options_.ids == IdKind::kHashed) return {};
  return fail(ErrorCode::kUnsupported, "table %s has dense ids, whose rows stay: %s hashed ids",
              options_.name.c_str(), what);
}

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
  std::erase_if(batches_, [this](const AnnouncedBatch& batch) {
    return batch.any([this](RowNumber row) { return !ids_.live(row); });
  });
  counts_.removed += rows.size();
  return {};
}

Result<uint64_t> EmbeddingTable::removeIds(std::span<const int64_t> ids) {
  TP_TRY(checkHashed("remove_ids() is for"));
  letOthersIn();
  MutexLock lock(mutex_);
  TP_TRY(usable());
  std::vector<RowNumber> rows(ids.size());
  ids_.findMany(ids, rows.data());
  std::sort(rows.begin(), rows.end());
  rows.erase(std::unique(rows.begin(), rows.end()), rows.end());
  if (!rows.empty() && rows.back() == IdMap::kNone) rows.pop_back();
  TP_TRY(removeRows(rows));
  return rows.size();
}

Status EmbeddingTable::checkExpiry(const Expiry& expiry) const {
  TP_TRY(checkHashed("expire() is for"));
  const char* const name = options_.name.c_str();
  if (expiry.unused_for == 0 && expiry.used_fewer_than == 0) {
    return fail(ErrorCode::kInvalidArgument,
                "table %s: which rows are to go? unused_for or used_fewer_than says so", name);
  }
  const bool by_step = expiry.unused_for == 0 || tracks(options_.tracked, Tracked::kLastUse);
  if (!by_step || (expiry.used_fewer_than > 0 && !tracks(options_.tracked, Tracked::kUses))) {
    return fail(ErrorCode::kInvalidArgument,
                "table %s was made without tracking %s of its rows, which %s takes", name,
                by_step ? "the uses" : "the last use", by_step ? "used_fewer_than" : "unused_for");
  }
  if (expiry.used_fewer_than <= RowUses::kMostUses) return {};
  return fail(ErrorCode::kInvalidArgument, "table %s: uses are counted up to %llu, not %llu", name,
              static_cast<unsigned long long>(RowUses::kMostUses),
              static_cast<unsigned long long>(expiry.used_fewer_than));
}

Result<uint64_t> EmbeddingTable::expire(const Expiry& expiry) {
  TP_TRY(checkExpiry(expiry));
  uint64_t removed = 0;
  std::vector<RowNumber> rows;
  for (RowNumber from = 0;; from += kExpirePiece) {
    letOthersIn();
    MutexLock lock(mutex_);
    TP_TRY(usable());
    if (from >= ids_.end()) return removed;
    const RowNumber end = std::min(from + kExpirePiece, ids_.end());
    rows.clear();
    for (RowNumber row = from; row < end; ++row) {
      if (expiry.takes(uses_.get(row), step_.step) && ids_.live(row)) rows.push_back(row);
    }
    TP_TRY(removeRows(rows));
    removed += rows.size();
  }
}

}  // namespace tidepool
