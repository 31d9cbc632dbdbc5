// SPDX-License-Identifier: Apache-2.0
// EmbeddingTable: giving up rows of hashed ids. A row stays where it is until another id gets it;
// what goes is everything that says whose it is: its id, its slot, its place among rows read ahead.
#include <algorithm>

#include "allocator/table/table.h"

namespace tidepool {

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
    if (ahead_) ahead_->drop(row);
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

}  // namespace tidepool
