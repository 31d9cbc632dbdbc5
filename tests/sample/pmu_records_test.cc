// SPDX-License-Identifier: Apache-2.0
// Perf ring decoding on bytes: good records, wrap-around at every offset, and hostile ones.
#include "runtime/sample/pmu_records.h"

#include <gtest/gtest.h>

#include <cstring>
#include <random>
#include <vector>

namespace tidepool {
namespace {

// Plays the kernel: writes records into a ring from an arbitrary start position.
class PmuRingTest : public ::testing::Test {
 protected:
  void put(const void* bytes, size_t size) {
    for (size_t i = 0; i < size; ++i) {
      ring_[head_++ % ring_.size()] = static_cast<const std::byte*>(bytes)[i];
    }
  }
  template <typename T>
  void put(T value) {
    put(&value, sizeof(value));
  }
  void header(uint32_t type, uint16_t size) {
    put(type);
    put<uint16_t>(0);
    put(size);
  }
  void sample(uint64_t address, uint64_t weight, uint64_t source) {
    header(9, 40);
    put<uint32_t>(100);
    put<uint32_t>(101);
    put(address);
    put(weight);
    put(source);
  }
  std::vector<PmuSample> drain(PmuRing& ring) {
    std::vector<PmuSample> out(64);
    out.resize(ring.drain(head_, out));
    return out;
  }

  std::vector<std::byte> ring_ = std::vector<std::byte>(256);
  uint64_t head_ = 0;
};

TEST_F(PmuRingTest, DecodesLoadsAndStores) {
  PmuRing ring(ring_);
  sample(0x7f0000001234, 300, 2);
  sample(0x7f0000005678, uint64_t{1} << 40, 4);
  const auto out = drain(ring);
  ASSERT_EQ(out.size(), 2u);
  EXPECT_EQ(out[0].address, 0x7f0000001234u);
  EXPECT_EQ(out[0].weight, 300u);
  EXPECT_EQ(out[0].process, 100u);
  EXPECT_EQ(out[0].thread, 101u);
  EXPECT_FALSE(out[0].is_store);
  EXPECT_TRUE(out[1].is_store);
  EXPECT_EQ(out[1].weight, UINT32_MAX);
  EXPECT_EQ(ring.tail(), head_);
}

TEST_F(PmuRingTest, SkipsSamplesWithoutAddress) {
  PmuRing ring(ring_);
  sample(0, 0, 1);
  sample(0x1000, 0, 2);
  EXPECT_EQ(drain(ring).size(), 1u);
  EXPECT_EQ(ring.stats().without_address, 1u);
}

TEST_F(PmuRingTest, CountsLossAndThrottling) {
  PmuRing ring(ring_);
  header(2, 24);
  put<uint64_t>(1);
  put<uint64_t>(17);
  header(13, 16);
  put<uint64_t>(5);
  header(5, 32);
  for (int i = 0; i < 3; ++i) put<uint64_t>(0);
  header(77, 16);  // a kind nobody knows yet
  put<uint64_t>(0);
  sample(0x2000, 1, 4);
  EXPECT_EQ(drain(ring).size(), 1u);
  EXPECT_EQ(ring.stats().lost, 22u);
  EXPECT_EQ(ring.stats().throttled, 1u);
  EXPECT_EQ(ring.stats().malformed, 0u);
}

TEST_F(PmuRingTest, WrapsAroundAtEveryOffset) {
  PmuRing ring(ring_);
  for (uint64_t i = 1; i < 500; ++i) {
    // Two sample records and a short one: the end of the ring falls everywhere in turn.
    sample(i << 12, i, i % 2 ? 2 : 4);
    header(6, 8);
    sample(i << 13, i, 2);
    const auto out = drain(ring);
    ASSERT_EQ(out.size(), 2u);
    EXPECT_EQ(out[0].address, i << 12);
    EXPECT_EQ(out[0].is_store, i % 2 == 0);
    EXPECT_EQ(out[1].address, i << 13);
  }
  EXPECT_EQ(ring.stats().malformed, 0u);
}

TEST_F(PmuRingTest, StopsWhenTheOutputIsFullAndGoesOn) {
  PmuRing ring(ring_);
  for (uint64_t i = 1; i <= 5; ++i) sample(i, 0, 2);
  PmuSample two[2];
  EXPECT_EQ(ring.drain(head_, two), 2u);
  EXPECT_EQ(ring.drain(head_, two), 2u);
  EXPECT_EQ(two[1].address, 4u);
  EXPECT_EQ(ring.drain(head_, two), 1u);
  EXPECT_EQ(ring.drain(head_, two), 0u);
}

TEST_F(PmuRingTest, ZeroSizeRecordEndsTheBatch) {
  PmuRing ring(ring_);
  sample(0x1000, 0, 2);
  header(9, 0);
  sample(0x2000, 0, 2);
  EXPECT_EQ(drain(ring).size(), 1u);
  EXPECT_EQ(ring.stats().malformed, 1u);
  EXPECT_EQ(ring.tail(), head_);
  sample(0x3000, 0, 2);  // and the ring is usable afterwards
  EXPECT_EQ(drain(ring).size(), 1u);
}

TEST_F(PmuRingTest, RecordBeyondHeadIsNotRead) {
  PmuRing ring(ring_);
  header(9, 40);
  put<uint64_t>(0);
  EXPECT_TRUE(drain(ring).empty());
  EXPECT_EQ(ring.stats().malformed, 1u);
}

TEST_F(PmuRingTest, HeadInTheMiddleOfAHeader) {
  PmuRing ring(ring_);
  put<uint32_t>(9);
  EXPECT_TRUE(drain(ring).empty());
  EXPECT_EQ(ring.stats().malformed, 1u);
}

TEST_F(PmuRingTest, ShortSampleAndShortLossAreSkipped) {
  PmuRing ring(ring_);
  header(9, 24);
  put<uint64_t>(0xdead);
  put<uint64_t>(0xbeef);
  header(2, 16);
  put<uint64_t>(9);
  sample(0x4000, 0, 2);
  const auto out = drain(ring);
  ASSERT_EQ(out.size(), 1u);
  EXPECT_EQ(out[0].address, 0x4000u);
  EXPECT_EQ(ring.stats().malformed, 2u);
  EXPECT_EQ(ring.stats().lost, 0u);
}

TEST_F(PmuRingTest, HeadFarAheadOrBehindStartsAfresh) {
  PmuRing ring(ring_);
  PmuSample out[4];
  EXPECT_EQ(ring.drain(1'000'000, out), 0u);
  EXPECT_EQ(ring.tail(), 1'000'000u);
  EXPECT_EQ(ring.drain(5, out), 0u);
  EXPECT_EQ(ring.tail(), 5u);
  EXPECT_EQ(ring.stats().malformed, 2u);
}

TEST_F(PmuRingTest, RandomBytesNeverReadOutsideNorHang) {
  std::mt19937_64 random(11);
  for (int round = 0; round < 3000; ++round) {
    for (std::byte& byte : ring_) byte = static_cast<std::byte>(random());
    // Make plausible headers likely, so that the deeper paths are reached.
    for (size_t at = 0; at + 8 <= ring_.size(); at += 8) {
      if (random() % 3) continue;
      const uint32_t type = static_cast<uint32_t>(random() % 15);
      const auto size = static_cast<uint16_t>(random() % 9 * 8);
      std::memcpy(&ring_[at], &type, 4);
      std::memcpy(&ring_[at + 6], &size, 2);
    }
    PmuRing ring(ring_);
    uint64_t head = 0;
    for (int step = 0; step < 20; ++step) {
      head += random() % 400;
      PmuSample out[8];
      for (int calls = 0; ring.tail() != head; ++calls) {
        ASSERT_LE(ring.drain(head, out), 8u);
        ASSERT_LT(calls, 40);
      }
    }
  }
}

}  // namespace
}  // namespace tidepool
