// SPDX-License-Identifier: Apache-2.0
// The steps of a table's optimizer: rates, how many there were, and of a batch which rows take one
// and with what sum of gradients. Sums are added up in the order of the batch, so that they are the
// same however the work is shared. Under the table's lock; apply() may run in several workers at
// once, for different rows.
#pragma once

#include <span>
#include <vector>

#include "allocator/kernels/kernels.h"
#include "allocator/table/batch.h"
#include "allocator/table/occurrences.h"

namespace tidepool {

/// The gradient of every bag's result. Borrowed.
struct BagGradients {
  Batch batch;
  const float* values = nullptr;  // bags x dim
  size_t stride = 0;              // floats from one bag's gradient to the next
};

class BatchStep {
 public:
  /// The number of `rates` is not looked at: no step was taken.
  BatchStep(const RowFormat& format, const OptimizerStep& rates)
      : format_(format), settings_(rates) {
    settings_.step = 0;
  }

  /// For the next steps.
  void setRates(const OptimizerStep& rates);
  /// Steps so far.
  uint64_t number() const { return settings_.step; }
  /// As another table has had them.
  void setNumber(uint64_t steps) { settings_.step = steps; }

  /// Counts one step more, of these rows: of the batch's look-ups in their order, but for those of
  /// `without`, which are ascending. At most 2^32 - 1 look-ups.
  void begin(const BagGradients& gradients, std::span<const RowNumber> rows,
             std::span<const uint32_t> without);
  /// The rows that take it, each once, ascending.
  std::span<const RowNumber> rows() const { return occurrences_.rows(); }
  /// The i-th of rows() takes it; until the next begin(), while the gradients are there. `sum` is
  /// room for a row's floats.
  void apply(size_t i, std::byte* row, float* sum) const;

 private:
  const RowFormat format_;
  const Kernels& kernels_ = kernels();
  OptimizerStep settings_, prepared_;
  BagGradients gradients_;
  Occurrences occurrences_;
  std::vector<uint32_t> bag_of_;  // by look-up
};

}  // namespace tidepool
