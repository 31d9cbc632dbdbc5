// SPDX-License-Identifier: Apache-2.0
// Keeps the compressed pool (runtime/tier/compressed_pool.h) within its size and the budget:
// decides which pages on their way out are compressed, writes the oldest back to fetch tiers before
// there is no more room, and closes gaps. Runs on the migrator's thread alone; never touches
// managed memory.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "runtime/base/mapping.h"
#include "runtime/migrate/core/channels.h"
#include "runtime/migrate/core/core.h"
#include "runtime/migrate/core/far_move.h"
#include "runtime/migrate/core/shared_policy.h"
#include "runtime/migrate/core/staging.h"

namespace tidepool {

class PoolKeeper {
 public:
  /// Null if the process has no pool. All must outlive the keeper; the channels are those of its
  /// thread, whose owner hands completions with a tag of the keeper's to finish(). Errors:
  /// kNoMemory.
  static Result<std::unique_ptr<PoolKeeper>> create(Core& core, SharedPolicy& policy,
                                                    Channels& channels);
  ~PoolKeeper();

  /// The new frame in the pool of a page with these bytes; none if it is to go elsewhere.
  std::optional<FrameIndex> put(PageIndex page, const std::byte* bytes);
  /// The same of a page that has a copy in far memory.
  std::optional<FrameIndex> putClean(PageIndex page, const std::byte* bytes);
  /// To be called when room was made, before others hear of it: the pool's next chunks come first,
  /// or faults would take all room while there is a shortage, and the pool could not grow.
  void reserve();
  PageCount reserved() const { return CompressedPool::kChunkPages * reserved_; }
  /// Gives back the memory of what was released, makes the pool smaller if it is to be, and room in
  /// it ahead of need.
  void tend();
  /// Takes in the completion of a write that has a tag from this one on.
  static constexpr uint64_t kFirstTag = uint64_t{Staging::kSegments} << 32;
  void finish(const FetchCompletion& written);
  /// Whether anything is being written back.
  bool busy() const { return under_way_ > 0; }

 private:
  static constexpr uint64_t kBatch = 64;    // pages written back at once
  static constexpr size_t kWriteBacks = 4;  // batches that are on their way at a time
  /// Far pages of a chunk, on their way to a fetch tier.
  struct WriteBack {
    FarMove pages;
    bool under_way = false;
  };

  PoolKeeper(Core& core, SharedPolicy& policy, Channels& channels, Mapping tries)
      : core_(core),
        policy_(policy),
        channels_(channels),
        pool_(*core.pool),
        tries_(std::move(tries)) {}
  bool worthTrying(PageIndex page);
  void learn(PageIndex page, bool packed, Nanoseconds took);
  /// Room for one more chunk, in the pool and in the budget.
  bool makeRoom();
  bool takeChunk();
  void freeEmpty();
  void closeGaps();
  bool moveEntries(uint32_t chunk);
  /// Whether the page is in that frame, and nobody has it in hand.
  bool lies(PageIndex page, FrameIndex frame) const;
  /// Whether the pool is about to be as large as it may be, when all that is on its way has left.
  bool roomIsShort() const;
  /// Begins to write the oldest pages back; false if none can be now.
  bool writeOldestBack();
  /// Those of a chunk, as far as batches are free; returns whether any is on its way.
  bool writeBack(uint32_t chunk);
  WriteBack* freeWriteBack();
  /// What was collected; false if it stays.
  bool send(WriteBack& batch);

  Core& core_;
  SharedPolicy& policy_;
  Channels& channels_;
  CompressedPool& pool_;
  // A byte a granule: how often its pages did not compress in a row, and tries left out since.
  Mapping tries_;
  std::vector<WriteBack> write_backs_;
  uint64_t under_way_ = 0;
  uint64_t reserved_ = 0;  // chunks that are charged already, and not begun
};

}  // namespace tidepool
