// SPDX-License-Identifier: Apache-2.0
// HugeMemory: a mapping with room for the alignment.
#include "allocator/table/huge_memory.h"

#include <sys/mman.h>

namespace tidepool {

Result<HugeMemory> HugeMemory::allocate(Bytes size) {
  HugeMemory memory;
  memory.size_ = size;
  const bool huge = size.value() >= kGranuleSize;
  const uint64_t mapped = roundUp(size.value(), kPageSize) + (huge ? kGranuleSize : 0);
  auto mapping = Mapping::anonymous(Bytes(mapped == 0 ? kPageSize : mapped));
  if (!mapping) return tl::unexpected(mapping.error());
  memory.data_ = mapping->data();
  if (huge) {
    const auto start = roundUp(reinterpret_cast<uintptr_t>(mapping->data()), kGranuleSize);
    memory.data_ = reinterpret_cast<std::byte*>(start);
    // A wish. The last granule, of which less is needed, has ordinary pages.
    madvise(memory.data_, roundDown(size.value(), kGranuleSize), MADV_HUGEPAGE);
  }
  memory.mapping_ = std::move(*mapping);
  return memory;
}

}  // namespace tidepool
