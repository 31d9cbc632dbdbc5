// SPDX-License-Identifier: Apache-2.0
// FirstValues.
#include "allocator/table/first_values.h"

#include <cstring>

namespace tidepool {

FirstValues::FirstValues(const RowFormat& format, const Initializer& initializer)
    : format_(format), initializer_(initializer), kernels_(kernels()) {
  if (!initializer.sameForAll()) return;
  std::vector<std::byte> row(format.stride());
  make(0, row.data());
  row_ = std::move(row);
}

void FirstValues::encode(uint64_t id, std::byte* row) const {
  if (row_.empty()) return make(id, row);
  memcpy(row, row_.data(), row_.size());
}

void FirstValues::make(uint64_t id, std::byte* row) const {
  static thread_local std::vector<float> elements;
  elements.resize(format_.dim);
  initializer_.fill(id, elements);
  memset(row, 0, format_.stride());  // state, and what lies between it and the elements
  kernels_.encode(format_, elements.data(), row);
}

}  // namespace tidepool
