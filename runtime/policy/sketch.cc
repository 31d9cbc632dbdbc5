// SPDX-License-Identifier: Apache-2.0
// The blocked 4-bit sketch. See sketch.h. Pure: the hash is fixed, so equal input gives equal
// output on every machine.
#include "runtime/policy/sketch.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "runtime/base/check.h"

namespace tidepool {
namespace {

// The finaliser of splitmix64: every input bit reaches every output bit.
uint64_t mix(uint64_t key) {
  key += 0x9e3779b97f4a7c15ull;
  key = (key ^ (key >> 30)) * 0xbf58476d1ce4e5b9ull;
  key = (key ^ (key >> 27)) * 0x94d049bb133111ebull;
  return key ^ (key >> 31);
}

}  // namespace

Bytes CountSketch::memoryFor(uint64_t keys) {
  return Bytes(std::bit_ceil(std::max<uint64_t>(2 * keys, sizeof(Block))));
}

CountSketch::CountSketch(std::span<std::byte> memory)
    : blocks_(reinterpret_cast<Block*>(memory.data())),
      block_count_(memory.size() / sizeof(Block)) {
  TP_CHECK(std::has_single_bit(memory.size()));
  TP_CHECK_OP(memory.size(), >=, sizeof(Block));
  TP_CHECK_OP(reinterpret_cast<uintptr_t>(memory.data()) % alignof(Block), ==, 0u);
}

CountSketch::Slots CountSketch::slotsOf(uint64_t key) const {
  const uint64_t hash = mix(key);
  Slots slots;
  // The block comes from the low bits, so that doubling the memory splits each block in two.
  slots.block = hash & (block_count_ - 1);
  uint64_t high = mix(hash);
  for (uint32_t row = 0; row < kRows; ++row) {
    slots.index[row] = static_cast<uint32_t>(((high & 0xffff) * kCountersPerRow) >> 16);
    high >>= 16;
  }
  return slots;
}

uint32_t CountSketch::counter(const Block& block, uint32_t row, uint32_t index) {
  return (block.words[row * kWordsPerRow + index / 8] >> (index % 8 * 4)) & 15u;
}

void CountSketch::catchUp(Block& block, uint32_t epoch) {
  const uint32_t behind = epoch - block.epoch;
  if (behind == 0) return;
  block.epoch = epoch;
  if (behind >= 4) {  // four halvings empty any 4-bit counter
    std::memset(block.words, 0, sizeof(block.words));
    return;
  }
  const uint32_t mask = 0x11111111u * (15u >> behind);
  for (uint32_t& word : block.words) word = (word >> behind) & mask;
}

uint32_t CountSketch::add(uint64_t key, uint32_t weight) {
  const Slots slots = slotsOf(key);
  Block& block = blocks_[slots.block];
  catchUp(block, epoch_);
  uint32_t least = kMaxCount;
  for (uint32_t row = 0; row < kRows; ++row) {
    least = std::min(least, counter(block, row, slots.index[row]));
  }
  const uint32_t wanted = std::min(kMaxCount, least + std::min(weight, kMaxCount));
  // Conservative update: raise only the counters that are below the new value.
  for (uint32_t row = 0; row < kRows; ++row) {
    const uint32_t index = slots.index[row];
    if (counter(block, row, index) >= wanted) continue;
    uint32_t& word = block.words[row * kWordsPerRow + index / 8];
    const uint32_t shift = index % 8 * 4;
    word = (word & ~(15u << shift)) | (wanted << shift);
  }
  return wanted;
}

uint32_t CountSketch::estimate(uint64_t key) const {
  const Slots slots = slotsOf(key);
  const Block& block = blocks_[slots.block];
  uint32_t least = kMaxCount;
  for (uint32_t row = 0; row < kRows; ++row) {
    least = std::min(least, counter(block, row, slots.index[row]));
  }
  const uint32_t behind = epoch_ - block.epoch;
  return behind >= 4 ? 0 : least >> behind;
}

void CountSketch::grow(std::span<std::byte> memory) {
  CountSketch larger(memory);
  TP_CHECK_OP(larger.block_count_, >=, block_count_);
  for (uint64_t i = 0; i < larger.block_count_; ++i) {
    larger.blocks_[i] = blocks_[i & (block_count_ - 1)];
  }
  blocks_ = larger.blocks_;
  block_count_ = larger.block_count_;
}

}  // namespace tidepool
