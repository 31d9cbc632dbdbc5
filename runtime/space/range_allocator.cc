// SPDX-License-Identifier: Apache-2.0
// Best-fit extent allocation over two indexes: by offset (to merge) and by size (to fit).
#include "runtime/space/range_allocator.h"

#include <algorithm>
#include <iterator>

#include "runtime/base/check.h"

namespace tidepool {

RangeAllocator::RangeAllocator(Bytes size, Layout layout) : layout_(layout) {
  MutexLock lock(mutex_);
  insertFree(0, size.value());
}

void RangeAllocator::insertFree(uint64_t offset, uint64_t size) {
  TP_CHECK(free_.emplace(offset, size).second && by_size_.emplace(size, offset).second);
}

void RangeAllocator::eraseFree(Extents::iterator extent) {
  TP_CHECK_OP(by_size_.erase({extent->second, extent->first}), ==, 1u);
  free_.erase(extent);
}

void RangeAllocator::take(Extents::iterator extent, uint64_t offset, uint64_t size) {
  const auto [start, length] = *extent;
  TP_CHECK(offset >= start && offset - start + size <= length);
  eraseFree(extent);
  if (offset > start) insertFree(start, offset - start);
  const uint64_t end = offset + size;
  if (start + length > end) insertFree(end, start + length - end);
  allocated_ += size;
}

std::optional<uint64_t> RangeAllocator::allocateIn(Part part, Bytes size, Bytes alignment) {
  for (auto fit = by_size_.lower_bound({size.value(), 0}); fit != by_size_.end(); ++fit) {
    const auto [length, start] = *fit;
    const uintptr_t first = layout_.base + std::max(start, part.from);
    const uint64_t offset = roundUp(first, alignment.value()) - layout_.base;
    if (offset + size.value() > std::min(start + length, part.to)) continue;
    take(free_.find(start), offset, size.value());
    return offset;
  }
  return std::nullopt;
}

Result<uint64_t> RangeAllocator::allocate(Bytes size, Bytes alignment, RangeUse use) {
  TP_CHECK(size.value() > 0 && size.value() % kPageSize == 0);
  const Part all{layout_.lowest, UINT64_MAX};
  Part wanted = all;
  if (use == RangeUse::kHeap && layout_.heap < layout_.heap_end) {
    wanted = {layout_.heap, layout_.heap_end};
  } else if (layout_.heap > layout_.lowest) {
    wanted = {layout_.lowest, layout_.heap};
  }
  MutexLock lock(mutex_);
  std::optional<uint64_t> found = allocateIn(wanted, size, alignment);
  if (!found) found = allocateIn(all, size, alignment);
  if (found) return *found;
  return fail(ErrorCode::kNoMemory, "the managed space has no room for %llu bytes",
              static_cast<unsigned long long>(size.value()));
}

bool RangeAllocator::allocateAt(uint64_t offset, Bytes size) {
  MutexLock lock(mutex_);
  auto extent = free_.upper_bound(offset);
  if (extent == free_.begin()) return false;
  --extent;
  const uint64_t end = extent->first + extent->second;
  if (offset >= end || size.value() > end - offset) return false;  // never overflows
  take(extent, offset, size.value());
  return true;
}

void RangeAllocator::release(uint64_t offset, Bytes size) {
  TP_CHECK_OP(size.value(), >, 0u);
  MutexLock lock(mutex_);
  uint64_t start = offset;
  uint64_t end = offset + size.value();
  auto next = free_.lower_bound(offset);
  TP_CHECK(next == free_.end() || next->first >= end);
  if (next != free_.begin()) {
    auto previous = std::prev(next);
    TP_CHECK_OP(previous->first + previous->second, <=, start);
    if (previous->first + previous->second == start) {
      start = previous->first;
      eraseFree(previous);
    }
  }
  if (next != free_.end() && next->first == end) {
    end += next->second;
    eraseFree(next);
  }
  insertFree(start, end - start);
  TP_CHECK_OP(size.value(), <=, allocated_);
  allocated_ -= size.value();
}

bool RangeAllocator::isAllocated(uint64_t offset, Bytes size) const {
  MutexLock lock(mutex_);
  auto next = free_.lower_bound(offset);
  if (next != free_.end() && next->first < offset + size.value()) return false;
  if (next == free_.begin()) return true;
  const auto previous = std::prev(next);
  return previous->first + previous->second <= offset;
}

Bytes RangeAllocator::allocated() const {
  MutexLock lock(mutex_);
  return Bytes(allocated_);
}

}  // namespace tidepool
