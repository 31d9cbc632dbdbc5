// SPDX-License-Identifier: Apache-2.0
// RowBits.
#include "allocator/table/row_bits.h"

#include <new>

#include "runtime/base/check.h"

namespace tidepool {

Result<RowBits> RowBits::create(RowNumber rows) {
  RowBits bits;
  bits.size_ = memoryFor(rows);
  if (bits.size_ < Bytes(kPageSize)) {
    bits.few_.reset(new (std::nothrow) std::atomic<uint64_t>[bits.size_.value() / 8]());
    if (bits.few_ == nullptr) return fail(ErrorCode::kNoMemory, "no memory for a bit a row");
    return bits;
  }
  auto memory = Mapping::anonymous(bits.size_);
  if (!memory) return tl::unexpected(memory.error());
  bits.memory_ = std::move(*memory);
  return bits;
}

void RowBits::setFirst(RowNumber rows) {
  TP_CHECK_OP(rows, <=, size_.value() * 8);
  for (uint64_t index = 0; index < rows / 64; ++index) {
    words()[index].store(~uint64_t{0}, std::memory_order_relaxed);
  }
  const uint64_t rest = (uint64_t{1} << rows % 64) - 1;
  if (rest != 0) words()[rows / 64].fetch_or(rest, std::memory_order_relaxed);
}

void RowBits::clearAll() {
  for (uint64_t index = 0; index < size_.value() / 8; ++index) {
    if (word(index) != 0) words()[index].store(0, std::memory_order_relaxed);
  }
}

void RowBits::add(const RowBits& other) {
  TP_CHECK_OP(other.size_.value(), ==, size_.value());
  for (uint64_t index = 0; index < size_.value() / 8; ++index) {
    const uint64_t more = other.word(index);
    if (more != 0) words()[index].fetch_or(more, std::memory_order_relaxed);
  }
}

void RowBits::assign(std::span<const uint64_t> from) {
  TP_CHECK_OP(from.size(), <=, size_.value() / 8);
  for (size_t index = 0; index < from.size(); ++index) {
    if (from[index] != 0) words()[index].store(from[index], std::memory_order_relaxed);
  }
}

}  // namespace tidepool
