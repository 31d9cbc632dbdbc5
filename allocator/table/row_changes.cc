// SPDX-License-Identifier: Apache-2.0
// RowChanges: bits are exchanged at a checkpoint's beginning, not copied, so that it costs the
// trainer the same however many rows there are.
#include "allocator/table/row_changes.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <utility>

#include "runtime/base/check.h"

namespace tidepool {

Status RowChanges::restart(RowNumber capacity, CheckpointId base) {
  auto bits = RowBits::create(capacity);
  if (!bits) return tl::unexpected(bits.error());
  changed_ = std::move(*bits);
  base_ = base;
  if (unpublished_.valid()) unpublished_.setFirst(capacity);
  return {};
}

Status RowChanges::startPublishing(RowNumber capacity) {
  auto bits = RowBits::create(capacity);
  if (!bits) return tl::unexpected(bits.error());
  unpublished_ = std::move(*bits);
  unpublished_.setFirst(capacity);
  return {};
}

RowNumber RowChanges::unpublished(RowNumber capacity, RowNumber from, size_t most,
                                  std::vector<RowNumber>& rows) const {
  for (; from < capacity; from = (from / 64 + 1) * 64) {
    uint64_t word = unpublished_.word(from / 64) & ~uint64_t{0} << from % 64;
    for (; word != 0; word &= word - 1) {
      const RowNumber row = from / 64 * 64 + static_cast<RowNumber>(std::countr_zero(word));
      if (most-- == 0) return row;
      rows.push_back(row);
    }
  }
  return capacity;
}

Result<RowChanges::Prepared> RowChanges::prepare(RowNumber capacity) {
  auto changed = RowBits::create(capacity);
  if (!changed) return tl::unexpected(changed.error());
  auto saved = RowBits::create(capacity);
  if (!saved) return tl::unexpected(saved.error());
  auto free = RowBits::create(capacity);
  if (!free) return tl::unexpected(free.error());
  return Prepared{std::move(*changed), std::move(*saved), std::move(*free)};
}

void RowChanges::begin(Prepared prepared, SavedRows which, RowNumber limit, uint32_t row_bytes,
                       size_t workers, CopyPath path, std::span<const uint64_t> free) {
  TP_CHECK(!saving_);
  asked_ = std::exchange(changed_, std::move(prepared.changed));
  saved_ = std::move(prepared.saved);
  if (!free.empty()) {
    free_ = std::move(prepared.free);
    free_.assign(free);
  }
  saving_ = true;
  which_ = which;
  limit_ = removed_below_ = limit;
  row_bytes_ = row_bytes;
  path_ = path;
  block_rows_ = path.empty->rowsPerBlock(row_bytes);
  copies_.assign(workers, nullptr);
  copies_lost_.store(false, std::memory_order_relaxed);
  copied_.store(0, std::memory_order_relaxed);
}

void RowChanges::keepOld(RowNumber row, const std::byte* bytes, size_t worker) {
  if (!isPending(row) || copiesLost()) return;
  TP_CHECK_OP(worker, <, copies_.size());
  RowBlock*& block = copies_[worker];
  if (block == nullptr || block->rows.size() == block_rows_) {
    if (block != nullptr) path_.full->push(block);
    block = path_.empty->take();
    if (block == nullptr) {
      copies_lost_.store(true, std::memory_order_relaxed);
      return;
    }
    block->table = path_.table;
  }
  TP_CHECK_OP(block->rows.size(), <, block_rows_);
  block->add(row, bytes, row_bytes_, path_.ids, path_.uses);
  saved_.set(row);
  copied_.fetch_add(1, std::memory_order_relaxed);
}

RowNumber RowChanges::pending(RowNumber from, size_t most, std::vector<RowNumber>& rows) const {
  for (; from < limit_; from = (from / 64 + 1) * 64) {
    uint64_t word = ~saved_.word(from / 64);
    if (which_ == SavedRows::kChanged) word &= asked_.word(from / 64);
    if (free_.valid()) word &= ~free_.word(from / 64);
    word &= ~uint64_t{0} << from % 64;
    for (; word != 0; word &= word - 1) {
      const RowNumber row = from / 64 * 64 + static_cast<RowNumber>(std::countr_zero(word));
      if (row >= limit_) return limit_;
      if (most-- == 0) return row;
      rows.push_back(row);
    }
  }
  return limit_;
}

RowNumber RowChanges::removed(RowNumber from, size_t most, std::vector<RowNumber>& rows) const {
  const bool any = which_ == SavedRows::kChanged && asked_.valid() && free_.valid();
  for (; any && from < removed_below_; from = (from / 64 + 1) * 64) {
    uint64_t word = asked_.word(from / 64) & free_.word(from / 64) & ~uint64_t{0} << from % 64;
    for (; word != 0; word &= word - 1) {
      const RowNumber row = from / 64 * 64 + static_cast<RowNumber>(std::countr_zero(word));
      if (most-- == 0) return row;
      rows.push_back(row);
    }
  }
  return removed_below_;
}

void RowChanges::finishCopies() {
  limit_ = 0;
  for (RowBlock*& block : copies_) {
    if (block != nullptr) path_.full->push(block);
    block = nullptr;
  }
}

void RowChanges::end() {
  for (RowBlock*& block : copies_) {
    if (block != nullptr) path_.empty->giveBack(block);
    block = nullptr;
  }
  limit_ = 0;
  saving_ = false;
  asked_ = RowBits();
  saved_ = RowBits();
  free_ = RowBits();
}

void RowChanges::commit(CheckpointId id) {
  end();
  base_ = id;
}

void RowChanges::abandon() {
  if (asked_.valid()) {
    changed_.add(asked_);
  } else {
    changed_ = RowBits();  // there never was a checkpoint
  }
  end();
}

}  // namespace tidepool
