// SPDX-License-Identifier: Apache-2.0
// Next uses of rows in the known batches. See row_future.h.
#include "bench/row_future.h"

#include <algorithm>

#include "allocator/policy/row_sketch.h"
#include "runtime/base/check.h"

namespace tidepool {
namespace {

// Skewed lookups repeat rows: half as many places as lookups leave buckets half empty.
uint64_t bucketsFor(uint64_t most_lookups) { return most_lookups / 16 + 1; }

}  // namespace

Bytes RowFuture::memoryFor(uint64_t most_lookups) {
  return Bytes((bucketsFor(most_lookups) + 1) * sizeof(Bucket) + most_lookups);
}

RowFuture::RowFuture(uint64_t most_lookups, uint64_t seed, std::span<std::byte> memory)
    : most_(most_lookups), seed_(seed) {
  TP_CHECK_OP(memory.size(), >=, memoryFor(most_lookups).value());
  TP_CHECK_OP(most_lookups, >, 0u);
  TP_CHECK_OP(most_lookups, <, uint64_t{1} << 31);
  const uint64_t count = bucketsFor(most_lookups);
  const auto begin = roundUp(reinterpret_cast<uintptr_t>(memory.data()), alignof(Bucket));
  auto* buckets = reinterpret_cast<Bucket*>(begin);
  buckets_ = {buckets, count};
  next_ = {reinterpret_cast<uint8_t*>(buckets + count), most_};
}

// Positions are kept modulo 2^32, and as one more than they are: 0 is an empty place. What is older
// than the oldest pending lookup is as good as empty.
bool RowFuture::live(uint32_t position) const {
  const auto behind = static_cast<uint32_t>(announced_ + 1) - position;
  return position != 0 && behind >= 1 && behind <= announced_ - used_;
}

bool RowFuture::announce(RowIndex row, Step step) {
  TP_CHECK(room());
  const uint64_t hash = rowHash(row.value(), seed_);
  Bucket& bucket = buckets_[(hash >> 32) * buckets_.size() >> 32];
  const auto tag = static_cast<uint16_t>(hash);
  const auto position = static_cast<uint32_t>(announced_ + 1);
  next_[announced_ % most_] = NextUse().code();
  unsigned place = kWays;
  bool first = true;
  for (unsigned i = 0; i < kWays; ++i) {
    if (!live(bucket.position[i])) {
      if (place == kWays) place = i;
      continue;
    }
    if (bucket.tag[i] != tag) continue;
    const uint32_t behind = position - bucket.position[i];
    next_[(announced_ - behind) % most_] = NextUse(step).code();
    place = i;
    first = false;
    break;
  }
  if (place < kWays) {
    bucket.position[place] = position;
    bucket.tag[place] = tag;
  }
  ++announced_;
  return first;
}

NextUse RowFuture::use() {
  TP_CHECK_OP(used_, <, announced_);
  return NextUse(next_[used_++ % most_]);
}

}  // namespace tidepool
