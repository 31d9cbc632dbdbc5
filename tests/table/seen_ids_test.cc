// SPDX-License-Identifier: Apache-2.0
// SeenIds against counts in a map: exact while all ids have room; with less, no id is admitted
// before it was seen often enough, and one that is seen again soon is remembered.
#include "allocator/table/seen_ids.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <set>
#include <vector>

namespace tidepool {
namespace {

TEST(SeenIds, CountExactlyWhatHasRoom) {
  for (const uint32_t after : {1u, 2u, 5u, 255u}) {
    SeenIds seen = std::move(*SeenIds::create(after, 100));
    std::map<uint64_t, uint32_t> model;
    std::mt19937_64 random(after);
    for (int i = 0; i < 30'000; ++i) {
      const uint64_t id = random() % 100 * 0x9E3779B97F4A7C15ull;
      if (random() % 50 == 0) {
        seen.forget(id);
        model.erase(id);
        continue;
      }
      ASSERT_EQ(seen.see(id), ++model[id] >= after) << "after " << model[id];
    }
    seen.clear();
    ASSERT_EQ(seen.see(1), after == 1);
  }
}

TEST(SeenIds, AdmitNoneTooEarlyAndRememberThoseThatComeAgainSoon) {
  constexpr size_t kRemembered = 50;
  constexpr uint32_t kAfter = 4;
  SeenIds seen = std::move(*SeenIds::create(kAfter, kRemembered));
  std::vector<uint64_t> stream;
  std::map<uint64_t, uint32_t> counts;
  std::mt19937_64 random(3);
  size_t admitted = 0, soon = 0;
  for (size_t at = 0; at < 20'000; ++at) {
    const double unit = static_cast<double>(random() % 1'000'003) / 1'000'003;
    const auto id = static_cast<uint64_t>(2000 * unit * unit * unit);
    stream.push_back(id);
    const bool enough = seen.see(id);
    ASSERT_LE(enough, ++counts[id] >= kAfter) << id;
    // It must be enough if between its last sights never as many others came.
    uint32_t times = 0;
    std::set<uint64_t> others;
    for (size_t back = at + 1; back > 0 && others.size() < kRemembered; --back) {
      if (stream[back - 1] != id) {
        others.insert(stream[back - 1]);
        continue;
      }
      ++times;
      others.clear();
    }
    if (times >= kAfter) {
      ASSERT_TRUE(enough) << id;
      ++soon;
    }
    if (!enough) continue;
    seen.forget(id);
    counts[id] = 0;
    std::replace(stream.begin(), stream.end(), id, ~id);  // as if others had come
    ++admitted;
  }
  EXPECT_GT(admitted, 500u);
  EXPECT_GT(soon, 100u);
}

TEST(SeenIds, CostWhatTheySay) {
  constexpr size_t kRemembered = 100'000;
  SeenIds seen = std::move(*SeenIds::create(2, kRemembered));
  for (uint64_t id = 0; id < 5 * kRemembered / 2; ++id) (void)seen.see(id);
  EXPECT_LE(seen.memory().value(), SeenIds::memoryFor(kRemembered).value());
  EXPECT_LT(SeenIds::memoryFor(kRemembered).value(), 31 * kRemembered);
}

}  // namespace
}  // namespace tidepool
