// SPDX-License-Identifier: Apache-2.0
// Keeps the compressed pool (runtime/tier/compressed_pool.h) within its size and the budget:
// decides which pages on their way out are compressed, writes the oldest back to fetch tiers when
// there is no more room, and closes gaps. Runs on the migrator's thread alone; never touches
// managed memory.
#pragma once

#include <array>
#include <memory>
#include <optional>

#include "runtime/base/mapping.h"
#include "runtime/migrate/core/core.h"
#include "runtime/migrate/core/far_claim.h"
#include "runtime/migrate/core/shared_policy.h"

namespace tidepool {

class PoolKeeper {
 public:
  /// Null if the process has no pool. All must outlive the keeper. Errors: kNoMemory.
  static Result<std::unique_ptr<PoolKeeper>> create(Core& core, SharedPolicy& policy);

  /// The new frame in the pool of a page with these bytes; none if it is to go elsewhere.
  std::optional<FrameIndex> put(PageIndex page, const std::byte* bytes);
  /// The same of a page that has a copy in far memory.
  std::optional<FrameIndex> putClean(PageIndex page, const std::byte* bytes);
  /// To be called when room was made, before others hear of it: the pool's next chunks come first,
  /// or faults would take all room while there is a shortage, and the pool could not grow.
  void reserve();
  PageCount reserved() const { return CompressedPool::kChunkPages * reserved_; }
  /// Gives back the memory of what was released, and makes the pool smaller if it is to be, a chunk
  /// at a time.
  void tend();

 private:
  static constexpr uint64_t kBatch = 64;  // pages written back at once
  /// Far pages of a chunk, on their way to a fetch tier.
  struct Leaving {
    uint64_t count = 0;
    std::array<FarClaim, kBatch> pages;  // of one page each
    std::array<FrameIndex, kBatch> to;
  };

  PoolKeeper(Core& core, SharedPolicy& policy, Mapping tries, Mapping bytes)
      : core_(core),
        policy_(policy),
        pool_(*core.pool),
        tries_(std::move(tries)),
        bytes_(std::move(bytes)) {}
  bool worthTrying(PageIndex page);
  void learn(PageIndex page, bool packed);
  /// Room for one more chunk, in the pool and in the budget.
  bool makeRoom();
  bool takeChunk();
  void freeEmpty();
  void closeGaps();
  bool moveEntries(uint32_t chunk);
  /// Whether the page is in that frame, and nobody has it in hand.
  bool lies(PageIndex page, FrameIndex frame) const;
  /// Writes the oldest pages back; false if none could be.
  bool writeOldestBack();
  uint64_t writeBack(uint32_t chunk);
  /// What was collected; returns how many pages left.
  uint64_t flush();
  uint8_t findFrames(uint64_t at, uint64_t* count);
  bool writeOut(uint8_t tier, uint64_t begin, uint64_t end);
  void settle(uint8_t tier, uint64_t begin, uint64_t end);
  std::byte* bytesOf(uint64_t index) const { return bytes_.data() + index * kPageSize; }

  Core& core_;
  SharedPolicy& policy_;
  CompressedPool& pool_;
  // A byte a granule: how often its pages did not compress in a row, and tries left out since.
  Mapping tries_;
  Mapping bytes_;
  Leaving leaving_;
  uint64_t reserved_ = 0;  // chunks that are charged already, and not begun
};

}  // namespace tidepool
