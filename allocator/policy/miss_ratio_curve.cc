// SPDX-License-Identifier: Apache-2.0
// Reuse distances of sampled rows. See miss_ratio_curve.h.
#include "allocator/policy/miss_ratio_curve.h"

#include <algorithm>
#include <cmath>

namespace tidepool {

/// The sampled rows: by hash (open addressing), by time of last use (a Fenwick tree that counts the
/// rows last used at or before a time), and by how great their hash is (a heap, the greatest
/// first). A row is its hash: two rows alike are one.
struct MissRatioCurve::Sample {
  static constexpr uint32_t kTimes = 4 * kMostRows;
  static constexpr uint32_t kTable = 2 * kMostRows;
  struct Place {
    uint64_t hash = 0;  // 0: empty
    uint32_t time = 0;
  };
  std::array<Place, kTable> table;
  std::array<uint32_t, kTimes + 1> tree{};
  std::array<uint64_t, kMostRows> greatest;
  uint32_t rows = 0;
  uint32_t now = 0;

  uint32_t find(uint64_t hash) const {
    uint32_t at = hash % kTable;
    while (table[at].hash != 0 && table[at].hash != hash) at = (at + 1) % kTable;
    return at;
  }
  void add(uint32_t time, uint32_t by) {
    for (; time <= kTimes; time += time & -time) tree[time] += by;
  }
  uint32_t usedUpTo(uint32_t time) const {
    uint32_t sum = 0;
    for (; time > 0; time -= time & -time) sum += tree[time];
    return sum;
  }
  // Times are used up: they are dealt out again in the same order, from 1.
  void renumber() {
    for (Place& place : table) {
      if (place.hash != 0) place.time = usedUpTo(place.time);
    }
    now = rows;
    tree.fill(0);
    for (uint32_t time = 1; time <= rows; ++time) add(time, 1);
  }
  void insert(uint64_t hash) {
    const uint32_t time = ++now;
    table[find(hash)] = {hash, time};
    add(time, 1);
    greatest[rows++] = hash;
    std::push_heap(greatest.begin(), greatest.begin() + rows);
  }
  uint64_t removeGreatest() {
    std::pop_heap(greatest.begin(), greatest.begin() + rows);
    const uint64_t hash = greatest[--rows];
    uint32_t hole = find(hash);
    add(table[hole].time, UINT32_MAX);
    for (uint32_t at = (hole + 1) % kTable; table[at].hash != 0; at = (at + 1) % kTable) {
      // A place is moved into the hole unless its own chain begins behind the hole.
      const uint32_t home = table[at].hash % kTable;
      if ((at - home + kTable) % kTable < (at - hole + kTable) % kTable) continue;
      table[hole] = table[at];
      hole = at;
    }
    table[hole] = {};
    return hash;
  }
};

MissRatioCurve::MissRatioCurve(uint64_t seed) : seed_(seed), sample_(std::make_unique<Sample>()) {}
MissRatioCurve::~MissRatioCurve() = default;

Bytes MissRatioCurve::metadataBytes() { return Bytes(sizeof(MissRatioCurve) + sizeof(Sample)); }

double MissRatioCurve::sampledShare() const {
  return static_cast<double>(threshold_.load(std::memory_order_relaxed)) * 0x1p-32;
}

// A distance of 1 (the row itself) is in bucket 0, up to 2^(1/4) in 1, and so on.
unsigned MissRatioCurve::bucketOf(double distance) {
  if (distance <= 1) return 0;
  const auto bucket = static_cast<unsigned>(std::ceil(4 * std::log2(distance) - 1e-9));
  return std::min(bucket, kBuckets - 1);
}

SlotCount MissRatioCurve::slotsOf(unsigned bucket) {
  return SlotCount(static_cast<uint64_t>(std::exp2(bucket / 4.0) + 1e-9));
}

void MissRatioCurve::onSampled(RowIndex row) {
  if (!sampled(row)) return;
  const uint64_t hash = rowHash(row.value(), seed_) | 1;  // 0 means empty
  Sample& sample = *sample_;
  if (sample.now == Sample::kTimes) sample.renumber();
  counted_ += 1;
  Sample::Place& place = sample.table[sample.find(hash)];
  if (place.hash == hash) {
    const uint32_t between = sample.rows - sample.usedUpTo(place.time);
    hits_[bucketOf(1 + between / sampledShare())] += 1;
    sample.add(place.time, UINT32_MAX);
    place.time = ++sample.now;
    sample.add(place.time, 1);
    return;
  }
  if (sample.rows == kMostRows) forgetGreatest();
  if (sampled(row)) sample.insert(hash);
}

// The rows with the greatest hash leave the sample, and those with greater ones never enter it.
void MissRatioCurve::forgetGreatest() {
  const double before = sampledShare();
  const uint64_t greatest = sample_->removeGreatest();
  threshold_.store(greatest >> 32, std::memory_order_relaxed);
  while (sample_->rows > 0 && sample_->greatest[0] >> 32 >= greatest >> 32) {
    sample_->removeGreatest();
  }
  scale(sampledShare() / before);
}

void MissRatioCurve::scale(double factor) {
  for (double& hits : hits_) hits *= factor;
  counted_ *= factor;
}

void MissRatioCurve::age() {
  scale(0.5);
  lookups_ *= 0.5;
}

std::array<double, MissRatioCurve::kBuckets> MissRatioCurve::missRatios() const {
  std::array<double, kBuckets> ratios;
  ratios.fill(1);
  if (counted_ <= 0) return ratios;
  const double expected = lookups_ > 0 ? lookups_ * sampledShare() : counted_;
  // Lookups that a sample of this share should have seen and did not, or too many of them, are
  // those of the hottest rows.
  double hits = expected - counted_;
  for (unsigned b = 0; b < kBuckets; ++b) {
    hits += hits_[b];
    ratios[b] = std::clamp(1 - hits / expected, 0.0, 1.0);
  }
  return ratios;
}

double MissRatioCurve::missRatio(SlotCount slots) const {
  if (slots.value() == 0) return 1;
  unsigned bucket = 0;
  while (bucket + 1 < kBuckets && slotsOf(bucket + 1) <= slots) ++bucket;
  return missRatios()[bucket];
}

}  // namespace tidepool
