// SPDX-License-Identifier: Apache-2.0
// TableSnapshot. Why far rows may be read without the lock: a row that nobody has changed since the
// boundary and that is in no slot has its bytes at home once the writes begun before are over, and
// a later change saves it first, which is looked up again before what was read is kept.
#include "allocator/table/table_snapshot.h"

#include <time.h>

#include <algorithm>
#include <cstring>

#include "allocator/table/table_locks.h"
#include "runtime/base/check.h"

namespace tidepool {
namespace {

// How much is copied under one hold of the lock: about a millisecond.
constexpr size_t kBlocksInPlace = 4;
constexpr Nanoseconds kPollInterval(50'000);

}  // namespace

/// The table's lock, taken before those who wait for it later.
class TP_SCOPED_CAPABILITY TableSnapshot::Hold {
 public:
  explicit Hold(EmbeddingTable& table) TP_ACQUIRE(table.mutex_) TP_LOCKS_BY_HAND : table_(table) {
    table.lockFirst();
  }
  ~Hold() TP_RELEASE() TP_LOCKS_BY_HAND { table_.mutex_.unlock(); }
  Hold(const Hold&) = delete;
  Hold& operator=(const Hold&) = delete;

 private:
  EmbeddingTable& table_;
};

/// Puts rows into blocks one after the other.
class TableSnapshot::Filler {
 public:
  Filler(TableSnapshot& snapshot, std::span<RowBlock* const> blocks)
      : changes_(snapshot.table_.changes_),
        ids_(snapshot.table_.ids_.byRow()),
        uses_(snapshot.table_.ids_.uses()),
        row_bytes_(snapshot.table_.format_.rowBytes()),
        block_rows_(blocks.front()->pool->rowsPerBlock(row_bytes_)),
        blocks_(blocks) {
    for (RowBlock* block : blocks) block->table = snapshot.index_;
  }
  size_t blockRows() const { return block_rows_; }
  void add(RowNumber row, const std::byte* bytes) {
    if (blocks_[at_]->rows.size() == block_rows_) ++at_;
    RowBlock& block = *blocks_[at_];
    block.add(row, bytes, row_bytes_, ids_, uses_);
    changes_.saved(row);
  }

 private:
  RowChanges& changes_;
  const uint64_t* const ids_;  // these two by row; null for none
  const RowUses* const uses_;
  const size_t row_bytes_, block_rows_;
  std::span<RowBlock* const> blocks_;
  size_t at_ = 0;
};

Status TableSnapshot::check(SavedRows which, CheckpointId base) const {
  TP_TRY(table_.usable());
  const char* const name = options().name.c_str();
  if (table_.changes_.saving()) {
    return fail(ErrorCode::kConflict,
                "table %s: another checkpoint of it is under way; wait for that one first", name);
  }
  if (which == SavedRows::kChanged && (base == 0 || table_.changes_.base() != base)) {
    return fail(ErrorCode::kConflict,
                "table %s: the newest checkpoint in the directory is not the one that its changes "
                "count from; make a full checkpoint",
                name);
  }
  return {};
}

Result<std::vector<std::unique_ptr<TableSnapshot>>> TableSnapshot::begin(
    std::span<EmbeddingTable* const> tables, SavedRows which, CheckpointId base, RowBlockPool& pool,
    RowBlockQueue& queue) TP_LOCKS_MANY {
  struct Call {
    EmbeddingTable* table;
  };
  std::vector<Call> calls;
  std::vector<std::unique_ptr<TableSnapshot>> snapshots;
  std::vector<RowChanges::Prepared> prepared;
  for (size_t i = 0; i < tables.size(); ++i) {
    calls.push_back({tables[i]});
    snapshots.emplace_back(new TableSnapshot(*tables[i], i));
    auto bits = RowChanges::prepare(tables[i]->options_.rows);
    if (!bits) return tl::unexpected(bits.error());
    prepared.push_back(std::move(*bits));
  }
  EmbeddingTable::Locks locks{std::span<const Call>(calls)};
  TP_CHECK_OP(locks.tables().size(), ==, tables.size());
  for (const auto& snapshot : snapshots) TP_TRY(snapshot->check(which, base));
  for (EmbeddingTable* table : tables) {
    TP_TRY(table->makeRoomForChanges());
    TP_TRY(table->writeAhead());
  }
  for (size_t i = 0; i < tables.size(); ++i) {
    snapshots[i]->start(std::move(prepared[i]), which, pool, queue);
  }
  return snapshots;
}

void TableSnapshot::start(RowChanges::Prepared prepared, SavedRows which, RowBlockPool& pool,
                          RowBlockQueue& queue) {
  rows_ = table_.ids_.end();
  live_ = table_.ids_.count();
  step_ = table_.step_.number();
  table_.changes_.begin(std::move(prepared), which, rows_, table_.format_.rowBytes(),
                        workersOf(table_),
                        {&pool, &queue, index_, table_.ids_.byRow(), table_.ids_.uses()},
                        live_ < rows_ ? table_.ids_.freeWords() : std::span<const uint64_t>());
  open_ = true;
}

TableSnapshot::~TableSnapshot() {
  if (open_) abandon();
}

Result<bool> TableSnapshot::next(std::span<RowBlock* const> blocks) {
  TP_CHECK_OP(blocks.size(), ==, kBlocks);
  return table_.fetches() ? nextFetched(blocks) : nextInPlace(blocks.first(kBlocksInPlace));
}

Result<bool> TableSnapshot::nextInPlace(std::span<RowBlock* const> blocks) {
  Filler filler(*this, blocks);
  wanted_.clear();
  Hold hold(table_);
  TP_TRY(table_.usable());
  cursor_ = table_.changes_.pending(cursor_, blocks.size() * filler.blockRows(), wanted_);
  const std::byte* const base = table_.backing_->memory();
  if (table_.cache_) {
    slots_.resize(wanted_.size());
    table_.cache_->map().findMany(wanted_, slots_.data());
  }
  for (size_t i = 0; i < wanted_.size(); ++i) {
    const bool near = table_.cache_ && slots_[i] != kNoSlot;
    filler.add(wanted_[i],
               near ? table_.cache_->row(slots_[i]) : base + wanted_[i] * table_.format_.stride());
  }
  TP_TRY(table_.intact());
  return cursor_ < rows_;
}

/// Rows in slots are copied; the others are noted in far_, and in `begun` the writes after which
/// their homes have them.
Status TableSnapshot::copySlots(Filler& filler, uint64_t& begun, size_t most) {
  wanted_.clear();
  far_.clear();
  Hold hold(table_);
  TP_TRY(table_.usable());
  cursor_ = table_.changes_.pending(cursor_, most, wanted_);
  RowCache& cache = *table_.cache_;
  const Status sent = cache.sendWriteBack();
  if (!sent) return table_.broken(sent.error());
  begun = table_.backing_->link()->begun();
  slots_.resize(wanted_.size());
  cache.map().findMany(wanted_, slots_.data());
  for (size_t i = 0; i < wanted_.size(); ++i) {
    // Rows read ahead are as their homes are, or were saved before they changed.
    if (slots_[i] == kNoSlot) {
      far_.push_back(wanted_[i]);
    } else {
      filler.add(wanted_[i], cache.row(slots_[i]));
    }
  }
  return {};
}

Status TableSnapshot::awaitWrites(uint64_t begun) {
  for (;;) {
    {
      Hold hold(table_);
      TP_TRY(table_.usable());
      RowLink& link = *table_.backing_->link();
      const Status polled = link.poll();
      if (!polled) return table_.broken(polled.error());
      if (link.over(begun)) return {};
    }
    const timespec interval{0, static_cast<long>(kPollInterval.value())};
    nanosleep(&interval, nullptr);
  }
}

Status TableSnapshot::readFar(Filler& filler) {
  if (!link_) {
    auto link = table_.backing_->openLink();
    if (!link) return tl::unexpected(link.error());
    link_ = std::move(*link);
  }
  std::vector<RowChunk*> chunks;
  Status status;
  for (size_t first = 0; status && first < far_.size();) {
    auto chunk = link_->take();
    if (!chunk) {
      status = tl::unexpected(chunk.error());
      break;
    }
    const size_t count = std::min(link_->rowsPerChunk(), far_.size() - first);
    (*chunk)->rows.assign(far_.begin() + static_cast<ptrdiff_t>(first),
                          far_.begin() + static_cast<ptrdiff_t>(first + count));
    status = link_->startRead(*chunk);
    if (status) status = link_->send();
    chunks.push_back(*chunk);
    first += count;
  }
  for (const RowChunk* chunk : chunks) {
    if (status) status = link_->finish(chunk);
  }
  if (status) status = keepRead(chunks, filler);
  if (!status) return status;  // the link is of no use any more, and its chunks go with it
  for (RowChunk* chunk : chunks) link_->giveBack(chunk);
  return {};
}

Status TableSnapshot::keepRead(const std::vector<RowChunk*>& chunks, Filler& filler) {
  const size_t stride = table_.format_.stride();
  Hold hold(table_);
  TP_TRY(table_.usable());
  for (const RowChunk* chunk : chunks) {
    for (size_t i = 0; i < chunk->rows.size(); ++i) {
      if (!table_.changes_.isPending(chunk->rows[i])) continue;  // it changed, and was copied
      filler.add(chunk->rows[i], chunk->bytes + i * stride);
    }
  }
  return {};
}

Result<bool> TableSnapshot::nextFetched(std::span<RowBlock* const> blocks) {
  Filler filler(*this, blocks);
  uint64_t begun = 0;
  TP_TRY(copySlots(filler, begun, blocks.size() * filler.blockRows()));
  if (!far_.empty()) {
    TP_TRY(awaitWrites(begun));
    TP_TRY(readFar(filler));
  }
  return cursor_ < rows_;
}

bool TableSnapshot::nextRemoved(RowBlock& block) {
  block.table = index_;
  block.removed = true;
  const size_t most = block.pool->rowsPerBlock(sizeof(RowNumber));
  removed_cursor_ = table_.changes_.removed(removed_cursor_, most, block.rows);
  return removed_cursor_ < rows_;
}

void TableSnapshot::finishCopies() {
  Hold hold(table_);
  table_.changes_.finishCopies();
}

void TableSnapshot::commit(CheckpointId id) {
  Hold hold(table_);
  table_.changes_.commit(id);
  open_ = false;
}

void TableSnapshot::abandon() {
  Hold hold(table_);
  table_.changes_.abandon();
  open_ = false;
}

}  // namespace tidepool
