// SPDX-License-Identifier: Apache-2.0
// BatchStep against sums one after the other: which rows take a step, with which gradients in which
// order, and how steps are counted.
#include "allocator/table/batch_step.h"

#include <gtest/gtest.h>

#include <cstring>
#include <map>
#include <random>
#include <vector>

namespace tidepool {
namespace {

constexpr uint32_t kDim = 5;
constexpr size_t kStride = 7;  // the gradients lie apart
constexpr RowNumber kRows = 12;
constexpr RowFormat kFormat{ElementType::kFloat32, Optimizer::kSgd, kDim};

/// Bags of the rows whose numbers are the ids; look-ups of `without` have none.
struct Example {
  std::vector<int64_t> ids, offsets{0};
  std::vector<uint32_t> without;
  std::vector<float> weights, gradients;
  Batch batch;

  explicit Example(std::mt19937_64& random) {
    const size_t bags = random() % 6 + 1;
    for (size_t bag = 0; bag < bags; ++bag) {
      for (size_t i = random() % 6; i > 0; --i) {
        if (random() % 5 == 0) without.push_back(static_cast<uint32_t>(ids.size()));
        ids.push_back(static_cast<int64_t>(random() % kRows));
        weights.push_back(number(random));
      }
      offsets.push_back(static_cast<int64_t>(ids.size()));
    }
    for (size_t i = 0; i < bags * kStride; ++i) gradients.push_back(number(random));
    batch = {ids, offsets};
    if (random() % 2 == 0) batch.weights = weights.data();
    if (random() % 2 == 0) batch.pooling = Pooling::kMean;
  }
  static float number(std::mt19937_64& random) {
    return static_cast<float>(random() % 2000) / 1000 - 1;
  }

  std::vector<RowNumber> rows() const {
    std::vector<RowNumber> rows;
    for (size_t i = 0, skipped = 0; i < ids.size(); ++i) {
      if (skipped < without.size() && without[skipped] == i) {
        ++skipped;
      } else {
        rows.push_back(static_cast<RowNumber>(ids[i]));
      }
    }
    return rows;
  }
  /// The sum of each row that takes a step, as the kernels add.
  std::map<RowNumber, std::vector<float>> sums() const {
    std::map<RowNumber, std::vector<float>> sums;
    size_t skipped = 0;
    for (size_t bag = 0; bag + 1 < offsets.size(); ++bag) {
      for (auto i = static_cast<size_t>(offsets[bag]); i < static_cast<size_t>(offsets[bag + 1]);
           ++i) {
        if (skipped < without.size() && without[skipped] == i) {
          ++skipped;
          continue;
        }
        float weight = batch.weights == nullptr ? 1.0f : batch.weights[i];
        if (batch.pooling == Pooling::kMean) {
          weight /= static_cast<float>(offsets[bag + 1] - offsets[bag]);
        }
        auto& sum = sums.emplace(static_cast<RowNumber>(ids[i]), kDim).first->second;
        kernels().accumulate(sum.data(), &gradients[bag * kStride], weight, kDim);
      }
    }
    return sums;
  }
};

TEST(BatchStep, TakesEachRowOnceWithItsSumInTheOrderOfTheBatch) {
  std::mt19937_64 random(1);
  OptimizerStep rates;
  rates.learning_rate = 0.25f;
  BatchStep step(kFormat, rates);
  for (uint64_t turn = 1; turn <= 500; ++turn) {
    const Example example(random);
    step.begin({example.batch, example.gradients.data(), kStride}, example.rows(), example.without);
    EXPECT_EQ(step.number(), turn);
    const auto sums = example.sums();
    ASSERT_EQ(step.rows().size(), sums.size());
    size_t i = 0;
    for (const auto& [row, sum] : sums) {
      ASSERT_EQ(step.rows()[i], row);
      alignas(RowFormat::kAlignment) std::byte got[64] = {}, wanted[64] = {};
      float room[kDim];
      step.apply(i++, got, room);
      rates.step = turn;
      kernels().apply(kFormat, prepared(rates), sum.data(), wanted);
      ASSERT_EQ(memcmp(got, wanted, sizeof got), 0) << "row " << row;
    }
  }
}

TEST(BatchStep, CountsStepsThroughChangesOfRates) {
  OptimizerStep rates;
  rates.step = 77;
  BatchStep step(kFormat, rates);
  EXPECT_EQ(step.number(), 0u);
  const int64_t offsets[] = {0};
  step.begin({{{}, offsets}, nullptr, 0}, {}, {});
  EXPECT_TRUE(step.rows().empty());
  step.setRates(rates);
  EXPECT_EQ(step.number(), 1u);
  step.setNumber(9);
  step.begin({{{}, offsets}, nullptr, 0}, {}, {});
  EXPECT_EQ(step.number(), 10u);
}

}  // namespace
}  // namespace tidepool
