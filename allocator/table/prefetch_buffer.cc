// SPDX-License-Identifier: Apache-2.0
// PrefetchBuffer: chunks belong to the last batch that needs any of their rows. When that is over,
// the few rows that later batches need as well move together, and the chunk is free.
#include "allocator/table/prefetch_buffer.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "runtime/base/check.h"
#include "runtime/base/debug_check.h"

namespace tidepool {
namespace {

// A call into the system for so many requests: each wakes the server up.
constexpr uint64_t kRequestsAtOnce = 4;
// Rows whose lines of the map are on their way at the same time.
constexpr size_t kLeaveAhead = 16;

}  // namespace

Status PrefetchBuffer::setMost(size_t rows) {
  TP_CHECK(chunks_.empty());
  const size_t room = mapRoom(rows);
  auto map =
      SlotMap::create({.rows = cache_.map().rows(), .slots = kMostPlaces, .most = room}, room);
  if (!map) return tl::unexpected(map.error());
  map_ = std::move(*map);
  most_ = rows;
  return {};
}

Status PrefetchBuffer::open(uint64_t batch) {
  auto chunk = link_.takeAhead();
  if (!chunk) return tl::unexpected(chunk.error());
  open_ = *chunk;
  open_->batch = batch;
  open_->number = static_cast<uint32_t>(chunks_by_number_.size());
  if (free_numbers_.empty()) {
    chunks_by_number_.push_back(nullptr);
    bytes_.resize(chunks_by_number_.size());
  } else {
    open_->number = free_numbers_.back();
    free_numbers_.pop_back();
  }
  TP_CHECK_OP(open_->number, <, kMostPlaces >> kPositionBits);
  chunks_by_number_[open_->number] = open_;
  bytes_[open_->number] = open_->bytes;
  chunks_.push_back(open_);
  return {};
}

void PrefetchBuffer::giveBack(RowChunk* chunk) {
  TP_CHECK(chunks_by_number_[chunk->number] == chunk && chunk != survivors_);
  chunks_by_number_[chunk->number] = nullptr;
  free_numbers_.push_back(chunk->number);
  link_.giveBack(chunk);
}

/// There is room(). An earlier one of the same rows may have been the row.
Result<PrefetchBuffer::Place> PrefetchBuffer::add(RowNumber row, uint64_t batch) {
  if (open_ == nullptr) {
    const Place found = map_.find(row);
    if (found != kNoSlot) return found;
    TP_TRY(open(batch));
  }
  const Place place = placeOf(open_, open_->rows.size());
  const Place found = map_.findOrInsert(row, place);
  if (found != place) return found;
  open_->rows.push_back(row);
  open_->needs.push_back({batch, 0, 0, 0});
  open_->batch = std::max(open_->batch, batch);
  if (open_->rows.size() == link_.rowsPerChunk()) TP_TRY(request());
  return place;
}

Result<size_t> PrefetchBuffer::want(std::span<const RowNumber> rows, uint64_t batch,
                                    Place* places) {
  map_.findMany(rows, places);
  for (size_t i = 0; i < rows.size(); ++i) {
    if (places[i] == kNoSlot) {
      if (map_.count() == most_ || !room()) return i;
      auto added = add(rows[i], batch);
      if (!added) return tl::unexpected(added.error());
      places[i] = *added;
      continue;
    }
    ChunkRow& row = rowAt(places[i]);
    if (row.last < batch) row.last = batch;
    if (chunkAt(places[i])->batch < batch) places[i] = kNoSlot;  // it is going to be swept before
  }
  return rows.size();
}

Status PrefetchBuffer::request() {
  RowChunk* const chunk = std::exchange(open_, nullptr);
  chunk->request = ++requests_;
  asked_ += chunk->rows.size();
  TP_TRY(link_.startRead(chunk));
  under_way_.push_back(chunk);
  return requests_ % kRequestsAtOnce == 0 ? link_.send() : Status();
}

Status PrefetchBuffer::send() {
  if (open_ != nullptr) TP_TRY(request());
  return link_.send();
}

/// Notes what has come, as far as the link has polled.
void PrefetchBuffer::takeIn() {
  for (; !under_way_.empty() && !under_way_.front()->under_way; under_way_.pop_front()) {
    come_ = under_way_.front()->request;
  }
}

Status PrefetchBuffer::await(uint64_t requests) {
  TP_DCHECK_OP(requests, <=, requests_);  // or it was never sent
  if (come_ < requests) takeIn();
  while (come_ < requests) {
    TP_CHECK(!under_way_.empty());
    TP_TRY(link_.finish(under_way_.front()));
    takeIn();
  }
  return {};
}

Status PrefetchBuffer::awaitRow(Place place) {
  const RowChunk* const chunk = chunkAt(place);
  TP_CHECK(chunk != open_);
  return await(chunk->request);
}

/// No batch needs the row any more.
Status PrefetchBuffer::leave(const RowChunk* chunk, size_t position) {
  const ChunkRow& need = chunk->needs[position];
  const std::byte* const bytes = chunk->bytes + position * stride_;
  if (need.worthy) {
    const auto slot = cache_.place(chunk->rows[position], Admission::kAdmit);
    if (!slot) return tl::unexpected(slot.error());
    if (*slot != kNoSlot) {
      memcpy(cache_.row(*slot), bytes, stride_);
      if (need.changed) cache_.markDirty(*slot);
      return {};
    }
  }
  return need.changed ? cache_.writeOut(chunk->rows[position], bytes) : Status();
}

/// Row `from` of the chunk stays: with those that survived others, or further to the front.
void PrefetchBuffer::keep(RowChunk* chunk, size_t from, size_t& kept) {
  const RowNumber row = chunk->rows[from];
  const ChunkRow need = chunk->needs[from];
  const std::byte* const bytes = chunk->bytes + from * stride_;
  RowChunk* const to = survivors_ != nullptr ? survivors_ : chunk;
  const size_t at = to == chunk ? kept++ : to->rows.size();
  to->batch = std::max<uint64_t>(to->batch, need.last);
  if (to == chunk && at == from) return;
  TP_CHECK_OP(at, <, link_.rowsPerChunk());
  memcpy(to->bytes + at * stride_, bytes, stride_);
  map_.erase(row);
  map_.insert(row, placeOf(to, at));
  if (to == chunk) {
    to->rows[at] = row;
    to->needs[at] = need;
    return;
  }
  to->rows.push_back(row);
  to->needs.push_back(need);
  if (to->rows.size() == link_.rowsPerChunk()) survivors_ = nullptr;
}

/// Rows of a chunk that has come go where leaves() takes them, if it does; the others stay.
template <typename Leaves>
Status PrefetchBuffer::sweep(RowChunk* chunk, Leaves leaves) {
  TP_CHECK(!chunk->under_way);
  if (survivors_ == chunk) survivors_ = nullptr;
  size_t kept = 0;
  chunk->batch = 0;
  const std::vector<RowNumber>& rows = chunk->rows;
  for (size_t i = 0; i < rows.size(); ++i) {
    if (i + kLeaveAhead < rows.size()) map_.prefetch(rows[i + kLeaveAhead]);
    if (chunk->needs[i].dropped) continue;
    auto left = leaves(chunk, i);
    if (!left) return tl::unexpected(left.error());
    if (*left) {
      map_.erase(rows[i]);
    } else {
      keep(chunk, i, kept);
    }
  }
  chunk->rows.resize(kept);
  chunk->needs.resize(kept);
  if (kept > 0 && kept < link_.rowsPerChunk()) survivors_ = chunk;
  return {};
}

/// Sweeps every chunk that has come and swept(chunk) picks.
template <typename Swept, typename Leaves>
Status PrefetchBuffer::sweepAll(Swept swept, Leaves leaves) {
  takeIn();
  for (size_t i = 0; i < chunks_.size();) {
    RowChunk* const chunk = chunks_[i];
    if (!come(chunk) || !swept(chunk)) {
      ++i;
      continue;
    }
    TP_TRY(sweep(chunk, leaves));
    if (chunk->rows.empty()) {
      chunks_.erase(chunks_.begin() + static_cast<ptrdiff_t>(i));
      giveBack(chunk);
    } else {
      ++i;
    }
  }
  return cache_.sendWriteBack();
}

void PrefetchBuffer::drop(RowNumber row) {
  const Place place = find(row);
  if (place == kNoSlot) return;
  rowAt(place).dropped = true;
  map_.erase(row);
}

Status PrefetchBuffer::release(uint64_t finished) {
  const auto over = [finished](const RowChunk* chunk) { return chunk->batch <= finished; };
  if (std::none_of(chunks_.begin(), chunks_.end(), over)) return {};
  return sweepAll(over, [&](const RowChunk* chunk, size_t position) -> Result<bool> {
    const ChunkRow& need = chunk->needs[position];
    if (need.last > finished) return false;
    if (need.worthy || need.changed) TP_TRY(leave(chunk, position));
    return true;
  });
}

Result<bool> PrefetchBuffer::toFreeSlot(const RowChunk* chunk, size_t position) {
  if (cache_.full()) return false;
  const ChunkRow& need = chunk->needs[position];
  const auto slot = cache_.place(chunk->rows[position], Admission::kAdmit);
  if (!slot) return tl::unexpected(slot.error());
  if (*slot == kNoSlot) return false;
  memcpy(cache_.row(*slot), chunk->bytes + position * stride_, stride_);
  if (need.changed) cache_.markDirty(*slot);
  cache_.needUntil(*slot, need.last);
  return true;
}

Result<bool> PrefetchBuffer::moveToFreeSlots() {
  TP_TRY(send());
  TP_TRY(await(requests_));
  const size_t before = count();
  TP_TRY(sweepAll([](const RowChunk*) { return true; },
                  [this](const RowChunk* chunk, size_t i) { return toFreeSlot(chunk, i); }));
  return count() < before;
}

Status PrefetchBuffer::writeChanged() {
  for (RowChunk* chunk : chunks_) {
    for (size_t i = 0; i < chunk->rows.size(); ++i) {
      if (!chunk->needs[i].changed || chunk->needs[i].dropped) continue;
      TP_TRY(cache_.writeOut(chunk->rows[i], chunk->bytes + i * stride_));
      chunk->needs[i].changed = false;
    }
  }
  return cache_.sendWriteBack();
}

void PrefetchBuffer::forget() {
  open_ = survivors_ = nullptr;
  for (RowChunk* chunk : chunks_) {
    if (chunk->under_way) (void)link_.finish(chunk);
    giveBack(chunk);
  }
  chunks_.clear();
  under_way_.clear();
  come_ = requests_;
  if (most_ > 0) map_.restart(mapRoom(most_));
}

}  // namespace tidepool
