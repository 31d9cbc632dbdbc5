// SPDX-License-Identifier: Apache-2.0
// Reads and writes of the rows of one table in a fetch tier, in chunks, many under way at once. A
// chunk owns the memory that its rows land in or leave from. Takes effect in the order of starting.
// Not thread-safe (the table's lock). Nothing here touches managed memory.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "allocator/rows/row_numbers.h"
#include "allocator/table/huge_memory.h"
#include "allocator/table/unwritten_rows.h"
#include "runtime/base/clock.h"
#include "runtime/base/mapping.h"
#include "runtime/base/result.h"
#include "runtime/tier/row_channel.h"

namespace tidepool {

/// Of a row that was read ahead: the last batch that needs it, and what becomes of it then. Of one
/// that was dropped nothing is true any more.
struct ChunkRow {
  uint64_t last : 61;
  uint64_t changed : 1, worthy : 1, dropped : 1;
};

/// Some rows on their way. Rows lie in `bytes` one after the other, a stride each.
struct RowChunk {
  std::vector<RowNumber> rows;
  // Of chunks that PrefetchBuffer holds: what is known of each row, the last batch that needs one
  // of them, the number of the chunk, and of the request.
  std::vector<ChunkRow> needs;
  uint64_t batch = 0;
  uint32_t number = 0;
  uint64_t request = 0;
  // Positions of rows that the request does not name, rising: they were never written.
  std::vector<uint32_t> unwritten;
  std::byte* bytes = nullptr;
  bool under_way = false;

 private:
  friend class RowLink;
  bool ahead_ = false;
  Mapping memory_;  // of one beyond the link's own memory; else it has a piece of that
};

class RowLink {
  /// A call, whose time counts.
  template <typename Call>
  auto timed(Call call) {
    const Nanoseconds began = kMonotonicClock.now();
    auto result = call();
    effort_.waited += kMonotonicClock.now() - began;
    return result;
  }

 public:
  RowLink(std::unique_ptr<RowChannel> channel, Bytes stride);
  ~RowLink();

  /// Those of the rows that need not be asked for; outlives the link. Nothing was started yet.
  void setUnwritten(UnwrittenRows* unwritten) { unwritten_ = unwritten; }
  /// Chunks have so much memory together from now on, or little more if that is next to nothing.
  /// None is in use. Errors: kNoMemory.
  Status setMemory(Bytes size);
  /// The least that setMemory() can do with.
  static Bytes leastMemory(Bytes stride) { return stride * kLeastRowsInAll; }
  static constexpr size_t kLeastRowsInAll = 24;
  /// In a chunk.
  static constexpr size_t kMostRows = 1024;
  /// As much as ever does any good.
  static constexpr Bytes kMostMemory = Bytes(16 * kMiB);

  size_t rowsPerChunk() const { return rows_per_chunk_; }
  /// How many chunks a call may hold beside the cache at a time: all but those for writes, the one
  /// that is being filled, and those that are held for later calls.
  size_t stagedChunks() const { return readChunks() - ahead_; }
  /// Whether one more may be held for later calls: a quarter is left for what was not announced.
  bool roomAhead() const { return ahead_ < aheadChunks(); }
  size_t aheadChunks() const { return readChunks() - std::max<size_t>(readChunks() / 4, 1); }
  /// An empty chunk. Beyond the link's memory it has some of its own, until it is given back.
  /// Errors: kNoMemory.
  Result<RowChunk*> take();
  /// The same, of those that later calls may hold.
  Result<RowChunk*> takeAhead();
  /// Back for reuse; it must not be under way.
  void giveBack(RowChunk* chunk);

  /// Begins to fill a chunk, and returns at once. Rows that were never written are asked for of
  /// nobody: where all are of that kind the chunk is full now. Errors: kUnreachable, kTimedOut or
  /// kLost once the link has failed.
  Status startRead(RowChunk* chunk) {
    effort_.rows += chunk->rows.size();
    return timed([&] { return read(chunk); });
  }
  /// Begins to write a chunk, which is given back by itself when it has been written.
  Status writeAndForget(RowChunk* chunk);
  /// Sends what was started.
  Status send();
  /// Blocks until the chunk is no longer under way. Errors: as above; its rows are then unusable.
  Status finish(const RowChunk* chunk) {
    return timed([&] { return awaitChunk(chunk); });
  }
  /// Takes in what has come, without blocking.
  Status poll() {
    return timed([&] { return takeIn(); });
  }
  /// Blocks until nothing is under way.
  Status finishAll();

  /// Reads and writes that were started so far; and whether as many of them are over, from the
  /// first on, as far as poll() has seen.
  uint64_t begun() const { return first_tag_ + started_.size(); }
  bool over(uint64_t begun) const { return first_tag_ >= begun; }

  /// Rows that were read without asking for them, so far: they were never written.
  uint64_t unwritten() const { return made_; }

  /// Rows that were read so far, and how long calls were at it: starting, waiting, taking in.
  struct Effort {
    uint64_t rows = 0;
    Nanoseconds waited;
  };
  const Effort& effort() const { return effort_; }

  /// Blocks until no write holds memory beyond the link's own. Errors: as above.
  Status withinMemory();
  /// Memory of all chunks.
  Bytes memory() const { return own_memory_ + beyond_; }
  /// Whether chunks have more than the link's memory.
  bool beyond() const { return beyond_ > Bytes(); }

 private:
  enum class Direction : uint8_t { kRead, kWrite };
  enum class After : uint8_t { kKeep, kGiveBack };
  struct Started {
    RowChunk* chunk;
    Direction direction;
    After after;
  };
  Status read(RowChunk* chunk);
  void makeUnwritten(RowChunk* chunk);
  Status start(RowChunk* chunk, std::span<const RowNumber> rows, Direction direction,
               After after = After::kKeep);
  Status submit(RowChunk* chunk, std::span<const RowNumber> rows, Direction direction);
  Status waitForOne();
  Status takeIn();
  Status awaitChunk(const RowChunk* chunk);
  void complete(const FetchCompletion& completion);
  Status verdict() const;
  size_t mostWrites() const;
  size_t readChunks() const { return own_chunks_ - 1 - mostWrites(); }
  Bytes chunkBytes() const { return stride_ * rows_per_chunk_; }

  static constexpr size_t kLeastChunks = 6, kLeastRows = kLeastRowsInAll / kLeastChunks;

  std::unique_ptr<RowChannel> channel_;
  const Bytes stride_;
  UnwrittenRows* unwritten_ = nullptr;  // null: all rows are asked for
  std::vector<RowNumber> asked_;        // of one request
  uint64_t made_ = 0;
  size_t rows_per_chunk_ = 0;
  size_t own_chunks_ = 0;  // that the link's memory holds
  size_t ahead_ = 0;       // chunks that are held for later calls
  HugeMemory memory_;
  Bytes own_memory_, beyond_;
  std::vector<std::unique_ptr<RowChunk>> chunks_;
  std::vector<RowChunk*> free_;
  std::deque<Started> started_;  // in order; tags count up from first_tag_
  uint64_t first_tag_ = 0;
  size_t writes_under_way_ = 0;
  Effort effort_;
  ErrorCode failure_ = ErrorCode{};
};

}  // namespace tidepool
