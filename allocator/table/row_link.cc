// SPDX-License-Identifier: Apache-2.0
// RowLink: chunks are submitted in order; completions may come in any order.
#include "allocator/table/row_link.h"

#include <algorithm>

#include "runtime/base/check.h"

namespace tidepool {
namespace {

// One request and its answer: large enough that what a request costs by itself (some 10 us at both
// ends) is small beside its rows, small enough to stay in the second-level cache.
constexpr uint64_t kChunkBytes = 128 * kKiB;
constexpr size_t kLeastRows = 16, kMostRows = 1024;
// Whoever writes more waits: beyond some requests under way the wire is no faster, and each holds a
// chunk.
constexpr size_t kMostWrites = 16;

}  // namespace

RowLink::RowLink(std::unique_ptr<RowChannel> channel, Bytes stride)
    : channel_(std::move(channel)), stride_(stride) {
  rows_per_chunk_ = std::clamp<size_t>(kChunkBytes / stride.value(), kLeastRows, kMostRows);
  rows_per_chunk_ = std::min(rows_per_chunk_, channel_->mostRows());
}

/// Chunks are borrowed by the channel until it is gone.
RowLink::~RowLink() { channel_.reset(); }

Result<RowChunk*> RowLink::take() {
  if (free_.empty()) {
    auto memory = Mapping::anonymous(Bytes(roundUp(rows_per_chunk_ * stride_.value(), kPageSize)));
    if (!memory) return tl::unexpected(memory.error());
    auto chunk = std::make_unique<RowChunk>();
    chunk->bytes = memory->data();
    chunk->memory_ = std::move(*memory);
    free_.push_back(chunk.get());
    chunks_.push_back(std::move(chunk));
  }
  RowChunk* const chunk = free_.back();
  free_.pop_back();
  chunk->rows.clear();
  chunk->slots.clear();
  chunk->batch = 0;
  return chunk;
}

void RowLink::giveBack(RowChunk* chunk) {
  TP_CHECK(!chunk->under_way);
  free_.push_back(chunk);
}

Status RowLink::verdict() const {
  if (failure_ == ErrorCode{}) return {};
  return fail(failure_,
              "rows in far memory cannot be reached any more: %s; make the table anew from "
              "its last checkpoint",
              channel_->reason());
}

Status RowLink::submit(RowChunk* chunk, Direction direction) {
  const uint64_t tag = first_tag_ + started_.size();
  return direction == Direction::kRead ? channel_->submitRead(tag, chunk->rows, chunk->bytes)
                                       : channel_->submitWrite(tag, chunk->rows, chunk->bytes);
}

Status RowLink::start(RowChunk* chunk, Direction direction, After after) {
  TP_TRY(verdict());
  TP_CHECK(!chunk->rows.empty());
  Status submitted = submit(chunk, direction);
  while (!submitted && submitted.error().code() == ErrorCode::kNoSpace) {
    TP_TRY(waitForOne());
    submitted = submit(chunk, direction);
  }
  if (!submitted) return submitted;
  chunk->under_way = true;
  started_.push_back({chunk, direction, after});
  (direction == Direction::kRead ? rows_read_ : rows_written_) += chunk->rows.size();
  return {};
}

Status RowLink::writeAndForget(RowChunk* chunk) {
  while (writes_under_way_ >= kMostWrites) TP_TRY(waitForOne());
  TP_TRY(start(chunk, Direction::kWrite, After::kGiveBack));
  ++writes_under_way_;
  return {};
}

Status RowLink::send() {
  TP_TRY(verdict());
  return channel_->flush();
}

void RowLink::complete(const FetchCompletion& completion) {
  Started& started = started_[completion.tag - first_tag_];
  TP_CHECK(started.chunk != nullptr);
  started.chunk->under_way = false;
  if (!completion.ok() && failure_ == ErrorCode{}) failure_ = completion.error;
  if (started.after == After::kGiveBack) {
    giveBack(started.chunk);
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

Status RowLink::poll() {
  FetchCompletion completions[64];
  size_t count = 0;
  do {
    if (started_.empty()) break;
    count = channel_->poll(completions);
    for (size_t i = 0; i < count; ++i) complete(completions[i]);
  } while (count == std::size(completions));
  return verdict();
}

Status RowLink::finish(const RowChunk* chunk) {
  while (chunk->under_way) {
    complete(channel_->wait());
  }
  return verdict();
}

Status RowLink::finishAll() {
  while (!started_.empty()) complete(channel_->wait());
  return verdict();
}

Bytes RowLink::memory() const {
  Bytes sum;
  for (const auto& chunk : chunks_) sum += chunk->memory_.size();
  return sum;
}

}  // namespace tidepool
