// SPDX-License-Identifier: Apache-2.0
// RowBits.
#include "allocator/table/row_bits.h"

namespace tidepool {

Result<RowBits> RowBits::create(RowNumber rows) {
  auto memory = Mapping::anonymous(memoryFor(rows));
  if (!memory) return tl::unexpected(memory.error());
  RowBits bits;
  bits.memory_ = std::move(*memory);
  return bits;
}

void RowBits::add(const RowBits& other) {
  for (uint64_t index = 0; index < memory_.size().value() / 8; ++index) {
    const uint64_t more = other.word(index);
    if (more != 0) words()[index].fetch_or(more, std::memory_order_relaxed);
  }
}

void RowBits::assign(std::span<const uint64_t> from) {
  for (size_t index = 0; index < from.size(); ++index) {
    if (from[index] != 0) words()[index].store(from[index], std::memory_order_relaxed);
  }
}

}  // namespace tidepool
