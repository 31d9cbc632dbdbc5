// SPDX-License-Identifier: Apache-2.0
// How EmbeddingTable goes through rows that are looked up or changed one by one: they are found in
// pieces, many far ones are under way at once, and the policy is told, so that hot ones get a slot.
#pragma once

#include <algorithm>
#include <vector>

#include "allocator/table/row_addresses.h"
#include "allocator/table/table.h"
#include "allocator/table/table_scratch.h"

namespace tidepool {

/// Rows whose places are found together.
inline constexpr size_t kPieceRows = 512;

/// Of a table that is read in place. Calls act(i, row's memory) for every row, which may be changed
/// there where `after` says so. What has no slot is noted for admitMissed().
template <typename Act>
void EmbeddingTable::visitInPlace(std::span<const RowNumber> rows, After after, size_t worker,
                                  Act act) {
  Scratch& buffers = scratch();
  for (size_t from = 0; from < rows.size(); from += kPieceRows) {
    const auto piece = rows.subspan(from, std::min(kPieceRows, rows.size() - from));
    buffers.addresses.resize(piece.size());
    addressInPlace(piece, buffers.addresses.data(), missed_[worker]);
    prefetchRows(buffers.addresses.data(), piece.size(), format_.stride());
    for (size_t i = 0; i < piece.size(); ++i) {
      std::byte* const row = buffers.addresses[i];
      if (after == After::kChanged) noteChange(piece[i], row, worker);
      act(from + i, row);
      if (after == After::kChanged && cache_) markChanged(buffers.slots[i]);
    }
  }
}

/// Of a table in a fetch tier. Rows that were only looked up stay staged, for a step that follows
/// needs the same ones.
template <typename Act>
Status EmbeddingTable::visitFetched(std::span<const RowNumber> rows, After after, Act act) {
  Scratch& buffers = scratch();
  TP_TRY(absorb());
  if (!staged_->roomFor(std::min(rows.size(), kPieceRows))) staged_->clear();
  for (size_t first = 0; first < rows.size();) {
    const size_t before = staged_->count();
    size_t end = first;
    std::vector<Slot> slots;
    buffers.addresses.clear();
    const size_t most = std::min(kPieceRows, staged_->mostRows());
    while (end < rows.size()) {
      const auto piece = rows.subspan(end, std::min(most, rows.size() - end));
      if (end > first && !staged_->roomFor(piece.size())) break;
      buffers.addresses.resize(end - first + piece.size());
      TP_TRY(addressOrFetch(piece, buffers.addresses.data() + end - first));
      slots.insert(slots.end(), buffers.slots.begin(), buffers.slots.end());
      end += piece.size();
    }
    TP_TRY(staged_->finish());
    for (size_t i = 0; i < end - first; ++i) {
      std::byte* const row = buffers.addresses[i];
      if (after == After::kChanged) noteChange(rows[first + i], row, 0);
      act(first + i, row);
      if (after == After::kChanged) markChanged(slots[i]);
    }
    counts_.fetched += staged_->count() - before;
    // All that was staged and changed is written now, but for those that get a slot.
    admitMissed(after);
    TP_TRY(cache_->sendWriteBack());
    if (after == After::kChanged) {
      TP_TRY(staged_->writeBack());
    } else if (end < rows.size()) {
      staged_->clear();
    }
    first = end;
  }
  return backing_->link()->withinMemory();
}

}  // namespace tidepool
