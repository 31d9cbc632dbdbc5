// SPDX-License-Identifier: Apache-2.0
// FrameBitmap: next-fit over three levels of bits. Bits past the last frame are set once, by
// format(), so that no search has to compare against the capacity inside its inner loop.
#include "runtime/tier/frame_bitmap.h"

#include <algorithm>
#include <bit>

#include "runtime/base/check.h"

namespace tidepool {
namespace {

constexpr uint64_t kFull = ~uint64_t{0};
// Runs looked at before the longest one so far is taken. Bounds an allocation in a badly
// fragmented tier to a few microseconds; a tier that is not fragmented hits at the first or second.
constexpr int kMaxProbes = 256;

}  // namespace

Bytes FrameBitmap::memoryFor(PageCount capacity) {
  uint64_t bits = capacity.value();
  Bytes size;
  for (int level = 0; level < 3; ++level) {
    bits = wordsFor(bits);
    size += Bytes(roundUp(bits * sizeof(uint64_t), kPageSize));
  }
  return size;
}

FrameBitmap::FrameBitmap(PageCount capacity, std::byte* memory) : capacity_(capacity.value()) {
  uint64_t bits = capacity_;
  for (Level& level : levels_) {
    level.data = reinterpret_cast<uint64_t*>(memory);
    level.words = wordsFor(bits);
    memory += roundUp(level.words * sizeof(uint64_t), kPageSize);
    bits = level.words;
  }
}

void FrameBitmap::format() {
  uint64_t bits = capacity_;
  for (Level& level : levels_) {
    const uint64_t spare = bits % kWordBits;
    if (spare != 0) level.data[level.words - 1] = maskOf(spare, kWordBits);
    bits = level.words;
  }
}

uint64_t FrameBitmap::nextOpenWord(uint64_t word) const {
  const uint64_t count = levels_[0].words;
  if (word >= count) return count;
  uint64_t index = word / kWordBits;
  const uint64_t here = ~levels_[1].data[index] & (kFull << (word % kWordBits));
  if (here != 0) return index * kWordBits + static_cast<uint64_t>(std::countr_zero(here));
  ++index;
  for (uint64_t group = index / kWordBits; group < levels_[2].words; ++group) {
    const uint64_t skip = group == index / kWordBits ? index % kWordBits : 0;
    const uint64_t open = ~levels_[2].data[group] & (kFull << skip);
    if (open == 0) continue;
    index = group * kWordBits + static_cast<uint64_t>(std::countr_zero(open));
    return index * kWordBits + static_cast<uint64_t>(std::countr_zero(~levels_[1].data[index]));
  }
  return count;
}

uint64_t FrameBitmap::nextFree(uint64_t from) const {
  if (from >= capacity_) return capacity_;
  uint64_t word = from / kWordBits;
  uint64_t free = ~levels_[0].data[word] & (kFull << (from % kWordBits));
  if (free == 0) {
    word = nextOpenWord(word + 1);
    if (word >= levels_[0].words) return capacity_;
    free = ~levels_[0].data[word];
  }
  return word * kWordBits + static_cast<uint64_t>(std::countr_zero(free));
}

uint64_t FrameBitmap::runEnd(uint64_t from, uint64_t limit) const {
  uint64_t word = from / kWordBits;
  uint64_t used = levels_[0].data[word] & (kFull << (from % kWordBits));
  while (used == 0) {
    if (++word * kWordBits >= limit) return limit;
    used = levels_[0].data[word];
  }
  return std::min(limit, word * kWordBits + static_cast<uint64_t>(std::countr_zero(used)));
}

FrameBitmap::Found FrameBitmap::find(uint64_t from, uint64_t wanted, uint64_t enough,
                                     uint64_t limit) const {
  Found best;
  uint64_t at = from;
  bool wrapped = false;
  for (int probe = 0; probe < kMaxProbes && best.count < enough; ++probe) {
    at = nextFree(at);
    if (at >= limit) {
      if (wrapped) break;
      wrapped = true;
      at = 0;
      continue;
    }
    const uint64_t end = runEnd(at, at + std::min(wanted, limit - at));
    if (end - at > best.count) best = {.first = at, .count = end - at};
    at = end;
  }
  best.stopped = at;
  return best;
}

FrameBitmap::Found FrameBitmap::findWhole(uint64_t wanted) const {
  for (uint64_t at = nextFree(0); at < capacity_ && wanted <= capacity_ - at;) {
    const uint64_t end = runEnd(at, at + wanted);
    if (end - at == wanted) return {.first = at, .count = wanted};
    at = nextFree(end);
  }
  return {};
}

void FrameBitmap::set(uint64_t word, uint64_t mask) {
  uint64_t& bits = levels_[0].data[word];
  TP_CHECK_OP(bits & mask, ==, 0u);
  bits |= mask;
  if (bits != kFull) return;
  const uint64_t index = word / kWordBits;
  uint64_t& above = levels_[1].data[index];
  above |= uint64_t{1} << (word % kWordBits);
  if (above == kFull) {
    levels_[2].data[index / kWordBits] |= uint64_t{1} << (index % kWordBits);
  }
}

void FrameBitmap::clear(uint64_t word, uint64_t mask) {
  uint64_t& bits = levels_[0].data[word];
  TP_CHECK_OP(bits & mask, ==, mask);
  bits &= ~mask;
  const uint64_t index = word / kWordBits;
  levels_[1].data[index] &= ~(uint64_t{1} << (word % kWordBits));
  levels_[2].data[index / kWordBits] &= ~(uint64_t{1} << (index % kWordBits));
}

}  // namespace tidepool
