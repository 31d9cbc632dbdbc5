// SPDX-License-Identifier: Apache-2.0
// HugeMemory: a mapping with room for the alignment.
#include "allocator/table/huge_memory.h"

#include <sys/mman.h>

#include "runtime/base/check.h"

namespace tidepool {

Result<HugeMemory> HugeMemory::allocate(Bytes size) {
  HugeMemory memory;
  memory.size_ = size;
  const bool huge = size.value() >= kGranuleSize;
  const uint64_t mapped = roundUp(size.value(), kPageSize) + (huge ? kGranuleSize : 0);
  auto mapping = Mapping::anonymous(Bytes(mapped == 0 ? kPageSize : mapped));
  if (!mapping) return tl::unexpected(mapping.error());
  memory.data_ = mapping->data();
  // Tables are of no use to a child of fork(), which would keep a copy of what they were. Its pages
  // are zeros and not a hole, which others' memory could come to lie in. Without it, memory is
  // lost.
  madvise(mapping->data(), mapping->size().value(), MADV_WIPEONFORK);
  if (huge) {
    const auto start = roundUp(reinterpret_cast<uintptr_t>(mapping->data()), kGranuleSize);
    memory.data_ = reinterpret_cast<std::byte*>(start);
  }
  memory.mapping_ = std::move(*mapping);
  memory.use(size);
  return memory;
}

void HugeMemory::use(Bytes size) {
  TP_CHECK(size <= size_);
  const uint64_t end = roundUp(size_.value(), kPageSize);
  const uint64_t used = roundUp(size.value(), kPageSize);
  if (used < end) giveBack(data_ + used, Bytes(end - used));
  if (size_.value() < kGranuleSize) return;
  // A wish. Granules of which less is needed have ordinary pages.
  const uint64_t huge = roundDown(size.value(), kGranuleSize);
  if (huge > 0) madvise(data_, huge, MADV_HUGEPAGE);
  if (huge < end) madvise(data_ + huge, end - huge, MADV_NOHUGEPAGE);
}

void HugeMemory::giveBack(const std::byte* first, Bytes size) {
  const uint64_t offset = static_cast<uint64_t>(first - data_);
  // Others' memory would become zeros.
  TP_CHECK(offset <= size_.value() && size.value() <= roundUp(size_.value(), kPageSize) - offset);
  const uint64_t begin = roundUp(offset, kPageSize);
  const uint64_t end = roundDown(offset + size.value(), kPageSize);
  if (begin < end) madvise(data_ + begin, end - begin, MADV_DONTNEED);
}

}  // namespace tidepool
