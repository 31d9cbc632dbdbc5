// SPDX-License-Identifier: Apache-2.0
// The C API's heaps. See tidepool.h. The hot functions look the handle up and go on; whatever is
// wrong is told by functions of its own.
#include <bit>
#include <cstring>

#include "allocator/capi/objects.h"

namespace tidepool {
namespace {

Result<Placement> placementOf(Context& context, const char* tier) {
  if (tier == nullptr) {
    return fail(ErrorCode::kInvalidArgument,
                "the heap's tier is NULL: name one, such as \"local\"");
  }
  // Local memory needs no runtime.
  if (strcmp(tier, "local") == 0) return Placement::local();
  const auto memory = context.memory();
  if (!memory) return tl::unexpected(memory.error());
  const StatsPage* const stats = (*memory)->stats();
  if (stats == nullptr) return fail(ErrorCode::kUnsupported, "the run's tiers cannot be read");
  return findTier(*stats, tier);
}

Result<HeapPlan> interleavedPlan(Context& context, const tidepool_heap_params& params) {
  if (params.shares == nullptr && params.shares_count > 0) {
    return fail(ErrorCode::kInvalidArgument, "shares is NULL");
  }
  std::vector<TierShare> shares;
  for (uint32_t i = 0; i < params.shares_count; ++i) {
    const auto placement = placementOf(context, params.shares[i].tier);
    if (!placement) return tl::unexpected(placement.error());
    shares.push_back({*placement, params.shares[i].weight});
  }
  return HeapPlan::interleaved(shares);
}

Result<HeapPlan> planOf(Context& context, const tidepool_heap_params& params) {
  switch (params.policy) {
    case TIDEPOOL_TIERED:
      return HeapPlan::tiered();
    case TIDEPOOL_PINNED: {
      const auto placement = placementOf(context, params.tier);
      if (!placement) return tl::unexpected(placement.error());
      return HeapPlan::pinned(*placement);
    }
    case TIDEPOOL_INTERLEAVED:
      return interleavedPlan(context, params);
    default:
      return fail(ErrorCode::kInvalidArgument, "%d is no heap policy", params.policy);
  }
}

/// A copy as long as we know it; what the caller's header does not have yet is 0.
Result<tidepool_heap_params> readParams(const tidepool_heap_params* params) {
  tidepool_heap_params known TIDEPOOL_HEAP_PARAMS_INIT;
  if (params == nullptr) return known;
  const size_t size = sizeToFill(*params);
  if (size == 0) {
    return fail(ErrorCode::kInvalidArgument,
                "struct_size is %zu: begin with "
                "TIDEPOOL_HEAP_PARAMS_INIT",
                params->struct_size);
  }
  memcpy(&known, params, size);
  return known;
}

[[gnu::noinline]] void* reportFailure() {
  report(Heap::lastError());
  return nullptr;
}

[[gnu::noinline]] tidepool_status reportStranger(const void* block) {
  return report(
      Error::make(ErrorCode::kInvalidArgument, "the block at %p is not of this heap", block));
}

void* allocateOrReport(Heap* heap, size_t size, size_t alignment, Fill fill) {
  if (heap == nullptr) return nullptr;
  void* const block = heap->allocate(size, alignment, fill);
  return __builtin_expect(block != nullptr, 1) ? block : reportFailure();
}

}  // namespace
}  // namespace tidepool

using namespace tidepool;

extern "C" {

tidepool_status tidepool_heap_create(tidepool_context* handle, const tidepool_heap_params* params,
                                     tidepool_heap** out) {
  if (out == nullptr) return reportNull("out");
  Context* const context = contextOf(handle);
  if (context == nullptr) return tidepool_error_status();
  const auto known = readParams(params);
  if (!known) return report(known.error());
  const auto plan = planOf(*context, *known);
  if (!plan) return report(plan.error());
  const auto heap = HeapTable::instance().create(*context, *plan);
  if (!heap) return report(heap.error());
  auto* const slot = heap_slots.open(*heap);
  TP_CHECK(slot != nullptr);  // there are more of them than heaps
  *out = static_cast<tidepool_heap*>(slot);
  return TIDEPOOL_OK;
}

tidepool_status tidepool_heap_destroy(tidepool_heap* handle) {
  if (heapOf(handle) == nullptr) return tidepool_error_status();
  Heap* const heap = heap_slots.close(handle);
  if (heap == nullptr) return reportClosed("heap");
  HeapTable::instance().destroy(heap);
  return TIDEPOOL_OK;
}

tidepool_status tidepool_heap_trim(tidepool_heap* handle) {
  Heap* const heap = heapOf(handle);
  if (heap == nullptr) return tidepool_error_status();
  HeapTable::instance().trim(*heap);
  return TIDEPOOL_OK;
}

void* tidepool_alloc(tidepool_heap* handle, size_t size) {
  return allocateOrReport(heapOf(handle), size, Heap::kLeastAlignment, Fill::kNone);
}

void* tidepool_calloc(tidepool_heap* handle, size_t count, size_t size) {
  Heap* const heap = heapOf(handle);
  size_t bytes;
  if (__builtin_mul_overflow(count, size, &bytes)) {
    report(
        Error::make(ErrorCode::kInvalidArgument, "%zu times %zu bytes are too many", count, size));
    return nullptr;
  }
  return allocateOrReport(heap, bytes, Heap::kLeastAlignment, Fill::kZero);
}

void* tidepool_aligned_alloc(tidepool_heap* handle, size_t alignment, size_t size) {
  if (!std::has_single_bit(alignment) || alignment > Heap::kMostAlignment) {
    report(Error::make(ErrorCode::kInvalidArgument,
                       "an alignment of %zu: give a power of two up to 1 GiB", alignment));
    return nullptr;
  }
  return allocateOrReport(heapOf(handle), size, alignment, Fill::kNone);
}

void* tidepool_realloc(tidepool_heap* handle, void* block, size_t size) {
  Heap* const heap = heapOf(handle);
  if (heap == nullptr) return nullptr;
  if (block == nullptr) {
    return allocateOrReport(heap, size, Heap::kLeastAlignment, Fill::kNone);
  }
  if (!heap->owns(block)) {
    reportStranger(block);
    return nullptr;
  }
  void* const moved = heap->reallocate(block, size);
  return moved != nullptr ? moved : reportFailure();
}

tidepool_status tidepool_free(tidepool_heap* handle, void* block) {
  Heap* const heap = heapOf(handle);
  if (heap == nullptr) return tidepool_error_status();
  if (block == nullptr) return TIDEPOOL_OK;
  if (!heap->owns(block)) return reportStranger(block);
  heap->free(block);
  return TIDEPOOL_OK;
}

size_t tidepool_usable_size(tidepool_heap* handle, const void* block) {
  const Heap* const heap = heapOf(handle);
  if (heap == nullptr || block == nullptr) return 0;
  if (!heap->owns(block)) {
    reportStranger(block);
    return 0;
  }
  return heap->usableSize(block);
}

tidepool_status tidepool_heap_get_stats(tidepool_heap* handle, tidepool_heap_stats* out) {
  if (out == nullptr) return reportNull("out");
  const Heap* const heap = heapOf(handle);
  if (heap == nullptr) return tidepool_error_status();
  const HeapStats stats = HeapTable::instance().stats(*heap);
  static_assert(TIDEPOOL_MAX_TIERS == kMaxTiers);
  tidepool_heap_stats plain{};
  plain.allocated_bytes = stats.allocated.value();
  plain.allocations = stats.allocations;
  plain.frees = stats.frees;
  plain.reserved_bytes = stats.reserved.value();
  plain.local_bytes = toBytes(stats.residency.local + stats.residency.leaving).value();
  plain.lost_bytes = toBytes(stats.residency.lost).value();
  for (int tier = 0; tier < kMaxTiers; ++tier) {
    plain.far_bytes[tier] = toBytes(stats.residency.far[tier]).value();
  }
  return fillIn(out, plain);
}

}  // extern "C"
