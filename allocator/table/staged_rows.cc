// SPDX-License-Identifier: Apache-2.0
// StagedRows: a small hash map over chunks.
#include "allocator/table/staged_rows.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "runtime/base/check.h"

namespace tidepool {
namespace {

constexpr size_t kFirstEntries = 1024;

}  // namespace

/// The entry of the row, or the empty one where it belongs.
size_t StagedRows::search(RowNumber row) const {
  const size_t mask = entries_.size() - 1;
  size_t at = firstEntry(row);
  while (entries_[at].address != nullptr && entries_[at].row != row) at = (at + 1) & mask;
  return at;
}

void StagedRows::grow() {
  std::vector<Entry> old =
      std::exchange(entries_, std::vector<Entry>(std::max(kFirstEntries, entries_.size() * 2)));
  for (const Entry& entry : old) {
    if (entry.address != nullptr && entry.row != kDropped) entries_[search(entry.row)] = entry;
  }
}

Result<std::byte*> StagedRows::add(RowNumber row) {
  if (count_ * 2 >= entries_.size()) grow();
  Entry& entry = entries_[search(row)];
  if (entry.address != nullptr) return entry.address;
  if (!last_is_open_) {
    auto chunk = link_.take();
    if (!chunk) return tl::unexpected(chunk.error());
    chunks_.push_back(*chunk);
    last_is_open_ = true;
  }
  RowChunk* const chunk = chunks_.back();
  TP_CHECK_OP(chunk->rows.size(), <, link_.rowsPerChunk());
  entry = {row, chunk->bytes + chunk->rows.size() * stride_};
  chunk->rows.push_back(row);
  ++count_;
  if (chunk->rows.size() == link_.rowsPerChunk()) {
    last_is_open_ = false;
    std::byte* const address = entry.address;
    TP_TRY(startRead(chunk));
    return address;
  }
  return entry.address;
}

std::byte* StagedRows::find(RowNumber row) const { return entries_[search(row)].address; }

/// Rows of a chunk stay side by side: its last one moves to where the dropped one was.
void StagedRows::drop(RowNumber row) {
  Entry& entry = entries_[search(row)];
  TP_CHECK(entry.address != nullptr);
  const auto holds = [&](const RowChunk* chunk) {
    return entry.address >= chunk->bytes &&
           entry.address < chunk->bytes + chunk->rows.size() * stride_;
  };
  const auto found = std::find_if(chunks_.begin(), chunks_.end(), holds);
  TP_CHECK(found != chunks_.end());
  RowChunk* const chunk = *found;
  TP_CHECK(!chunk->under_way);
  const size_t last = chunk->rows.size() - 1;
  std::byte* const from = chunk->bytes + last * stride_;
  if (from != entry.address) {
    memcpy(entry.address, from, stride_);
    entries_[search(chunk->rows[last])].address = entry.address;
    chunk->rows[static_cast<size_t>(entry.address - chunk->bytes) / stride_] = chunk->rows[last];
  }
  chunk->rows.pop_back();
  entry.row = kDropped;
}

Status StagedRows::send() {
  if (chunks_.empty()) return {};
  if (std::exchange(last_is_open_, false)) TP_TRY(startRead(chunks_.back()));
  return link_.send();
}

Status StagedRows::finish(size_t chunks) {
  TP_CHECK_OP(chunks, <=, chunks_.size());
  for (size_t i = 0; i < chunks; ++i) TP_TRY(link_.finish(chunks_[i]));
  return {};
}

Status StagedRows::writeBack() {
  Status status;
  for (RowChunk* chunk : chunks_) {
    const bool any = !chunk->rows.empty();
    if (status && any) status = link_.writeAndForget(chunk);
    if (!status || !any) link_.giveBack(chunk);
  }
  chunks_.clear();
  clear();
  return status ? link_.send() : status;
}

void StagedRows::clear() {
  for (RowChunk* chunk : chunks_) {
    if (chunk->under_way) (void)link_.finish(chunk);
    link_.giveBack(chunk);
  }
  chunks_.clear();
  last_is_open_ = false;
  reads_ = true;
  // Small again after a call that needed much: it is filled anew each time.
  if (count_ > 0) {
    const size_t size = entries_.size();
    entries_.assign(count_ * 4 <= size && size > kFirstEntries ? size / 2 : size, Entry{});
  }
  count_ = 0;
}

}  // namespace tidepool
