// SPDX-License-Identifier: Apache-2.0
// EmbeddingTable: reading ahead. Requests for the rows of announced batches go out as soon as there
// is room for them, in the order of the batches; the answers wait in the connection until some call
// on the table takes them in. Rows of announced batches stay.
#include <algorithm>
#include <cstring>
#include <utility>

#include "allocator/table/table.h"
#include "allocator/table/table_locks.h"
#include "allocator/table/table_scratch.h"
#include "runtime/base/log.h"

namespace tidepool {

/// Takes in what has come, and lets go of what was needed by finished batches alone.
Status EmbeddingTable::absorb() {
  if (batches_.waiting().empty() && prefetched_->empty() && !refit_) return {};
  TP_TRY(backing_->link()->poll());
  batches_.dropFinished();
  TP_TRY(prefetched_->release(batches_.finished()));
  TP_TRY(withinLink());
  if (!refit_ || !prefetched_->empty()) return {};
  refit_ = false;
  return fitDram(dram_);
}

/// What went home beside rows that are staged still, or more of these than there is room for, may
/// have taken memory beyond the link's own: it is given back before the call ends.
Status EmbeddingTable::withinLink() {
  RowLink& link = *backing_->link();
  if (!link.beyond()) return {};
  staged_->clear();
  return link.withinMemory();
}

/// Rows of a batch that have a slot stay until it is finished. Returns how many have none: their
/// positions are in scratch().absent, the rows themselves in scratch().absent_rows.
size_t EmbeddingTable::hold(std::span<const RowNumber> rows, BatchNumber batch) {
  Scratch& buffers = scratch();
  std::vector<Slot>& slots = buffers.slots;
  slots.resize(rows.size());
  buffers.absent.resize(rows.size() + 1);
  buffers.absent_rows.resize(rows.size() + 1);
  cache_->map().findMany(rows, slots.data());
  cache_->needUntilNewest(slots, batch);
  size_t count = 0;
  for (size_t i = 0; i < rows.size(); ++i) {
    // Hit or miss is as good as random: no branch depends on it.
    buffers.absent[count] = static_cast<uint32_t>(i);
    buffers.absent_rows[count] = rows[i];
    count += slots[i] == kNoSlot ? 1 : 0;
  }
  return count;
}

/// Finds out where the next rows of the batch are, and asks for those that are absent. False if
/// there is no room for them.
Result<bool> EmbeddingTable::planPiece(AnnouncedBatch& batch) {
  const std::span<const RowNumber> rows = batch.unknown(kPieceLookups);
  const size_t absent = hold(rows, batch.number());
  Scratch& buffers = scratch();
  buffers.places.resize(absent);
  const auto wanted = prefetched_->want(std::span(buffers.absent_rows).first(absent),
                                        batch.number(), buffers.places.data());
  if (!wanted) return tl::unexpected(wanted.error());
  if (*wanted < absent) return false;
  for (size_t k = 0; k < absent; ++k) {
    const PrefetchBuffer::Place place = buffers.places[k];
    buffers.slots[buffers.absent[k]] = place == kNoSlot ? kNoSlot : placeAhead(place);
  }
  batch.know(buffers.slots, prefetched_->requests());
  return true;
}

/// Asks for rows of announced batches, as far as there is room.
Status EmbeddingTable::requestAhead() {
  if (refit_ || batches_.allKnown()) return {};
  // What is here only for this call would be here twice; what left is read after it was written.
  staged_->clear();
  TP_TRY(cache_->sendWriteBack());
  for (size_t b = 0; b < batches_.waiting().size();) {
    AnnouncedBatch& batch = batches_.waiting()[b];
    if (batch.used || batch.known() == batch.size()) {
      ++b;
      continue;
    }
    const auto planned = planPiece(batch);
    if (!planned) return tl::unexpected(planned.error());
    if (*planned) continue;
    // As long as slots are free, they are the room.
    auto moved = cache_->full() ? Result<bool>(false) : prefetched_->moveToFreeSlots();
    if (!moved) return tl::unexpected(moved.error());
    if (!*moved) {
      if (batch.number() == batches_.finished() + 1) warnShort(batch);
      break;
    }
    batches_.forgetPlaces();
    b = 0;
  }
  return prefetched_->send();
}

Status EmbeddingTable::writeAhead() {
  if (!prefetched_) return {};
  Status written = prefetched_->writeChanged();
  if (written) written = withinLink();
  return written ? written : broken(written.error());
}

Status EmbeddingTable::settleAhead() {
  TP_TRY(prefetched_->send());
  TP_TRY(prefetched_->await(prefetched_->requests()));
  batches_.dropAll();
  return prefetched_->release(batches_.newest());
}

/// The next batch to be used does not fit. What is not known of it yet is taken to be like the
/// piece that was looked at last.
void EmbeddingTable::warnShort(const AnnouncedBatch& batch) {
  if (std::exchange(warned_short_, true)) return;
  const uint64_t looked_at = scratch().slots.size(), absent = scratch().places.size();
  const uint64_t left = batch.size() - batch.known();
  const uint64_t wanted = prefetched_->count() + (left * absent + looked_at - 1) / looked_at;
  const uint64_t rows = std::min<uint64_t>(wanted, options_.rows);
  logLine(
      "table %s: the next of the batches announced needs some %llu rows beside those in slots, and "
      "%zu fit: the others are fetched when they are used; give the table %llu KiB, or make "
      "batches smaller",
      options_.name.c_str(), static_cast<unsigned long long>(rows), prefetched_->count(),
      static_cast<unsigned long long>(plan_.forAhead(rows).value() / kKiB + 1));
}

Result<BatchNumber> EmbeddingTable::prefetch(std::span<const int64_t> ids) {
  MutexLock lock(mutex_);
  return prefetchLocked(ids);
}

Result<BatchNumber> EmbeddingTable::prefetchLocked(std::span<const int64_t> ids) {
  const int64_t offsets[] = {0, static_cast<int64_t>(ids.size())};
  TP_TRY(checkArguments({ids, offsets}));
  TP_TRY(usable());
  if (!batches_.mayAnnounce()) {
    return fail(ErrorCode::kNoSpace,
                "table %s: %llu batches are announced and not finished; finish or drop some first",
                options_.name.c_str(), static_cast<unsigned long long>(AnnouncedBatches::kMost));
  }
  std::vector<uint32_t> without;
  auto rows = madeRows(ids_.forStep(ids, without));
  if (!rows) return tl::unexpected(rows.error());
  const BatchNumber batch = batches_.announce();
  if (fetches()) {
    if (!plan_.announces()) TP_TRY(makeRoomAhead());
    Status status = absorb();
    batches_.add(*rows);
    if (status) status = requestAhead();
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
  return batches_.newest();
}

/// What it was needed for goes home in a later call, which can say how that ended.
void EmbeddingTable::finished(BatchNumber batch) {
  MutexLock lock(mutex_);
  if (batches_.finish(batch) && cache_) cache_->finished(batch);
}

Status EmbeddingTable::stopPrefetch() {
  MutexLock lock(mutex_);
  TP_TRY(usable());
  batches_.finish(batches_.newest());
  if (cache_) cache_->finished(batches_.newest());
  if (!plan_.announces()) return {};
  plan_.setAnnounces(false);
  const Status settled = settleAhead();
  if (!settled) return broken(settled.error());
  refit_ = false;
  return fitDram(dram_);
}

}  // namespace tidepool
