// SPDX-License-Identifier: Apache-2.0
// EmbeddingTable: reading ahead. Requests go out when a batch is announced; the answers wait in the
// connection until some call on the table takes them in. Rows of announced batches stay.
#include <algorithm>
#include <cstring>
#include <utility>

#include "allocator/table/table.h"
#include "allocator/table/table_locks.h"
#include "allocator/table/table_scratch.h"
#include "runtime/base/log.h"

namespace tidepool {
namespace {

/// The policy tells batches apart that are at most so far ahead.
constexpr uint64_t kMostAnnounced = NextUse::kMostAhead;
// Rows whose cache lines are on their way at the same time: of each a byte or two; several lines.
constexpr size_t kNeedAhead = 64, kFillAhead = 6, kPlaceAhead = 8;

}  // namespace

/// The rows of a chunk that has come go to their slots.
Status EmbeddingTable::settle(RowChunk* chunk) {
  TP_TRY(home_->link()->finish(chunk));
  const size_t stride = format_.stride();
  const std::vector<Slot>& slots = chunk->slots;
  for (size_t i = 0; i < slots.size(); ++i) {
    if (i + kFillAhead < slots.size()) cache_->prefetchFill(slots[i + kFillAhead]);
    memcpy(cache_->row(slots[i]), chunk->bytes + i * stride, stride);
    cache_->filled(slots[i]);
  }
  home_->link()->giveBack(chunk);
  return {};
}

/// Takes in what has come. Waits for what belongs to finished batches alone: nothing else keeps
/// their slots from being given up.
Status EmbeddingTable::absorb() {
  if (ahead_.empty()) return {};
  TP_TRY(home_->link()->poll());
  while (!ahead_.empty() && (!ahead_.front()->under_way || ahead_.front()->batch <= finished_)) {
    TP_TRY(settleOldest());
  }
  return {};
}

Status EmbeddingTable::awaitLoading(Slot slot) {
  while (cache_->loading(slot)) TP_TRY(settleOldest());
  return {};
}

/// Rows of a batch that have a slot stay until it is finished. Returns the positions of the others.
std::span<const uint32_t> EmbeddingTable::hold(std::span<const RowNumber> rows, BatchNumber batch) {
  std::vector<uint32_t>& absent = scratch().absent;
  std::vector<Slot>& slots = scratch().slots;
  absent.resize(rows.size() + 1);
  slots.resize(kPieceLookups);
  size_t count = 0;
  for (size_t from = 0; from < rows.size(); from += kPieceLookups) {
    const size_t size = std::min(kPieceLookups, rows.size() - from);
    cache_->map().findMany(rows.subspan(from, size), slots.data());
    for (size_t i = 0; i < size; ++i) {
      const Slot later = slots[std::min(i + kNeedAhead, size - 1)];
      cache_->prefetchNeed(later == kNoSlot ? 0 : later);
      absent[count] = static_cast<uint32_t>(from + i);
      count += slots[i] == kNoSlot ? 1 : 0;
      if (slots[i] != kNoSlot) cache_->needUntil(slots[i], batch);
    }
  }
  return std::span(absent).first(count);
}

/// Rows without a slot get one, and are asked for; all of them stay until the batch is finished.
Status EmbeddingTable::announce(std::span<const RowNumber> rows, BatchNumber batch) {
  RowLink& link = *home_->link();
  staged_->clear();  // what gets a slot now must not be written home from there
  // First those that are here: none of them may leave for the others.
  const std::span<const uint32_t> absent = hold(rows, batch);
  const size_t step = cache_->sampleStep();
  RowChunk* chunk = nullptr;
  for (size_t k = 0; k < absent.size(); ++k) {
    if (k + kPlaceAhead < absent.size()) cache_->prefetch(rows[absent[k + kPlaceAhead]]);
    const RowNumber row = rows[absent[k]];
    if (cache_->map().find(row) != kNoSlot) continue;  // it is in the batch twice
    const bool asked = absent[k] % step == batch % step;
    const auto slot = cache_->place(row, asked ? cache_->miss(row) : Admission::kRefuse);
    if (!slot) return tl::unexpected(slot.error());
    if (*slot == kNoSlot) {
      warnShort(cache_->count() + absent.size() - k);
      break;
    }
    cache_->needUntil(*slot, batch);
    cache_->markLoading(*slot);
    if (chunk == nullptr) {
      TP_TRY(makeRoomAhead());
      auto taken = link.take();
      if (!taken) return tl::unexpected(taken.error());
      chunk = *taken;
      chunk->batch = batch;
    }
    chunk->rows.push_back(row);
    chunk->slots.push_back(*slot);
    if (chunk->rows.size() < link.rowsPerChunk()) continue;
    TP_TRY(request(chunk));
    chunk = nullptr;
    TP_TRY(absorb());
  }
  if (chunk != nullptr) TP_TRY(request(chunk));
  TP_TRY(cache_->sendWriteBack());
  return link.send();
}

/// Takes in the oldest rows, if need be by waiting for them, until memory for others is free.
Status EmbeddingTable::makeRoomAhead() {
  while (ahead_.size() >= home_->link()->aheadChunks()) TP_TRY(settleOldest());
  return {};
}

Status EmbeddingTable::settleOldest() {
  TP_TRY(settle(ahead_.front()));
  ahead_.pop_front();
  return {};
}

/// No row that left for the chunk's is among them: those of the batch that were here stay, and what
/// left in earlier calls was on its way home when they ended.
Status EmbeddingTable::request(RowChunk* chunk) {
  TP_TRY(home_->link()->startRead(chunk));
  ahead_.push_back(chunk);
  counts_.prefetched += chunk->rows.size();
  return {};
}

void EmbeddingTable::warnShort(size_t wanted) {
  if (std::exchange(warned_short_, true)) return;
  const uint64_t rows = std::min<uint64_t>(wanted, options_.rows);
  logLine(
      "table %s: the batches announced and not yet finished (%llu) need some %llu rows in DRAM, "
      "and %u fit: the others are fetched when they are used; give the table %llu KiB, or "
      "announce fewer batches ahead",
      options_.name.c_str(), static_cast<unsigned long long>(announced_ - finished_),
      static_cast<unsigned long long>(rows), cache_->capacity(),
      static_cast<unsigned long long>(dramFor(rows).value() / kKiB + 1));
}

Result<BatchNumber> EmbeddingTable::prefetch(std::span<const int64_t> ids) {
  MutexLock lock(mutex_);
  return prefetchLocked(ids);
}

Result<BatchNumber> EmbeddingTable::prefetchLocked(std::span<const int64_t> ids) {
  const int64_t offsets[] = {0, static_cast<int64_t>(ids.size())};
  TP_TRY(checkArguments({ids, offsets}));
  TP_TRY(usable());
  const BatchNumber batch = announced_ + 1;
  if (batch - finished_ > kMostAnnounced) {
    return fail(ErrorCode::kNoSpace,
                "table %s: %llu batches are announced and not finished; finish some first",
                options_.name.c_str(), static_cast<unsigned long long>(kMostAnnounced));
  }
  auto rows = rowNumbers(ids);
  if (!rows) return tl::unexpected(rows.error());
  announced_ = batch;
  if (fetches()) {
    Status status = absorb();
    if (status) status = announce(*rows, batch);
    if (!status) return tl::unexpected(broken(status.error()).error());
  }
  return batch;
}

Status EmbeddingTable::prefetches(std::span<const PrefetchCall> calls, Workers& workers) {
  // Tables before workers, as in every call: else two callers could wait for one another.
  const Locks locks(calls);
  const auto tables = locks.tables();
  std::vector<Status> statuses(calls.size());
  workers.run(tables.size(), [&](size_t t, size_t) {
    for (size_t i = 0; i < calls.size(); ++i) {
      if (calls[i].table != tables[t]) continue;
      auto number = tables[t]->prefetchLocked(calls[i].ids);
      if (number) {
        *calls[i].number = *number;
      } else {
        statuses[i] = tl::unexpected(number.error());
      }
    }
  });
  for (const Status& status : statuses) TP_TRY(status);
  return {};
}

BatchNumber EmbeddingTable::announced() {
  MutexLock lock(mutex_);
  return announced_;
}

void EmbeddingTable::finished(BatchNumber batch) {
  MutexLock lock(mutex_);
  if (batch <= finished_ || batch > announced_) return;
  finished_ = batch;
  if (cache_) cache_->finished(batch);
}

}  // namespace tidepool
