// SPDX-License-Identifier: Apache-2.0
// TableRestore: rows go to their homes, and no row is in a slot meanwhile.
#include "allocator/table/table_restore.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace tidepool {
/// To where they lie a stride apart, with zeros between them.
void TableRestore::copyRows(std::byte* to, const std::byte* from, size_t count) const {
  const size_t stride = table_.format_.stride();
  if (stride == copied_bytes_ && stride == source_bytes_) {
    memcpy(to, from, count * stride);
    return;
  }
  for (size_t i = 0; i < count; ++i, to += stride, from += source_bytes_) {
    memcpy(to, from, copied_bytes_);
    memset(to + copied_bytes_, 0, stride - copied_bytes_);
  }
}

Result<std::unique_ptr<TableRestore>> TableRestore::begin(EmbeddingTable& table) TP_LOCKS_BY_HAND {
  table.restoring_.store(true, std::memory_order_relaxed);
  table.mutex_.lock();
  std::unique_ptr<TableRestore> restore(new TableRestore(table));  // which unlocks
  TP_TRY(restore->prepare());
  return restore;
}

Status TableRestore::prepare() {
  const char* const name = table_.options_.name.c_str();
  TP_TRY(table_.intact());  // nothing can be put where the rows were
  if (table_.changes_.saving()) {
    return fail(ErrorCode::kConflict,
                "table %s: a checkpoint of it is under way; wait for it, or cancel it", name);
  }
  if (table_.batches_.newest() != table_.batches_.finished()) {
    return fail(ErrorCode::kConflict,
                "table %s: batches are announced and not finished; finish or drop them before "
                "restoring",
                name);
  }
  if (table_.ids_.hashed() && table_.ids_.count() > 0 && !table_.broken_) {
    return fail(ErrorCode::kConflict,
                "table %s has %zu rows already; restore into a table that was just made", name,
                size_t{table_.ids_.count()});
  }
  // Rows that the checkpoint does not have stay as they are.
  if (table_.cache_ && !table_.broken_) {
    Status written = table_.prefetched_ ? table_.settleAhead() : Status();
    if (written) written = table_.cache_->writeBackAll();
    if (!written) return table_.broken(written.error());
  }
  return {};
}

TableRestore::~TableRestore() {
  for (RowChunk* const chunk : open_) table_.backing_->link()->giveBack(chunk);
  if (changing_ && !table_.broken_) {
    (void)table_.broken(
        Error::make(ErrorCode::kCorrupt, "restoring it was broken off; restore a checkpoint"));
  }
  table_.mutex_.unlock();
  table_.restoring_.store(false, std::memory_order_relaxed);
}

void TableRestore::start() {
  changing_ = true;
  table_.broken_.reset();
  // Of a table that was given up, reads may be under way, and rows that left not yet written: they
  // are written before those of the checkpoint. A link that failed says so at the first put().
  table_.batches_.dropAll();
  if (table_.prefetched_) table_.prefetched_->forget();
  if (table_.staged_) table_.staged_->clear();
  if (table_.cache_) {
    (void)table_.cache_->sendWriteBack();
    table_.cache_->forgetAll();
  }
  table_.ids_.clear();
}

Status TableRestore::put(RowNumber first, size_t count, const std::byte* bytes) {
  if (table_.fetches()) return putFar(first, count, bytes);
  copyRows(table_.backing_->memory() + first * table_.format_.stride(), bytes, count);
  return {};
}

/// Rows of many calls go in one request: a checkpoint of a far table has those that were in slots
/// apart from their neighbours, so that most calls bring a few rows only. Each thread fills a chunk
/// while another one's is sent.
Status TableRestore::putFar(RowNumber first, size_t count, const std::byte* bytes) {
  const size_t most = table_.backing_->link()->rowsPerChunk();
  while (count > 0) {
    auto open = openChunk();
    if (!open) return tl::unexpected(open.error());
    RowChunk* const chunk = *open;
    const size_t fit = std::min(count, most - chunk->rows.size());
    fill(*chunk, first, fit, bytes);
    first += fit;
    count -= fit;
    bytes += fit * source_bytes_;
    if (chunk->rows.size() == most) {
      TP_TRY(sendChunk(chunk));
      continue;
    }
    MutexLock lock(mutex_);
    open_.push_back(chunk);
  }
  return {};
}

/// One with room for a row, the caller's alone.
Result<RowChunk*> TableRestore::openChunk() {
  {
    MutexLock lock(mutex_);
    if (!open_.empty()) {
      RowChunk* const chunk = open_.back();
      open_.pop_back();
      return chunk;
    }
  }
  MutexLock lock(turn_);
  return table_.backing_->link()->take();
}

void TableRestore::fill(RowChunk& chunk, RowNumber first, size_t count,
                        const std::byte* bytes) const {
  copyRows(chunk.bytes + chunk.rows.size() * table_.format_.stride(), bytes, count);
  for (size_t i = 0; i < count; ++i) chunk.rows.push_back(first + i);
}

Status TableRestore::sendChunk(RowChunk* chunk) {
  MutexLock lock(turn_);
  RowLink& link = *table_.backing_->link();
  TP_TRY(link.writeAndForget(chunk));  // waits when many are under way
  TP_TRY(link.send());
  return link.poll();
}

Status TableRestore::settle() {
  std::vector<RowChunk*> open;
  {
    MutexLock lock(mutex_);
    open.swap(open_);
  }
  for (RowChunk* const chunk : open) TP_TRY(sendChunk(chunk));
  return {};
}

Status TableRestore::finishFar() {
  TP_TRY(settle());
  MutexLock lock(turn_);
  return table_.backing_->link()->finishAll();
}

Status TableRestore::finish(const Ids& ids, uint64_t step, CheckpointId base) {
  TP_TRY(table_.ids_.assign(ids));
  if (table_.fetches()) TP_TRY(finishFar());
  TP_TRY(table_.makeRoomForChanges());
  TP_TRY(table_.changes_.restart(table_.options_.rows, base));
  table_.step_.setNumber(step);
  TP_TRY(table_.intact());
  changing_ = false;
  return {};
}

}  // namespace tidepool
