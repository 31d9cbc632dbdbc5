// SPDX-License-Identifier: Apache-2.0
// TableRestore: rows go to their homes, and no row is in a slot meanwhile.
#include "allocator/table/table_restore.h"

#include <cstring>
#include <utility>

namespace tidepool {
Result<std::unique_ptr<TableRestore>> TableRestore::begin(EmbeddingTable& table)
    TP_NO_THREAD_SAFETY {
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
  if (table_.announced_ != table_.finished_) {
    return fail(ErrorCode::kConflict,
                "table %s: batches are announced and not finished; finish them before restoring",
                name);
  }
  if (table_.options_.ids == IdKind::kHashed && table_.ids_.count() > 0 && !table_.broken_) {
    return fail(ErrorCode::kConflict,
                "table %s has %zu rows already; restore into a table that was just made", name,
                table_.ids_.count());
  }
  // Rows that the checkpoint does not have stay as they are.
  if (table_.cache_ && !table_.broken_) {
    Status written = table_.ahead_ ? table_.settleAhead() : Status();
    if (written) written = table_.cache_->writeBackAll();
    if (!written) return table_.broken(written.error());
  }
  return {};
}

TableRestore::~TableRestore() {
  if (open_ != nullptr) table_.home_->link()->giveBack(open_);
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
  table_.batches_.clear();
  if (table_.ahead_) table_.ahead_->forget();
  if (table_.staged_) table_.staged_->clear();
  if (table_.cache_) {
    (void)table_.cache_->sendWriteBack();
    table_.cache_->forgetAll();
  }
  if (table_.options_.ids == IdKind::kHashed) table_.ids_.removeLast(table_.ids_.count());
}

Status TableRestore::put(RowNumber first, size_t count, const std::byte* bytes) {
  if (table_.fetches()) return putFar(first, count, bytes);
  const size_t stride = table_.format_.stride(), row_bytes = table_.format_.rowBytes();
  std::byte* to = table_.home_->memory() + first * stride;
  if (stride == row_bytes) {
    memcpy(to, bytes, count * stride);
    return {};
  }
  for (size_t i = 0; i < count; ++i, to += stride, bytes += row_bytes) {
    memcpy(to, bytes, row_bytes);
    memset(to + row_bytes, 0, stride - row_bytes);
  }
  return {};
}

/// Rows of many calls go in one request: a checkpoint of a far table has those that were in slots
/// apart from their neighbours, so that most calls bring a few rows only.
Status TableRestore::putFar(RowNumber first, size_t count, const std::byte* bytes) {
  const size_t stride = table_.format_.stride(), row_bytes = table_.format_.rowBytes();
  RowLink& link = *table_.home_->link();
  MutexLock lock(turn_);
  for (size_t i = 0; i < count; ++i, bytes += row_bytes) {
    if (open_ == nullptr) {
      auto chunk = link.take();
      if (!chunk) return tl::unexpected(chunk.error());
      open_ = *chunk;
    }
    std::byte* const to = open_->bytes + open_->rows.size() * stride;
    memcpy(to, bytes, row_bytes);
    memset(to + row_bytes, 0, stride - row_bytes);
    open_->rows.push_back(first + i);
    if (open_->rows.size() == link.rowsPerChunk()) TP_TRY(sendOpen());
  }
  return {};
}

Status TableRestore::sendOpen() {
  RowLink& link = *table_.home_->link();
  RowChunk* const chunk = std::exchange(open_, nullptr);
  TP_TRY(link.writeAndForget(chunk));  // waits when many are under way
  TP_TRY(link.send());
  return link.poll();
}

Status TableRestore::finishFar() {
  MutexLock lock(turn_);
  if (open_ != nullptr) TP_TRY(sendOpen());
  return table_.home_->link()->finishAll();
}

Status TableRestore::assignIds(std::span<const uint64_t> ids) {
  for (const uint64_t id : ids) {
    if (table_.ids_.find(id) != IdMap::kNone) {
      return fail(ErrorCode::kCorrupt, "table %s: id %llu has two rows in the checkpoint",
                  table_.options_.name.c_str(), static_cast<unsigned long long>(id));
    }
    (void)table_.ids_.insert(id);
  }
  return {};
}

Status TableRestore::finish(std::span<const uint64_t> ids, uint64_t step, CheckpointId base) {
  TP_TRY(assignIds(ids));
  if (table_.fetches()) TP_TRY(finishFar());
  TP_TRY(table_.makeRoomForChanges());
  TP_TRY(table_.changes_.restart(table_.options_.rows, base));
  table_.step_.step = step;
  TP_TRY(table_.intact());
  changing_ = false;
  return {};
}

}  // namespace tidepool
