// SPDX-License-Identifier: Apache-2.0
// CompressedPool. What makes it safe without a lock: an entry is written before a word names its
// frame, and its chunk is freed after the last frame in it was released, whose release pairs with
// the acquire in freeEmpty().
#include "runtime/tier/compressed_pool.h"

#include <lz4.h>

#include <cstring>
#include <new>

#include "runtime/base/check.h"
#include "runtime/base/raw_calls.h"
#include "runtime/os/memory.h"

namespace tidepool {

CompressedPool::CompressedPool(Mapping arena, Mapping chunks, Mapping state)
    : arena_(std::move(arena)),
      chunk_memory_(std::move(chunks)),
      state_(std::move(state)),
      chunk_count_(static_cast<uint32_t>(arena_.size() / toBytes(kChunkPages))),
      limit_(arena_.size().value()) {}

Result<std::unique_ptr<CompressedPool>> CompressedPool::create(Bytes most) {
  const Bytes chunk = toBytes(kChunkPages);
  const uint64_t count = most / chunk;
  if (count < 2 || count >= kNoChunk) {
    return fail(ErrorCode::kInvalidArgument, "no compressed pool can be of %llu bytes",
                static_cast<unsigned long long>(most.value()));
  }
  auto arena = Mapping::anonymous(chunk * count);
  if (!arena) return tl::unexpected(arena.error());
  // Its memory is counted by the page.
  raw::madvise(arena->data(), arena->size().value(), MADV_NOHUGEPAGE);
  auto chunks = Mapping::anonymous(Bytes(roundUp(count * sizeof(Chunk), kPageSize)));
  if (!chunks) return tl::unexpected(chunks.error());
  auto state =
      Mapping::anonymous(Bytes(roundUp(static_cast<uint64_t>(LZ4_sizeofState()), kPageSize)));
  if (!state) return tl::unexpected(state.error());
  return std::unique_ptr<CompressedPool>(
      new CompressedPool(std::move(*arena), std::move(*chunks), std::move(*state)));
}

Result<FrameRun> CompressedPool::allocate(PageCount) {
  return fail(ErrorCode::kNoSpace, "the compressed pool takes pages by their bytes alone");
}

Status CompressedPool::write(FrameRun, const std::byte*) {
  return fail(ErrorCode::kUnsupported, "the compressed pool takes pages by their bytes alone");
}

FrameTable& CompressedPool::table() {
  TP_CHECK_OP(kind(), !=, TierKind::kCompressed);  // it has no table of frames
  __builtin_unreachable();
}

CompressedPool::Header CompressedPool::headerOf(FrameIndex frame) const {
  Header header{PageIndex(), 0};
  memcpy(&header, at(frame), sizeof header);
  return header;
}

Status CompressedPool::read(FrameRun run, std::byte* memory) {
  for (uint64_t i = 0; i < run.count.value(); ++i) {
    const FrameIndex frame = run.first + i;
    const Header header = headerOf(frame);
    const bool whole =
        header.bytes() <= kMostStored &&
        LZ4_decompress_safe(reinterpret_cast<const char*>(at(frame) + sizeof header),
                            reinterpret_cast<char*>(memory + i * kPageSize),
                            static_cast<int>(header.bytes()), kPageSize) == int{kPageSize};
    if (!whole) return fail(ErrorCode::kCorrupt, "a compressed page has been overwritten");
  }
  traffic_.reads_bytes.fetch_add(toBytes(run.count).value(), std::memory_order_relaxed);
  return {};
}

void CompressedPool::release(FrameRun run) {
  for (uint64_t i = 0; i < run.count.value(); ++i) {
    const FrameIndex frame = run.first + i;
    const uint64_t units = unitsOf(frame);
    pages_.fetch_sub(1, std::memory_order_relaxed);
    units_.fetch_sub(units, std::memory_order_relaxed);
    dropUnits(static_cast<uint32_t>(frame.value() / kUnitsPerChunk), static_cast<uint32_t>(units));
  }
}

void CompressedPool::dropUnits(uint32_t chunk, uint32_t units) {
  // Release: pairs with the acquire in freeEmpty().
  const uint32_t before = chunks()[chunk].live.fetch_sub(units, std::memory_order_release);
  TP_CHECK_OP(before, >=, units);
  if (before == units) empty_chunks_.fetch_add(1, std::memory_order_relaxed);
}

bool CompressedPool::pack(const std::byte* page) {
  constexpr int kFastest = 1;
  const int bytes = LZ4_compress_fast_extState(
      state_.data(), reinterpret_cast<const char*>(page), reinterpret_cast<char*>(packed_.data()),
      kPageSize, static_cast<int>(kMostStored - sizeof(Header)), kFastest);
  packed_bytes_ = bytes > 0 ? static_cast<uint64_t>(bytes) : 0;
  packed_units_ = unitsFor(packed_bytes_);
  return bytes > 0;
}

bool CompressedPool::beginNew() {
  return begin(Log::kNew, youngest_, put_.load(std::memory_order_relaxed));
}

bool CompressedPool::beginMoved(uint32_t like) {
  return begin(Log::kMoved, like, chunks()[like].born);
}

bool CompressedPool::begin(Log log, uint32_t older, uint64_t born) {
  uint32_t chunk = free_;
  if (chunk != kNoChunk) {
    free_ = chunks()[chunk].younger;
  } else if (never_used_ < chunk_count_) {
    chunk = never_used_++;
  } else {
    return false;
  }
  seal(log);
  Chunk& begun = chunks()[chunk];
  begun.live.store(1, std::memory_order_relaxed);
  begun.used = 0;
  begun.born = born;
  link(chunk, older);
  filled(log) = {chunk, 0};
  chunks_in_use_.fetch_add(1, std::memory_order_relaxed);
  return true;
}

void CompressedPool::seal(Log log) {
  Filled& full = filled(log);
  if (full.chunk == kNoChunk) return;
  chunks()[full.chunk].used = full.used;
  dropUnits(std::exchange(full.chunk, kNoChunk), 1);
}

void CompressedPool::link(uint32_t chunk, uint32_t older) {
  Chunk& linked = chunks()[chunk];
  linked.older = older;
  linked.younger = older == kNoChunk ? oldest_ : chunks()[older].younger;
  (older == kNoChunk ? oldest_ : chunks()[older].younger) = chunk;
  (linked.younger == kNoChunk ? youngest_ : chunks()[linked.younger].older) = chunk;
  oldest_born_.store(chunks()[oldest_].born, std::memory_order_relaxed);
}

void CompressedPool::unlink(uint32_t chunk) {
  const Chunk& gone = chunks()[chunk];
  (gone.older == kNoChunk ? oldest_ : chunks()[gone.older].younger) = gone.younger;
  (gone.younger == kNoChunk ? youngest_ : chunks()[gone.younger].older) = gone.older;
  if (oldest_ != kNoChunk) {
    oldest_born_.store(chunks()[oldest_].born, std::memory_order_relaxed);
  }
}

FrameIndex CompressedPool::take(Log log, uint64_t units) {
  TP_CHECK(fits(log, units));
  Filled& to = filled(log);
  const FrameIndex frame(to.chunk * kUnitsPerChunk + to.used);
  to.used += static_cast<uint32_t>(units);
  chunks()[to.chunk].live.fetch_add(static_cast<uint32_t>(units), std::memory_order_relaxed);
  pages_.fetch_add(1, std::memory_order_relaxed);
  units_.fetch_add(units, std::memory_order_relaxed);
  return frame;
}

FrameIndex CompressedPool::put(PageIndex page) {
  TP_CHECK_OP(packed_bytes_, >, 0u);
  const FrameIndex frame = take(Log::kNew, packed_units_);
  const Header header(page, packed_bytes_);
  memcpy(at(frame), &header, sizeof header);
  memcpy(at(frame) + sizeof header, packed_.data(), packed_bytes_);
  put_.fetch_add(1, std::memory_order_relaxed);
  traffic_.writes_bytes.fetch_add(kPageSize, std::memory_order_relaxed);
  return frame;
}

FrameIndex CompressedPool::move(FrameIndex frame) {
  const Header header = headerOf(frame);
  const FrameIndex to = take(Log::kMoved, header.units());
  memcpy(at(to), at(frame), sizeof header + header.bytes());
  return to;
}

PageCount CompressedPool::freeEmpty() {
  if (empty_chunks_.load(std::memory_order_relaxed) == 0) return PageCount();
  uint64_t freed = 0;
  for (uint32_t chunk = oldest_; chunk != kNoChunk;) {
    Chunk& looked = chunks()[chunk];
    const uint32_t next = looked.younger;
    // Acquire: who released its frames has done with their bytes.
    if (looked.live.load(std::memory_order_acquire) == 0) {
      unlink(chunk);
      const FrameIndex first(chunk * kUnitsPerChunk);
      [[maybe_unused]] const Status gone =
          os::discard(reinterpret_cast<uintptr_t>(at(first)), toBytes(kChunkPages));
      looked.younger = std::exchange(free_, chunk);
      ++freed;
    }
    chunk = next;
  }
  empty_chunks_.fetch_sub(freed, std::memory_order_relaxed);
  chunks_in_use_.fetch_sub(freed, std::memory_order_relaxed);
  return kChunkPages * freed;
}

uint32_t CompressedPool::fullFrom(uint32_t chunk) const {
  while (chunk != kNoChunk && isFilling(chunk)) chunk = chunks()[chunk].younger;
  return chunk;
}

uint32_t CompressedPool::emptiest() const {
  uint32_t found = kNoChunk;
  uint32_t least = ~uint32_t{0};
  for (uint32_t chunk = oldest(); chunk != kNoChunk; chunk = younger(chunk)) {
    const uint32_t live = chunks()[chunk].live.load(std::memory_order_relaxed);
    if (live >= least) continue;
    least = live;
    found = chunk;
  }
  return found;
}

uint32_t CompressedPool::ageOf(FrameIndex frame) const {
  const uint64_t now = put_.load(std::memory_order_relaxed);
  const uint64_t all = now - oldest_born_.load(std::memory_order_relaxed);
  const uint64_t age = now - chunks()[frame.value() / kUnitsPerChunk].born;
  return all == 0 ? 0 : static_cast<uint32_t>(std::min<uint64_t>(age * kOldest / all, kOldest));
}

}  // namespace tidepool
