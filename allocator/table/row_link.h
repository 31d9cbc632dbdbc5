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
  Mapping memory_;  // of one beyond the link's own memory; else it has a piece of that
};

class RowLink {
 public:
  RowLink(std::unique_ptr<RowChannel> channel, Bytes stride);
  ~RowLink();

  /// Chunks have so much memory together from now on, or little more if that is next to nothing.
  /// None is in use. Errors: kNoMemory.
  Status setMemory(Bytes size);
  /// The least that setMemory() can do with.
  static Bytes leastMemory(Bytes stride) { return stride * (kLeastChunks * kLeastRows); }
  /// As much as ever does any good.
  static constexpr Bytes kMostMemory = Bytes(16 * kMiB);

  size_t rowsPerChunk() const { return rows_per_chunk_; }
  /// Of all chunks, how many a call may hold beside the cache at a time, and how many may be under
  /// way for later calls. Writes and the chunk that is being filled have the rest.
  size_t stagedChunks() const { return (own_chunks_ - 1 - mostWrites()) / 2; }
  size_t aheadChunks() const { return own_chunks_ - 1 - mostWrites() - stagedChunks(); }
  /// An empty chunk. Beyond the link's memory it has some of its own, until it is given back.
  /// Errors: kNoMemory.
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
  Bytes memory() const { return own_memory_ + beyond_; }
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
  size_t mostWrites() const;
  Bytes chunkBytes() const { return stride_ * rows_per_chunk_; }

  static constexpr size_t kLeastChunks = 6, kLeastRows = 4;

  std::unique_ptr<RowChannel> channel_;
  const Bytes stride_;
  size_t rows_per_chunk_ = 0;
  size_t own_chunks_ = 0;  // that the link's memory holds
  Mapping memory_;
  Bytes own_memory_, beyond_;
  std::vector<std::unique_ptr<RowChunk>> chunks_;
  std::vector<RowChunk*> free_;
  std::deque<Started> started_;  // in order; tags count up from first_tag_
  uint64_t first_tag_ = 0;
  size_t writes_under_way_ = 0;
  uint64_t rows_read_ = 0, rows_written_ = 0;
  ErrorCode failure_ = ErrorCode{};
};

}  // namespace tidepool
