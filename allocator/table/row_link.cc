// SPDX-License-Identifier: Apache-2.0
// RowLink: chunks are submitted in order; completions may come in any order.
#include "allocator/table/row_link.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "runtime/base/check.h"
#include "runtime/base/debug_check.h"

namespace tidepool {
namespace {

// One request and its answer: large enough that what a request costs by itself (some 10 us at both
// ends) is small beside its rows, small enough to stay in the second-level cache.
constexpr uint64_t kChunkBytes = 128 * kKiB;
// Of rows so long that a chunk would hold few of them.
constexpr size_t kManyRows = 16;
// Memory that is too little for chunks of that size makes so many of a smaller one.
constexpr size_t kChunks = 24;
// More writes wait: beyond some requests under way the wire is no faster, and each holds a chunk.
constexpr size_t kMostWrites = 16;

}  // namespace

RowLink::RowLink(std::unique_ptr<RowChannel> channel, Bytes stride)
    : channel_(std::move(channel)), stride_(stride) {}

/// Chunks are borrowed by the channel until it is gone.
RowLink::~RowLink() { channel_.reset(); }

Status RowLink::setMemory(Bytes size) {
  TP_TRY(verdict());
  TP_CHECK(started_.empty());
  TP_CHECK_OP(free_.size(), ==, chunks_.size());
  const uint64_t full = std::clamp<uint64_t>(kChunkBytes / stride_.value(), kManyRows, kMostRows);
  const uint64_t rows = std::clamp<uint64_t>(size / (stride_ * kChunks), kLeastRows, full);
  const size_t rows_per_chunk = std::min<size_t>(rows, channel_->mostRows());
  const size_t chunks = std::max<size_t>(size / (stride_ * rows_per_chunk), kLeastChunks);
  const Bytes needed = stride_ * (chunks * rows_per_chunk);
  auto memory = HugeMemory::allocate(needed);
  if (!memory) return tl::unexpected(memory.error());
  free_.clear();
  chunks_.clear();
  memory_ = std::move(*memory);
  rows_per_chunk_ = rows_per_chunk;
  own_chunks_ = chunks;
  own_memory_ = needed;
  beyond_ = Bytes();
  return {};
}

size_t RowLink::mostWrites() const {
  return std::min(kMostWrites, std::max<size_t>(own_chunks_ / 6, 1));
}

Result<RowChunk*> RowLink::take() {
  if (free_.empty()) {
    auto chunk = std::make_unique<RowChunk>();
    if (chunks_.size() < own_chunks_) {
      chunk->bytes = memory_.data() + (chunkBytes() * chunks_.size()).value();
    } else {
      auto memory = Mapping::anonymous(Bytes(roundUp(chunkBytes().value(), kPageSize)));
      if (!memory) return tl::unexpected(memory.error());
      chunk->bytes = memory->data();
      beyond_ += memory->size();
      chunk->memory_ = std::move(*memory);
    }
    free_.push_back(chunk.get());
    chunks_.push_back(std::move(chunk));
  }
  RowChunk* const chunk = free_.back();
  free_.pop_back();
  chunk->rows.clear();
  chunk->needs.clear();
  chunk->unwritten.clear();
  return chunk;
}

Result<RowChunk*> RowLink::takeAhead() {
  auto chunk = take();
  if (!chunk) return chunk;
  (*chunk)->ahead_ = true;
  ++ahead_;
  return chunk;
}

void RowLink::giveBack(RowChunk* chunk) {
  TP_CHECK(!chunk->under_way);
  if (std::exchange(chunk->ahead_, false)) {
    TP_CHECK_OP(ahead_, >, 0u);
    --ahead_;
  }
  TP_DCHECK(std::find(free_.begin(), free_.end(), chunk) == free_.end());
  if (!chunk->memory_.valid()) return free_.push_back(chunk);
  beyond_ -= chunk->memory_.size();
  std::erase_if(chunks_, [chunk](const auto& one) { return one.get() == chunk; });
}

Status RowLink::verdict() const {
  if (failure_ == ErrorCode{}) return {};
  return fail(failure_,
              "rows in far memory cannot be reached any more: %s; make the table anew from "
              "its last checkpoint",
              channel_->reason());
}

/// What is unwritten is decided once, here: writes that are started later are not seen by this
/// read, whether it asks for a row or not.
Status RowLink::read(RowChunk* chunk) {
  if (unwritten_ == nullptr || !unwritten_->any()) {
    return start(chunk, chunk->rows, Direction::kRead);
  }
  TP_TRY(verdict());
  asked_.clear();
  for (size_t i = 0; i < chunk->rows.size(); ++i) {
    if (unwritten_->has(chunk->rows[i])) {
      chunk->unwritten.push_back(static_cast<uint32_t>(i));
    } else {
      asked_.push_back(chunk->rows[i]);
    }
  }
  made_ += chunk->unwritten.size();
  if (!asked_.empty()) return start(chunk, asked_, Direction::kRead);
  makeUnwritten(chunk);
  return {};
}

/// Rows that were asked for lie one after the other: each goes to its place, the last one first.
void RowLink::makeUnwritten(RowChunk* chunk) {
  const size_t stride = stride_.value();
  size_t left = chunk->unwritten.size();
  for (size_t at = chunk->rows.size(); left > 0;) {
    std::byte* const to = chunk->bytes + --at * stride;
    TP_DCHECK(left == 1 || chunk->unwritten[left - 2] < chunk->unwritten[left - 1]);
    if (chunk->unwritten[left - 1] == at) {
      unwritten_->make(chunk->rows[at], to);
      --left;
    } else {
      memcpy(to, to - left * stride, stride);
    }
  }
  chunk->unwritten.clear();
}

Status RowLink::submit(RowChunk* chunk, std::span<const RowNumber> rows, Direction direction) {
  const uint64_t tag = first_tag_ + started_.size();
  return direction == Direction::kRead ? channel_->submitRead(tag, rows, chunk->bytes)
                                       : channel_->submitWrite(tag, rows, chunk->bytes);
}

Status RowLink::start(RowChunk* chunk, std::span<const RowNumber> rows, Direction direction,
                      After after) {
  TP_TRY(verdict());
  TP_CHECK(!chunk->under_way && !rows.empty());
  TP_CHECK_OP(rows.size(), <=, rows_per_chunk_);  // the room of a chunk
  Status submitted = submit(chunk, rows, direction);
  while (!submitted && submitted.error().code() == ErrorCode::kNoSpace) {
    TP_TRY(waitForOne());
    submitted = submit(chunk, rows, direction);
  }
  if (!submitted) return submitted;
  chunk->under_way = true;
  started_.push_back({chunk, direction, after});
  return {};
}

Status RowLink::writeAndForget(RowChunk* chunk) {
  while (writes_under_way_ >= mostWrites()) TP_TRY(waitForOne());
  // Before the request is on its way: a read that starts from now on may meet what it brings.
  if (unwritten_ != nullptr) unwritten_->written(chunk->rows);
  TP_TRY(start(chunk, chunk->rows, Direction::kWrite, After::kGiveBack));
  ++writes_under_way_;
  return {};
}

Status RowLink::send() {
  TP_TRY(verdict());
  return channel_->flush();
}

void RowLink::complete(const FetchCompletion& completion) {
  TP_CHECK_OP(completion.tag - first_tag_, <, started_.size());
  Started& started = started_[completion.tag - first_tag_];
  TP_CHECK(started.chunk != nullptr);
  started.chunk->under_way = false;
  if (!completion.ok() && failure_ == ErrorCode{}) failure_ = completion.error;
  if (completion.ok() && !started.chunk->unwritten.empty()) makeUnwritten(started.chunk);
  if (started.after == After::kGiveBack) {
    giveBack(started.chunk);
    TP_CHECK_OP(writes_under_way_, >, 0u);
    --writes_under_way_;
  }
  started.chunk = nullptr;
  while (!started_.empty() && started_.front().chunk == nullptr) {
    started_.pop_front();
    ++first_tag_;
  }
}

Status RowLink::waitForOne() {
  complete(channel_->wait());
  return verdict();
}

Status RowLink::withinMemory() {
  if (!beyond()) return {};
  TP_TRY(send());
  while (beyond() && writes_under_way_ > 0) TP_TRY(waitForOne());
  return {};
}

Status RowLink::takeIn() {
  FetchCompletion completions[64];
  size_t count = 0;
  do {
    if (started_.empty()) break;
    count = channel_->poll(completions);
    for (size_t i = 0; i < count; ++i) complete(completions[i]);
  } while (count == std::size(completions));
  return verdict();
}

Status RowLink::awaitChunk(const RowChunk* chunk) {
  while (chunk->under_way) {
    complete(channel_->wait());
  }
  return verdict();
}

Status RowLink::finishAll() {
  while (!started_.empty()) complete(channel_->wait());
  return verdict();
}

}  // namespace tidepool
