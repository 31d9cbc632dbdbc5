// SPDX-License-Identifier: Apache-2.0
// InternalHeap: segregated free lists over 64 KiB chunks, runs of chunks for what is larger. Built
// to be small and certain rather than fast: the runtime allocates at set-up time only.
#include "shim/internal_heap.h"

#include <bit>
#include <cstring>

#include "allocator/arena/raw_syscalls.h"
#include "runtime/base/check.h"
#include "runtime/base/own_stack.h"
#include "runtime/base/units.h"
#include "shim/internal_scope.h"
#include "shim/managed_bounds.h"

namespace tidepool {
namespace {

// Address space, not memory: enough never to be the limit. Less is taken where RLIMIT_AS says so.
constexpr size_t kWantedReservation = 64 * kGiB;
constexpr size_t kLeastReservation = 64 * kMiB;
// A run this long is given back to the kernel when freed (shorter ones stay for reuse).
constexpr size_t kReturnAboveBytes = 256 * kKiB;

constinit InternalHeap process_heap;

/// Service threads allocate here as well, so that who has the lock must not wait for them.
template <typename Work>
auto apart(Work work) {
  return OwnStack::runIf(isManaged(__builtin_frame_address(0)), work);
}

}  // namespace

InternalHeap& internalHeap() { return process_heap; }

// Classes: 16 ... 128 in steps of 16 (0-7), then four steps to each power of two.
int InternalHeap::classOf(size_t size) {
  if (size <= 128) return size == 0 ? 0 : static_cast<int>((size - 1) / 16);
  const int log = std::bit_width(size - 1) - 1;  // 2^log <= size - 1 < 2^(log + 1)
  const int step = static_cast<int>((size - 1) >> (log - 2)) & 3;
  return 8 + (log - 7) * 4 + step;
}

size_t InternalHeap::classSize(int size_class) {
  if (size_class < 8) return static_cast<size_t>(size_class + 1) * 16;
  const int log = 7 + (size_class - 8) / 4;
  const size_t step = static_cast<size_t>((size_class - 8) % 4) + 1;
  return (size_t{1} << log) + (step << (log - 2));
}

bool InternalHeap::reserve() {
  for (size_t bytes = kWantedReservation; bytes >= kLeastReservation; bytes /= 2) {
    void* range = raw::reserve(bytes + kChunkSize);
    if (range == MAP_FAILED) continue;
    const uintptr_t base = roundUp(reinterpret_cast<uintptr_t>(range), kChunkSize);
    const size_t table_bytes = roundUp(bytes / kChunkSize * sizeof(Chunk), kChunkSize);
    if (!raw::commit(reinterpret_cast<void*>(base), table_bytes)) {
      raw::munmap(range, bytes + kChunkSize);
      continue;
    }
    chunks_ = reinterpret_cast<Chunk*>(base);
    used_chunks_ = table_bytes / kChunkSize;  // the table sits in the first chunks
    search_from_ = used_chunks_;
    for (size_t i = 0; i < used_chunks_; ++i) chunks_[i].kind = kLargeTail;
    // Size before base, base with release: contains() never sees a range half set.
    __atomic_store_n(&size_, bytes, __ATOMIC_RELAXED);
    __atomic_store_n(&base_, base, __ATOMIC_RELEASE);
    return true;
  }
  return false;
}

// First fit from the lowest free chunk, then fresh chunks at the end. Returns 0 (never a valid
// chunk: the table is there) when the range is full or the kernel refuses.
size_t InternalHeap::takeRun(size_t chunks) {
  const size_t total = size_ >> kChunkShift;
  size_t start = search_from_;
  for (size_t i = start; i < used_chunks_ && i - start < chunks; ++i) {
    if (chunks_[i].kind != kFree) start = i + 1;
  }
  if (chunks > total || start + chunks > total) return 0;
  if (start + chunks > used_chunks_) {
    const size_t fresh_bytes = (start + chunks - used_chunks_) << kChunkShift;
    if (!raw::commit(chunkAddress(used_chunks_), fresh_bytes)) return 0;
    used_chunks_ = start + chunks;
  }
  return start;
}

void* InternalHeap::allocateLarge(size_t size, size_t alignment) {
  if (size > size_ || alignment > size_) return nullptr;
  const size_t chunks = (size + kChunkSize - 1) >> kChunkShift;
  // The base is aligned to a chunk only, so larger alignments are cut out of a longer run's middle:
  // over-allocate, then keep the aligned part as a run of its own.
  const size_t slack = alignment > kChunkSize ? (alignment >> kChunkShift) : 0;
  const size_t first = takeRun(chunks + slack);
  if (first == 0) return nullptr;
  const uintptr_t aligned = roundUp(reinterpret_cast<uintptr_t>(chunkAddress(first)), alignment);
  const size_t head = (aligned - base_) >> kChunkShift;
  for (size_t i = first; i < first + chunks + slack; ++i) chunks_[i] = {kFree, 0};
  for (size_t i = head; i < head + chunks; ++i) chunks_[i].kind = kLargeTail;
  chunks_[head] = {kLargeHead, static_cast<uint32_t>(chunks)};
  return chunkAddress(head);
}

void* InternalHeap::carve(int size_class) {
  // One at a time: a list through all of a chunk would touch, and so take, all of its pages.
  std::byte*& fresh = fresh_[size_class];
  if (fresh == nullptr) {
    const size_t chunk = takeRun(1);
    if (chunk == 0) return nullptr;
    chunks_[chunk] = {kFirstClass + static_cast<uint32_t>(size_class), 0};
    if (chunk == search_from_) ++search_from_;
    fresh = chunkAddress(chunk);
  }
  std::byte* const block = fresh;
  const size_t size = classSize(size_class);
  fresh += size;
  if (fresh + size > chunkAddress(chunkOf(block) + 1)) fresh = nullptr;
  return block;
}

void* InternalHeap::allocate(size_t size, size_t alignment) {
  return apart([=, this] { return allocateHere(size, alignment); });
}

void* InternalHeap::allocateHere(size_t size, size_t alignment) {
  InternalMark mark;
  const Turn turn(*this);
  if (size_ == 0 && !reserve()) return nullptr;
  // A block of a power-of-two class is aligned to its own size, since chunks are.
  if (alignment > kMinAlignment && size < alignment) size = alignment;
  if (size > kLargestClass) return allocateLarge(size, alignment);
  if (alignment > kMinAlignment) size = std::bit_ceil(size);
  const int size_class = classOf(size);
  TP_CHECK_OP(size_class, <, kClasses);
  FreeBlock* block = free_[size_class];
  if (block == nullptr) return carve(size_class);
  free_[size_class] = block->next;
  return block;
}

void* InternalHeap::allocateZeroed(size_t size) {
  void* block = allocate(size);
  if (block != nullptr) memset(block, 0, size);
  return block;
}

void InternalHeap::release(void* block) {
  apart([=, this] { releaseHere(block); });
}

void InternalHeap::releaseHere(void* block) {
  TP_CHECK(contains(block));
  InternalMark mark;
  const Turn turn(*this);
  const size_t first = chunkOf(block);
  const Chunk chunk = chunks_[first];
  if (chunk.kind >= kFirstClass) {
    auto* entry = static_cast<FreeBlock*>(block);
    entry->next = free_[chunk.kind - kFirstClass];
    free_[chunk.kind - kFirstClass] = entry;
    return;
  }
  TP_CHECK_OP(chunk.kind, ==, kLargeHead);
  TP_CHECK(block == chunkAddress(first));
  const size_t bytes = static_cast<size_t>(chunk.count) << kChunkShift;
  if (bytes >= kReturnAboveBytes) raw::madvise(block, bytes, MADV_DONTNEED);
  for (size_t i = first; i < first + chunk.count; ++i) chunks_[i] = {kFree, 0};
  if (first < search_from_) search_from_ = first;
}

size_t InternalHeap::usableSize(const void* block) {
  return apart([=, this] { return usableSizeHere(block); });
}

size_t InternalHeap::usableSizeHere(const void* block) {
  InternalMark mark;
  const Turn turn(*this);
  const Chunk chunk = chunks_[chunkOf(block)];
  if (chunk.kind >= kFirstClass) return classSize(static_cast<int>(chunk.kind - kFirstClass));
  TP_CHECK_OP(chunk.kind, ==, kLargeHead);
  return static_cast<size_t>(chunk.count) << kChunkShift;
}

}  // namespace tidepool
