// SPDX-License-Identifier: Apache-2.0
// FrameAllocator: next-fit over a three-level bitmap. Bits past the last frame are set once at
// creation, so that no search has to compare against the capacity inside its inner loop.
#include "runtime/tier/frame_allocator.h"

#include <algorithm>
#include <bit>

#include "runtime/base/check.h"

namespace tidepool {
namespace {

constexpr uint64_t kWordBits = 64;
constexpr uint64_t kFull = ~uint64_t{0};
// Runs looked at before the longest one so far is taken. Bounds an allocation in a badly
// fragmented tier to a few microseconds; a tier that is not fragmented hits at the first or second.
constexpr int kMaxProbes = 256;

uint64_t wordsFor(uint64_t bits) { return (bits + kWordBits - 1) / kWordBits; }

/// Bits [low, high) of a word, 0 <= low < high <= 64.
uint64_t maskOf(uint64_t low, uint64_t high) {
  const uint64_t upper = high == kWordBits ? kFull : (uint64_t{1} << high) - 1;
  return upper & (kFull << low);
}

}  // namespace

Result<std::unique_ptr<FrameAllocator>> FrameAllocator::create(PageCount capacity) {
  if (capacity.value() == 0) {
    return fail(ErrorCode::kInvalidArgument, "a tier needs at least one page of memory");
  }
  std::unique_ptr<FrameAllocator> allocator(new FrameAllocator(capacity));
  TP_TRY(allocator->mapLevels());
  return allocator;
}

Status FrameAllocator::mapLevels() {
  MutexLock lock(mutex_);
  uint64_t bits = capacity_.value();
  for (Level& level : levels_) {
    level.words = wordsFor(bits);
    auto memory = Mapping::anonymous(Bytes(roundUp(level.words * sizeof(uint64_t), kPageSize)));
    if (!memory) return tl::unexpected(memory.error());
    level.memory = std::move(*memory);
    const uint64_t spare = bits % kWordBits;
    if (spare != 0) level.data()[level.words - 1] = maskOf(spare, kWordBits);
    bits = level.words;
  }
  return {};
}

uint64_t FrameAllocator::nextOpenWord(uint64_t word) const {
  const uint64_t count = levels_[0].words;
  if (word >= count) return count;
  uint64_t index = word / kWordBits;
  const uint64_t here = ~levels_[1].data()[index] & (kFull << (word % kWordBits));
  if (here != 0) return index * kWordBits + static_cast<uint64_t>(std::countr_zero(here));
  ++index;
  for (uint64_t group = index / kWordBits; group < levels_[2].words; ++group) {
    const uint64_t skip = group == index / kWordBits ? index % kWordBits : 0;
    const uint64_t open = ~levels_[2].data()[group] & (kFull << skip);
    if (open == 0) continue;
    index = group * kWordBits + static_cast<uint64_t>(std::countr_zero(open));
    return index * kWordBits + static_cast<uint64_t>(std::countr_zero(~levels_[1].data()[index]));
  }
  return count;
}

uint64_t FrameAllocator::nextFree(uint64_t from) const {
  if (from >= capacity_.value()) return capacity_.value();
  uint64_t word = from / kWordBits;
  uint64_t free = ~levels_[0].data()[word] & (kFull << (from % kWordBits));
  if (free == 0) {
    word = nextOpenWord(word + 1);
    if (word >= levels_[0].words) return capacity_.value();
    free = ~levels_[0].data()[word];
  }
  return word * kWordBits + static_cast<uint64_t>(std::countr_zero(free));
}

uint64_t FrameAllocator::runEnd(uint64_t from, uint64_t limit) const {
  uint64_t word = from / kWordBits;
  uint64_t used = levels_[0].data()[word] & (kFull << (from % kWordBits));
  while (used == 0) {
    if (++word * kWordBits >= limit) return limit;
    used = levels_[0].data()[word];
  }
  return std::min(limit, word * kWordBits + static_cast<uint64_t>(std::countr_zero(used)));
}

void FrameAllocator::mark(uint64_t first, uint64_t count) {
  for (uint64_t at = first, end = first + count; at < end;) {
    const uint64_t word = at / kWordBits;
    const uint64_t stop = std::min(end, (word + 1) * kWordBits);
    const uint64_t mask = maskOf(at % kWordBits, stop - word * kWordBits);
    uint64_t& bits = levels_[0].data()[word];
    TP_CHECK_OP(bits & mask, ==, 0u);
    bits |= mask;
    if (bits == kFull) {
      uint64_t& above = levels_[1].data()[word / kWordBits];
      above |= uint64_t{1} << (word % kWordBits);
      const uint64_t index = word / kWordBits;
      if (above == kFull) {
        levels_[2].data()[index / kWordBits] |= uint64_t{1} << (index % kWordBits);
      }
    }
    at = stop;
  }
}

void FrameAllocator::clear(uint64_t first, uint64_t count) {
  for (uint64_t at = first, end = first + count; at < end;) {
    const uint64_t word = at / kWordBits;
    const uint64_t stop = std::min(end, (word + 1) * kWordBits);
    const uint64_t mask = maskOf(at % kWordBits, stop - word * kWordBits);
    uint64_t& bits = levels_[0].data()[word];
    TP_CHECK_OP(bits & mask, ==, mask);  // else: a frame is given back twice
    bits &= ~mask;
    const uint64_t index = word / kWordBits;
    levels_[1].data()[index] &= ~(uint64_t{1} << (word % kWordBits));
    levels_[2].data()[index / kWordBits] &= ~(uint64_t{1} << (index % kWordBits));
    at = stop;
  }
}

Result<FrameRun> FrameAllocator::allocate(PageCount wanted) {
  if (wanted.value() == 0) return fail(ErrorCode::kInvalidArgument, "no frames wanted");
  MutexLock lock(mutex_);
  const uint64_t capacity = capacity_.value();
  uint64_t best_first = 0;
  uint64_t best_count = 0;
  uint64_t at = cursor_;
  bool wrapped = false;
  for (int probe = 0; probe < kMaxProbes && best_count < wanted.value(); ++probe) {
    at = nextFree(at);
    if (at >= capacity) {
      if (wrapped) break;
      wrapped = true;
      at = 0;
      continue;
    }
    const uint64_t end = runEnd(at, at + std::min(wanted.value(), capacity - at));
    if (end - at > best_count) {
      best_first = at;
      best_count = end - at;
    }
    at = end;
  }
  if (best_count == 0) {
    return fail(ErrorCode::kNoSpace, "all %llu pages of the tier are in use",
                static_cast<unsigned long long>(capacity));
  }
  mark(best_first, best_count);
  cursor_ = best_first + best_count;
  // Relaxed: readers want the number only; the frames themselves are guarded by mutex_.
  used_.fetch_add(best_count, std::memory_order_relaxed);
  return FrameRun{FrameIndex(best_first), PageCount(best_count)};
}

void FrameAllocator::release(FrameRun run) {
  const uint64_t first = run.first.value();
  const uint64_t count = run.count.value();
  TP_CHECK_OP(first, <=, capacity_.value());
  TP_CHECK_OP(count, <=, capacity_.value() - first);
  MutexLock lock(mutex_);
  clear(first, count);
  used_.fetch_sub(count, std::memory_order_relaxed);  // as in allocate()
}

}  // namespace tidepool
