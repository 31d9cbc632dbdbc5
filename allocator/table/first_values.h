// SPDX-License-Identifier: Apache-2.0
// What the rows of one table begin with, as they lie in memory, their optimizer's state included.
// Immutable, thread-safe.
#pragma once

#include <cstddef>
#include <vector>

#include "allocator/kernels/kernels.h"
#include "allocator/rows/row_format.h"
#include "allocator/table/initializer.h"

namespace tidepool {

class FirstValues {
 public:
  FirstValues(const RowFormat& format, const Initializer& initializer);
  /// Puts what the row of this id begins with there: a whole stride.
  void encode(uint64_t id, std::byte* row) const;

 private:
  void make(uint64_t id, std::byte* row) const;

  const RowFormat format_;
  const Initializer initializer_;
  const Kernels& kernels_;
  std::vector<std::byte> row_;  // where all rows begin alike; empty where each is another
};

}  // namespace tidepool
