// SPDX-License-Identifier: Apache-2.0
// The prefetch buffer: rows of a fetch tier that announced batches need and the cache does not
// have. They wait in the chunks in which they were read, one copy for all batches in flight, and
// are used and changed there; when the last batch that needs a row is over it goes to a slot, or
// home, or is dropped. Not thread-safe (the table's lock).
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <span>
#include <vector>

#include "allocator/rows/row_numbers.h"
#include "allocator/table/row_cache.h"
#include "allocator/table/row_link.h"
#include "allocator/table/slot_map.h"
#include "runtime/base/debug_check.h"

namespace tidepool {

class PrefetchBuffer {
 public:
  /// Where a row waits: the number of its chunk, and its position there.
  using Place = Slot;

  PrefetchBuffer(RowLink& link, RowCache& cache, Bytes stride)
      : link_(link), cache_(cache), stride_(stride.value()) {}

  /// What is known of so many rows costs this much, beside the rows themselves.
  static Bytes memoryFor(size_t rows) {
    return SlotMap::memoryFor(mapRoom(rows)) + Bytes(rows * sizeof(ChunkRow));
  }
  /// Has room for so many rows from now on, as far as the link has chunks for them. None is here.
  /// Errors: kNoMemory.
  Status setMost(size_t rows);
  Bytes memory() const { return most_ == 0 ? Bytes() : memoryFor(most_); }
  size_t count() const { return map_.count(); }
  bool empty() const { return chunks_.empty(); }
  /// Rows that were asked for, ever.
  uint64_t asked() const { return asked_; }

  /// The batch needs these rows, none of which has a slot: those that are not here are asked for.
  /// Where each is until the batch is over is put into `places`, or kNoSlot if it may move before
  /// that: then find() it when it is used. Returns how many rows are here; fewer than all when no
  /// more fit. Errors: those of RowLink.
  Result<size_t> want(std::span<const RowNumber> rows, uint64_t batch, Place* places);
  /// Sends requests for all that is wanted. Errors: those of RowLink.
  Status send();
  /// Requests so far, with one for what is wanted and not asked for yet.
  uint64_t requests() const { return requests_ + (open_ == nullptr ? 0 : 1); }
  /// Blocks until as many are answered, from the first on. send() was called.
  Status await(uint64_t requests);

  /// kNoSlot if the row is not here. Places are good until release() or moveToFreeSlots().
  Place find(RowNumber row) const { return count() == 0 ? kNoSlot : map_.find(row); }
  std::byte* address(Place place) const {
    return bytes_[place >> kPositionBits] + (place & kMostPosition) * stride_;
  }
  /// Places are below this.
  static constexpr Place kMostPlaces = Place{1} << 22;
  /// address() can be asked about it, and means nothing: for loops without branches.
  static constexpr Place kAnyPlace = 0;
  /// Blocks until the row in this place has come.
  Status awaitRow(Place place);
  void markChanged(Place place) { rowAt(place).changed = true; }
  /// The row deserves a slot, and gets one when its last batch is over.
  void markWorthy(Place place) { rowAt(place).worthy = true; }

  /// The row is of no id any more, and is not found here from now on.
  void drop(RowNumber row);
  /// Batches up to this one are over: rows that no later one needs go to slots or home, or are
  /// dropped. Those that have not come yet stay for now. Errors: those of writing to the homes.
  Status release(uint64_t finished);
  /// Rows that have come go to free slots, where they stay until their batches are over. True if
  /// any went.
  Result<bool> moveToFreeSlots();
  /// Changed rows are written home as they are now; they stay. Errors: as above.
  Status writeChanged();
  /// Forgets all rows. Waits for what is under way, and ignores how it ends.
  void forget();

 private:
  static constexpr unsigned kPositionBits = 10;
  static constexpr Place kMostPosition = (Place{1} << kPositionBits) - 1;
  static_assert(RowLink::kMostRows <= kMostPosition + 1);

  static size_t mapRoom(size_t rows) { return rows * 5 / 4; }  // hardly a search is long
  ChunkRow& rowAt(Place place) { return chunkAt(place)->needs[place & kMostPosition]; }
  RowChunk* chunkAt(Place place) const {
    TP_DCHECK_OP(place >> kPositionBits, <, chunks_by_number_.size());
    return chunks_by_number_[place >> kPositionBits];
  }
  Place placeOf(const RowChunk* chunk, size_t position) const {
    return chunk->number << kPositionBits | static_cast<Place>(position);
  }
  bool room() const { return open_ != nullptr || link_.roomAhead(); }
  bool come(const RowChunk* chunk) const { return chunk != open_ && chunk->request <= come_; }
  Status open(uint64_t batch);
  Result<Place> add(RowNumber row, uint64_t batch);
  Status request();
  void takeIn();
  Status leave(const RowChunk* chunk, size_t position);
  void keep(RowChunk* chunk, size_t from, size_t& kept);
  void giveBack(RowChunk* chunk);
  Result<bool> toFreeSlot(const RowChunk* chunk, size_t position);
  template <typename Leaves>
  Status sweep(RowChunk* chunk, Leaves leaves);
  template <typename Swept, typename Leaves>
  Status sweepAll(Swept swept, Leaves leaves);

  RowLink& link_;
  RowCache& cache_;
  const uint64_t stride_;
  size_t most_ = 0;
  SlotMap map_;                              // row to place
  std::vector<RowChunk*> chunks_;            // all that hold rows
  std::vector<RowChunk*> chunks_by_number_;  // null for a number that is free
  std::vector<std::byte*> bytes_{nullptr};   // of the chunk of each number
  std::vector<uint32_t> free_numbers_;
  std::deque<RowChunk*> under_way_;   // chunks that have not come, in order
  RowChunk* open_ = nullptr;          // not asked for yet: takes more rows
  RowChunk* survivors_ = nullptr;     // has come, and has room for rows of others
  uint64_t requests_ = 0, come_ = 0;  // started; answered
  uint64_t asked_ = 0;
};

}  // namespace tidepool
