// SPDX-License-Identifier: Apache-2.0
// Reads and writes of the rows of one table in a fetch tier, in chunks, many under way at once. A
// chunk owns the memory that its rows land in or leave from. Takes effect in the order of starting.
// Not thread-safe (the table's lock). Nothing here touches managed memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "allocator/rows/row_numbers.h"
#include "runtime/base/mapping.h"
#include "runtime/base/result.h"
#include "runtime/tier/row_channel.h"

namespace tidepool {

/// Some rows on their way. Rows lie in `bytes` one after the other, a stride each.
struct RowChunk {
  std::vector<RowNumber> rows;
  std::vector<Slot> slots;  // of reads that are to end in the cache
  uint64_t batch = 0;       // of reads ahead: the batch that needs them
  std::byte* bytes = nullptr;
  bool under_way = false;

 private:
  friend class RowLink;
  Mapping memory_;
};

class RowLink {
 public:
  RowLink(std::unique_ptr<RowChannel> channel, Bytes stride);
  ~RowLink();

  size_t rowsPerChunk() const { return rows_per_chunk_; }
  /// An empty chunk. Errors: kNoMemory.
  Result<RowChunk*> take();
  /// Back for reuse; it must not be under way.
  void giveBack(RowChunk* chunk);

  /// Begin to fill a chunk, or to write it back, and return at once. Errors: kUnreachable,
  /// kTimedOut or kLost once the link has failed.
  Status startRead(RowChunk* chunk) { return start(chunk, Direction::kRead); }
  Status startWrite(RowChunk* chunk) { return start(chunk, Direction::kWrite); }
  /// As startWrite(), and the chunk is given back by itself when it has been written.
  Status writeAndForget(RowChunk* chunk);
  /// Sends what was started.
  Status send();
  /// Blocks until the chunk is no longer under way. Errors: as above; its rows are then unusable.
  Status finish(const RowChunk* chunk);
  /// Takes in what has come, without blocking.
  Status poll();
  /// Blocks until nothing is under way.
  Status finishAll();

  /// Reads and writes that were started so far; and whether as many of them are over, from the
  /// first on, as far as poll() has seen.
  uint64_t begun() const { return first_tag_ + started_.size(); }
  bool over(uint64_t begun) const { return first_tag_ >= begun; }

  /// Memory of all chunks.
  Bytes memory() const;
  uint64_t rowsRead() const { return rows_read_; }
  uint64_t rowsWritten() const { return rows_written_; }

 private:
  enum class Direction : uint8_t { kRead, kWrite };
  enum class After : uint8_t { kKeep, kGiveBack };
  struct Started {
    RowChunk* chunk;
    Direction direction;
    After after;
  };
  Status start(RowChunk* chunk, Direction direction, After after = After::kKeep);
  Status submit(RowChunk* chunk, Direction direction);
  Status waitForOne();
  void complete(const FetchCompletion& completion);
  Status verdict() const;

  std::unique_ptr<RowChannel> channel_;
  const Bytes stride_;
  size_t rows_per_chunk_;
  std::vector<std::unique_ptr<RowChunk>> chunks_;
  std::vector<RowChunk*> free_;
  std::deque<Started> started_;  // in order; tags count up from first_tag_
  uint64_t first_tag_ = 0;
  size_t writes_under_way_ = 0;
  uint64_t rows_read_ = 0, rows_written_ = 0;
  ErrorCode failure_ = ErrorCode{};
};

}  // namespace tidepool
