// SPDX-License-Identifier: Apache-2.0
// The counting sketch of missed rows. See row_sketch.h.
#include "allocator/policy/row_sketch.h"

#include <algorithm>
#include <cstring>

#include "runtime/base/check.h"

namespace tidepool {
namespace {

// Half of each of the sixteen counters in a word, or the greater of each two.
uint64_t halved(uint64_t word) { return word >> 1 & 0x7777777777777777ull; }

uint8_t greaterOfBoth(uint8_t a, uint8_t b) {
  return static_cast<uint8_t>(std::max(a & 0x0f, b & 0x0f) | std::max(a & 0xf0, b & 0xf0));
}

}  // namespace

// The upper half of the hash chooses the line, the lower half the counters in it.
uint8_t* RowSketch::lineOf(uint64_t hash) const {
  return memory_.data() + ((hash >> 32) * lines_ >> 32) * kLine;
}

void RowSketch::set(uint8_t* line, uint32_t counter, uint32_t value) {
  const uint32_t shift = counter % 2 * 4;
  uint8_t& byte = line[counter / 2];
  byte = static_cast<uint8_t>((byte & ~(kMost << shift)) | value << shift);
}

uint32_t RowSketch::estimate(uint64_t hash) const {
  const uint8_t* line = lineOf(hash);
  uint32_t least = kMost;
  for (unsigned i = 0; i < kHashes; ++i) least = std::min(least, get(line, counterOf(hash, i)));
  return least;
}

void RowSketch::raise(uint64_t hash, uint32_t count) {
  uint8_t* line = lineOf(hash);
  for (unsigned i = 0; i < kHashes; ++i) {
    const uint32_t counter = counterOf(hash, i);
    if (get(line, counter) < count) set(line, counter, std::min(count, kMost));
  }
}

uint32_t RowSketch::add(uint64_t hash) {
  const uint32_t count = std::min(estimate(hash) + 1, kMost);
  raise(hash, count);
  return count;
}

void RowSketch::halveOne() {
  hand_ = hand_ + 1 < lines_ ? hand_ + 1 : 0;
  uint8_t* line = memory_.data() + hand_ * kLine;
  for (uint64_t i = 0; i < kLine; i += 8) {
    uint64_t word;
    std::memcpy(&word, line + i, 8);
    word = halved(word);
    std::memcpy(line + i, &word, 8);
  }
}

// A new line has the greatest counts of all old lines that share hashes with it. In place: growing
// from the end and shrinking from the begin, no line is written before it was read.
void RowSketch::resize(Bytes bytes) {
  const uint64_t lines = std::max<uint64_t>(bytes.value() / kLine, 1), old = lines_;
  TP_CHECK_OP(lines * kLine, <=, memory_.size());
  uint8_t* data = memory_.data();
  for (uint64_t i = 0; i < lines && old > 0 && lines != old; ++i) {
    const uint64_t line = lines > old ? lines - 1 - i : i;
    const uint64_t first = line * old / lines;
    const uint64_t end = ((line + 1) * old + lines - 1) / lines;
    uint8_t merged[kLine] = {};
    for (uint64_t from = first * kLine; from < end * kLine; ++from) {
      uint8_t& counts = merged[from % kLine];
      counts = greaterOfBoth(counts, data[from]);
    }
    std::memcpy(data + line * kLine, merged, kLine);
  }
  if (lines < old) std::memset(data + lines * kLine, 0, (old - lines) * kLine);
  lines_ = lines;
  hand_ = 0;
}

}  // namespace tidepool
