// SPDX-License-Identifier: Apache-2.0
// Cold pages compressed in this process's own memory, as a tier: a log of chunks, each filled from
// its start with entries of whole units. A page's frame is the place of its entry in units, so that
// the page's word is all the index there is. An entry is never changed, and its place not used
// again before its whole chunk is empty. What gaps releases leave the owner closes by moving
// entries (move()). A child of fork() has a copy of its own, as of any private memory.
//
// Pages are put in, moved and freed by one thread, the owner. release() and read() may be called
// by any thread, of frames that it holds, as of other tiers. Nothing is allocated after create().
#pragma once

#include <array>
#include <atomic>
#include <memory>
#include <optional>

#include "runtime/base/mapping.h"
#include "runtime/tier/tier.h"

namespace tidepool {

class CompressedPool final : public Tier {
 public:
  static constexpr uint64_t kUnit = 16;  // bytes
  static constexpr PageCount kChunkPages{16};
  /// Bytes of an entry at most: what saves less than a third is not worth a fault's decompression.
  static constexpr uint64_t kMostStored = kPageSize * 2 / 3 / kUnit * kUnit;
  /// Ages run from 0, just put in, to this, as old as the oldest.
  static constexpr uint32_t kOldest = 15;

  /// Room for `most`, rounded down to chunks, of which only what is used takes memory. Errors:
  /// kInvalidArgument when it has no room for two chunks, kNoMemory.
  static Result<std::unique_ptr<CompressedPool>> create(Bytes most);

  TierKind kind() const override { return TierKind::kCompressed; }
  const char* name() const override { return "compressed"; }
  Bytes capacity() const override { return Bytes(limit_.load(std::memory_order_relaxed)); }
  /// Memory that it takes, of compressed pages and of gaps.
  Bytes used() const override { return toBytes(held()); }
  /// Nobody but the owner puts pages here, by their bytes. Always kNoSpace.
  Result<FrameRun> allocate(PageCount wanted) override;
  void release(FrameRun run) override;
  /// Errors: kCorrupt when the bytes are not those that were put in.
  Status read(FrameRun run, std::byte* memory) override;
  Status write(FrameRun run, const std::byte* memory) override;
  /// Its frames are the process's own: it has none, and must not be asked.
  FrameTable& table() override;

  /// Compresses a page; false if that saves too little. The owner's, as all that follows.
  bool pack(const std::byte* page);
  /// Two chunks are filled at a time: one with new pages, one with entries that are moved.
  enum class Log : uint8_t { kNew, kMoved };
  /// Whether the packed page, or the entry of `frame`, has room in the chunk being filled.
  bool packedFits() const { return fits(Log::kNew, packed_units_); }
  bool moveFits(FrameIndex frame) const { return fits(Log::kMoved, unitsOf(frame)); }
  /// Begins a new chunk of kChunkPages; false if there is none left. One of moved entries is as old
  /// as chunk `like`.
  bool beginNew();
  bool beginMoved(uint32_t like);
  /// Counts the chunks that are being filled as full.
  void endFilling() {
    seal(Log::kNew);
    seal(Log::kMoved);
  }
  /// Puts the packed page into its chunk, which must have room.
  FrameIndex put(PageIndex page);
  /// Copies an entry; its page is at both frames until the old one is released.
  FrameIndex move(FrameIndex frame);
  /// Frees chunks that have become empty; returns how many pages of memory that were.
  PageCount freeEmpty();

  static constexpr uint32_t kNoChunk = ~uint32_t{0};
  /// The oldest chunk that is full, the next younger, and the one with the most gaps.
  uint32_t oldest() const { return fullFrom(oldest_); }
  uint32_t younger(uint32_t chunk) const { return fullFrom(chunks()[chunk].younger); }
  uint32_t emptiest() const;
  /// Calls `act(frame, page)` for all entries of a full chunk, those that were released too: whose
  /// page has another word by now.
  template <typename Act>
  void forEntries(uint32_t chunk, Act act) const {
    const uint64_t first = chunk * kUnitsPerChunk;
    for (uint64_t at = 0; at < chunks()[chunk].used;) {
      const FrameIndex frame(first + at);
      const Header header = headerOf(frame);
      at += header.units();
      act(frame, header.page());
    }
  }

  // Any thread's.
  /// Memory of chunks in use.
  PageCount held() const { return kChunkPages * chunks_in_use_.load(std::memory_order_relaxed); }
  PageCount pages() const { return PageCount(pages_.load(std::memory_order_relaxed)); }
  Bytes stored() const { return Bytes(units_.load(std::memory_order_relaxed) * kUnit); }
  /// How old the entry is, as a share of the age of the oldest: 0 to kOldest.
  uint32_t ageOf(FrameIndex frame) const;
  /// As capacity(), from now on.
  void setLimit(Bytes limit) { limit_.store(limit.value(), std::memory_order_relaxed); }
  Bytes arena() const { return arena_.size(); }

 private:
  static constexpr uint64_t kUnitsPerChunk = toBytes(kChunkPages).value() / kUnit;
  /// In front of an entry's bytes.
  class Header {
   public:
    Header(PageIndex page, uint64_t bytes) : raw_(page.value() << 16 | bytes) {}
    PageIndex page() const { return PageIndex(raw_ >> 16); }
    uint64_t bytes() const { return raw_ & 0xffff; }
    uint64_t units() const { return unitsFor(bytes()); }

   private:
    uint64_t raw_;
  };
  static constexpr uint64_t unitsFor(uint64_t bytes) {
    return (sizeof(uint64_t) + bytes + kUnit - 1) / kUnit;
  }
  struct Chunk {
    std::atomic<uint32_t> live;  // units of entries that are held, and one while it is filled
    uint32_t used;               // units
    uint32_t older, younger;
    uint64_t born;  // pages put in before it
  };
  struct Filled {
    uint32_t chunk = kNoChunk;
    uint32_t used = 0;
  };

  CompressedPool(Mapping arena, Mapping chunks, Mapping state);
  Chunk* chunks() const { return reinterpret_cast<Chunk*>(chunk_memory_.data()); }
  std::byte* at(FrameIndex frame) const { return arena_.data() + frame.value() * kUnit; }
  Header headerOf(FrameIndex frame) const;
  uint64_t unitsOf(FrameIndex frame) const { return headerOf(frame).units(); }
  Filled& filled(Log log) { return filled_[static_cast<size_t>(log)]; }
  const Filled& filled(Log log) const { return filled_[static_cast<size_t>(log)]; }
  bool fits(Log log, uint64_t units) const {
    const Filled& to = filled(log);
    return to.chunk != kNoChunk && to.used + units <= kUnitsPerChunk;
  }
  bool isFilling(uint32_t chunk) const {
    return chunk == filled(Log::kNew).chunk || chunk == filled(Log::kMoved).chunk;
  }
  uint32_t fullFrom(uint32_t chunk) const;
  bool begin(Log log, uint32_t older, uint64_t born);
  void seal(Log log);
  void link(uint32_t chunk, uint32_t older);
  void unlink(uint32_t chunk);
  FrameIndex take(Log log, uint64_t units);
  void dropUnits(uint32_t chunk, uint32_t units);

  Mapping arena_, chunk_memory_, state_;
  const uint32_t chunk_count_;
  // The owner's: the list of chunks by age, those that are free, and what is being filled.
  uint32_t oldest_ = kNoChunk, youngest_ = kNoChunk;
  uint32_t free_ = kNoChunk, never_used_ = 0;
  std::array<Filled, 2> filled_;
  std::array<std::byte, kMostStored> packed_;
  uint64_t packed_bytes_ = 0, packed_units_ = 0;

  std::atomic<uint64_t> limit_;
  std::atomic<uint64_t> chunks_in_use_{0}, empty_chunks_{0};
  std::atomic<uint64_t> pages_{0}, units_{0};  // that are held
  std::atomic<uint64_t> put_{0};               // pages, so far
  std::atomic<uint64_t> oldest_born_{0};
};

}  // namespace tidepool
