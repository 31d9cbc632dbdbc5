// SPDX-License-Identifier: Apache-2.0
// Address space is reserved once, as much of it as there is to be had; memory is mapped into it as
// it is taken. The kernel is called directly: a preload library would manage what it sees.
#include "allocator/heap/plain_range.h"

#include "runtime/os/memory.h"

namespace tidepool {
namespace {

constexpr uint64_t kWanted = kTiB;
constexpr uint64_t kLeast = kGiB;

}  // namespace

Result<std::unique_ptr<PlainRange>> PlainRange::create() {
  for (uint64_t size = kWanted; size >= kLeast; size /= 2) {
    const auto base = os::reserve(Bytes(size), Bytes(kGranuleSize));
    if (base) return std::unique_ptr<PlainRange>(new PlainRange(*base, Bytes(size)));
  }
  return fail(ErrorCode::kNoMemory,
              "no address space for heaps in local memory; raise the limit (ulimit -v)");
}

Result<uintptr_t> PlainRange::take(Bytes size, Bytes alignment) {
  const auto offset = ranges_.allocate(size, alignment);
  if (!offset) return tl::unexpected(offset.error());
  const Status mapped = os::mapFresh(base_ + *offset, size);
  if (mapped) return base_ + *offset;
  ranges_.release(*offset, size);
  return tl::unexpected(mapped.error());
}

void PlainRange::give(uintptr_t start, Bytes size) {
  // If it cannot be unmapped for want of mappings it is at least emptied.
  if (!os::mapNothing(start, size)) static_cast<void>(os::discard(start, size));
  ranges_.release(start - base_, size);
}

}  // namespace tidepool
