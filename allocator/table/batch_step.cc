// SPDX-License-Identifier: Apache-2.0
// BatchStep: a batch is ordered by row; then every row that occurs takes one step.
#include "allocator/table/batch_step.h"

#include <algorithm>

namespace tidepool {

void BatchStep::setRates(const OptimizerStep& rates) {
  const uint64_t steps = settings_.step;
  settings_ = rates;
  settings_.step = steps;
}

void BatchStep::begin(const BagGradients& gradients, std::span<const RowNumber> rows,
                      std::span<const uint32_t> without) {
  gradients_ = gradients;
  occurrences_.order(rows, without);
  const Batch& batch = gradients_.batch;
  bag_of_.resize(batch.ids.size());
  for (size_t bag = 0; bag < batch.bags(); ++bag) {
    std::fill(bag_of_.begin() + batch.offsets[bag], bag_of_.begin() + batch.offsets[bag + 1],
              static_cast<uint32_t>(bag));
  }
  ++settings_.step;
  prepared_ = prepared(settings_);
}

void BatchStep::apply(size_t i, std::byte* row, float* sum) const {
  const Batch& batch = gradients_.batch;
  std::fill(sum, sum + format_.dim, 0.0f);
  for (const uint32_t position : occurrences_.positions(i)) {
    const uint32_t bag = bag_of_[position];
    float weight = batch.weights == nullptr ? 1.0f : batch.weights[position];
    if (batch.pooling == Pooling::kMean) {
      weight /= static_cast<float>(batch.offsets[bag + 1] - batch.offsets[bag]);
    }
    kernels_.accumulate(sum, gradients_.values + bag * gradients_.stride, weight, format_.dim);
  }
  kernels_.apply(format_, prepared_, sum, row);
}

}  // namespace tidepool
