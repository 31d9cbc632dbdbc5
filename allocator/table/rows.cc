// SPDX-License-Identifier: Apache-2.0
// EmbeddingTable: reading and writing rows one by one, in the order of their ids.
#include <algorithm>
#include <cstring>
#include <iterator>

#include "allocator/table/shared_budget.h"
#include "allocator/table/table.h"
#include "allocator/table/table_locks.h"
#include "allocator/table/table_scratch.h"
#include "allocator/table/visit_rows.h"

namespace tidepool {

/// Calls act(i, row's memory) for every row; where `after` says so it overwrites them whole.
template <typename Act>
Status EmbeddingTable::withRows(std::span<const RowNumber> rows, After after, Act act) {
  constexpr size_t kPiece = 4096;
  std::vector<std::byte*>& addresses = scratch().addresses;
  TP_TRY(usable());
  if (fetches()) {
    staged_->clear();
    const Status absorbed = absorb();
    if (!absorbed) return broken(absorbed.error());
  }
  const size_t most = fetches() ? std::min(kPiece, staged_->mostRows()) : kPiece;
  for (size_t from = 0; from < rows.size(); from += most) {
    const auto piece = rows.subspan(from, std::min(most, rows.size() - from));
    addresses.resize(piece.size());
    if (fetches()) {
      // A checkpoint that is being taken wants them as they were.
      if (after == After::kChanged && !changes_.saving()) staged_->overwrite();
      const Status found = addressOrFetch(piece, addresses.data());
      const Status come = found ? staged_->finish() : found;
      if (!come) return broken(come.error());
    } else {
      addressInPlace(piece, addresses.data(), missed_[0]);
    }
    for (size_t i = 0; i < piece.size(); ++i) {
      if (after == After::kChanged) noteChange(piece[i], addresses[i], 0);
      act(from + i, addresses[i]);
      if (after == After::kChanged && cache_) markChanged(scratch().slots[i]);
    }
    missed_[0].clear();  // reading a table through does not make its rows hot
    if (!fetches()) continue;
    if (after == After::kChanged) {
      Status written = staged_->writeBack();
      if (written) written = backing_->link()->withinMemory();
      if (!written) return broken(written.error());
    }
    staged_->clear();
  }
  return intact();
}

/// A checkpoint that is being taken gets these rows as they are now.
Status EmbeddingTable::keepForCheckpoint(std::span<const RowNumber> rows) {
  if (!changes_.saving()) return {};
  std::vector<RowNumber> wanted;
  std::copy_if(rows.begin(), rows.end(), std::back_inserter(wanted),
               [this](RowNumber row) { return changes_.isPending(row); });
  return withRows(wanted, After::kUnchanged, [&](size_t i, const std::byte* row) {
    changes_.beforeChange(wanted[i], row, 0);
  });
}

Status EmbeddingTable::readRows(std::span<const int64_t> ids, float* out) {
  const int64_t offsets[] = {0, static_cast<int64_t>(ids.size())};
  TP_TRY(checkArguments({ids, offsets}));
  MutexLock lock(mutex_);
  std::vector<RowNumber> rows;
  TP_TRY(ids_.existing(ids, rows));
  return withRows(rows, After::kUnchanged,
                  [&](size_t i, const std::byte* row) { decodeRow(row, out + i * format_.dim); });
}

Status EmbeddingTable::writeRows(std::span<const int64_t> ids, const float* in) {
  const int64_t offsets[] = {0, static_cast<int64_t>(ids.size())};
  TP_TRY(checkArguments({ids, offsets}));
  MutexLock lock(mutex_);
  auto rows = madeRows(ids_.forWriting(ids));
  if (!rows) return tl::unexpected(rows.error());
  return withRows(*rows, After::kChanged,
                  [&](size_t i, std::byte* row) { overwriteRow(in + i * format_.dim, row); });
}

void EmbeddingTable::overwriteRow(const float* in, std::byte* row) const {
  kernels_.encode(format_, in, row);
  memset(row + format_.stateOffset(), 0, format_.stride() - format_.stateOffset());
}

template <typename Act>
Status EmbeddingTable::visit(std::span<const RowNumber> rows, After after, Act act) {
  TP_TRY(usable());
  counts_.lookups += rows.size();
  if (fetches()) {
    const Status visited = visitFetched(rows, after, act);
    if (!visited) return broken(visited.error());
  } else {
    visitInPlace(rows, after, 0, act);
    if (cache_) admitMissed(after);
  }
  tellCounts();
  return intact();
}

Status EmbeddingTable::gatherRows(std::span<const int64_t> ids, float* out) {
  const int64_t offsets[] = {0, static_cast<int64_t>(ids.size())};
  TP_TRY(checkArguments({ids, offsets}));
  {
    MutexLock lock(mutex_);
    std::vector<RowNumber> rows;
    TP_TRY(ids_.existing(ids, rows));
    TP_TRY(visit(rows, After::kUnchanged,
                 [&](size_t i, const std::byte* row) { decodeRow(row, out + i * format_.dim); }));
  }
  if (shared_ != nullptr) {
    if (curve_) curve_->observe(ids);
    shared_->onLookups(ids.size());  // without the lock
  }
  return {};
}

Status EmbeddingTable::scatterRows(std::span<const int64_t> ids, const float* in) {
  const int64_t offsets[] = {0, static_cast<int64_t>(ids.size())};
  TP_TRY(checkArguments({ids, offsets}));
  MutexLock lock(mutex_);
  const auto rows = madeRows(ids_.forWriting(ids));
  if (!rows) return tl::unexpected(rows.error());
  return visit(*rows, After::kChanged,
               [&](size_t i, std::byte* row) { overwriteRow(in + i * format_.dim, row); });
}

Status EmbeddingTable::startPublishing() {
  MutexLock lock(mutex_);
  if (changes_.publishes()) {
    return fail(ErrorCode::kConflict,
                "table %s is published to another path already: end that first, or publish there",
                options_.name.c_str());
  }
  return changes_.startPublishing(options_.rows);
}

void EmbeddingTable::stopPublishing() {
  MutexLock lock(mutex_);
  changes_.stopPublishing();
}

Status EmbeddingTable::handOver(size_t index, RowSink& sink) {
  constexpr size_t kPiece = 4096;
  TP_TRY(usable());
  // These are no look-ups.
  const uint64_t hits = hits_.load(std::memory_order_relaxed);
  const uint64_t in_place = in_place_.load(std::memory_order_relaxed);
  std::vector<RowNumber> rows;
  for (RowNumber from = 0; from < options_.rows;) {
    rows.clear();
    from = changes_.unpublished(options_.rows, from, kPiece, rows);
    size_t live = 0;
    for (const RowNumber row : rows) {
      if (ids_.live(row)) {
        rows[live++] = row;
      } else {
        TP_TRY(sink.drop(index, row));
      }
    }
    rows.resize(live);
    Status taken;
    TP_TRY(
        withRows(rows, After::kUnchanged, [&](size_t i, const std::byte* bytes) TP_LOCKS_OF_CALLER {
          if (taken) taken = sink.take(index, rows[i], ids_.id(rows[i]), bytes);
        }));
    hits_.store(hits, std::memory_order_relaxed);
    in_place_.store(in_place, std::memory_order_relaxed);
    TP_TRY(taken);
  }
  return {};
}

Status EmbeddingTable::takeUnpublished(std::span<EmbeddingTable* const> tables, RowSink& sink) {
  struct Call {
    EmbeddingTable* table;
  };
  std::vector<Call> calls;
  for (EmbeddingTable* table : tables) calls.push_back({table});
  const Locks locks(std::span<const Call>(calls), Locks::Turn::kFirst);
  for (size_t i = 0; i < tables.size(); ++i) TP_TRY(tables[i]->handOver(i, sink));
  sink.complete();
  for (EmbeddingTable* table : tables) table->changes_.published();
  return {};
}

}  // namespace tidepool
