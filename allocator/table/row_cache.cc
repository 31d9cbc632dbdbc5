// SPDX-License-Identifier: Apache-2.0
// RowCache: write-back in chunks where homes are fetched, by copy where they are read in place. How
// it grows and shrinks is in row_cache_size.cc.
#include "allocator/table/row_cache.h"

#include <cstring>

#include "runtime/base/check.h"
#include "runtime/base/debug_check.h"

namespace tidepool {
namespace {

// Evictions whose cache lines are on their way at the same time; the policy knows twice as many.
constexpr uint32_t kVictimsAhead = 3;

}  // namespace

Status RowCache::writeOut(RowNumber number, const std::byte* bytes) {
  ++written_back_;
  if (backing_.memory() != nullptr) {
    memcpy(backing_.memory() + number * stride_, bytes, row_bytes_);
    return {};
  }
  if (writing_ == nullptr) {
    auto chunk = backing_.link()->take();
    if (!chunk) return tl::unexpected(chunk.error());
    writing_ = *chunk;
  }
  TP_CHECK_OP(writing_->rows.size(), <, backing_.link()->rowsPerChunk());
  memcpy(writing_->bytes + writing_->rows.size() * stride_, bytes, row_bytes_);
  writing_->rows.push_back(number);
  if (writing_->rows.size() < backing_.link()->rowsPerChunk()) return {};
  return sendWriteBack();
}

Status RowCache::sendWriteBack() {
  if (writing_ == nullptr) return {};
  RowChunk* const chunk = writing_;
  writing_ = nullptr;
  TP_TRY(backing_.link()->writeAndForget(chunk));
  return backing_.link()->send();
}

Status RowCache::empty(Slot slot) {
  TP_CHECK((states_[slot] & kOccupied) != 0);
  if ((states_[slot] & kDirty) != 0) TP_TRY(writeOut(rowOf(slot), row(slot)));
  map_.erase(rowOf(slot));
  states_[slot] = 0;
  ++evictions_;
  return {};
}

/// The slot of the row that deserves its own least, emptied; kNoSlot if none may leave.
Result<Slot> RowCache::evictOne() {
  const std::optional<SlotIndex> victim = policy_->nextVictim();
  if (!victim) return kNoSlot;
  const auto slot = static_cast<Slot>(victim->value());
  policy_->onRemove(*victim, RowIndex(rowOf(slot)));
  TP_TRY(empty(slot));
  return slot;
}

/// An eviction reads the slot's row and state, then the row's bucket and its line of the sketch,
/// and a row that was changed itself: what is next is asked for while others are under way.
void RowCache::prefetchVictims() const {
  if (const auto later = policy_->likelyVictim(2 * kVictimsAhead)) {
    __builtin_prefetch(&low_rows_[later->value()], 1);
    __builtin_prefetch(&states_[later->value()], 1);
  }
  const auto soon = policy_->likelyVictim(kVictimsAhead);
  if (!soon) return;
  const auto slot = static_cast<Slot>(soon->value());
  prefetch(rowOf(slot));
  if ((states_[slot] & kDirty) != 0) prefetchRow(row(slot));
}

Result<Slot> RowCache::place(RowNumber number, Admission admission) {
  Slot slot = kNoSlot;
  if (!free_.empty()) {
    slot = free_.back();
    free_.pop_back();
  } else if (used_ < capacity_) {
    slot = used_++;
  } else {
    const auto emptied = evictOne();
    if (!emptied || *emptied == kNoSlot) return emptied;
    slot = *emptied;
    prefetchVictims();
  }
  TP_CHECK_OP(slot, <, capacity_);
  occupy(slot, number, kOccupied);
  map_.insert(number, slot);
  policy_->onInsert(SlotIndex(slot), RowIndex(number), admission);
  return slot;
}

void RowCache::drop(Slot slot) {
  TP_CHECK(slot < used_ && (states_[slot] & kOccupied) != 0);
  policy_->onRemove(SlotIndex(slot), RowIndex(rowOf(slot)));
  map_.erase(rowOf(slot));
  states_[slot] = 0;
  free_.push_back(slot);
}

Status RowCache::writeBackAll() {
  for (Slot slot = 0; slot < used_; ++slot) {
    if ((states_[slot] & kDirty) == 0) continue;
    TP_TRY(writeOut(rowOf(slot), row(slot)));
    states_[slot] &= static_cast<uint8_t>(~kDirty);
  }
  TP_TRY(sendWriteBack());
  return backing_.link() == nullptr ? Status() : backing_.link()->finishAll();
}

void RowCache::forgetAll() {
  for (Slot slot = 0; slot < used_; ++slot) {
    if ((states_[slot] & kOccupied) == 0) continue;
    policy_->onRemove(SlotIndex(slot), RowIndex(rowOf(slot)));
    states_[slot] = 0;
  }
  map_.restart(capacity_);
  used_ = 0;
  free_ = std::vector<Slot>();
}

Bytes RowCache::metadata() const {
  return map_.memory() + Bytes(uint64_t{capacity_} * kWordBytes) + policy_->metadataBytes();
}

}  // namespace tidepool
