// SPDX-License-Identifier: Apache-2.0
// Arguments of look-ups and steps.
#include "allocator/capi/bag_arguments.h"

#include <algorithm>
#include <cstring>

namespace tidepool {

bool BagPart::reads(const MemoryRange& written) const {
  return written.overlaps(MemoryRange::of(batch.ids.data(), batch.ids.size())) ||
         written.overlaps(MemoryRange::of(batch.offsets.data(), batch.offsets.size())) ||
         (batch.weights != nullptr &&
          written.overlaps(MemoryRange::of(batch.weights, batch.ids.size())));
}

Status checkFloats(const float* data, size_t floats, size_t rows, const char* table, uint32_t dim,
                   const char* what) {
  size_t wanted;
  if (__builtin_mul_overflow(rows, size_t{dim}, &wanted) || wanted != floats) {
    return fail(ErrorCode::kInvalidArgument, "table %s: %s has %zu floats; %zu rows of %u are %s",
                table, what, floats, rows, dim, wanted > floats ? "more" : "fewer");
  }
  const auto array = arrayOf(data, floats, table, what);
  return array ? Status() : Status(tl::unexpected(array.error()));
}

Status checkCall(size_t count, const tidepool_bags* calls, const void* values, const size_t* floats,
                 const char* what) {
  if (count == 0 || (calls != nullptr && values != nullptr && floats != nullptr)) return {};
  return fail(ErrorCode::kInvalidArgument, "%s is NULL",
              calls == nullptr    ? "calls"
              : values == nullptr ? what
                                  : "floats");
}

Result<tidepool_bags> bagsAt(const tidepool_bags* calls, size_t i) {
  const size_t stride = calls->struct_size;
  if (stride < sizeof(tidepool_bags) || stride > 4096 || stride % alignof(tidepool_bags) != 0) {
    return fail(ErrorCode::kInvalidArgument, "struct_size of the calls is %zu: begin with %s",
                stride, "TIDEPOOL_BAGS_INIT");
  }
  tidepool_bags bags;
  memcpy(&bags, reinterpret_cast<const char*>(calls) + i * stride, sizeof bags);
  if (bags.struct_size == stride) return bags;
  return fail(ErrorCode::kInvalidArgument, "struct_size of call %zu is %zu, that of the first %zu",
              i, bags.struct_size, stride);
}

Result<Batch> batchOf(const tidepool_bags& bags, const char* name, uint32_t flags) {
  if ((bags.flags & ~flags) != 0) {
    return fail(ErrorCode::kInvalidArgument, "table %s: flags %u are none of this call", name,
                bags.flags);
  }
  const auto ids = arrayOf(bags.ids, bags.ids_count, name, "ids");
  if (!ids) return tl::unexpected(ids.error());
  if (bags.bags >= SIZE_MAX / 2 / sizeof(int64_t)) {
    return fail(ErrorCode::kInvalidArgument, "table %s: %zu bags are too many", name, bags.bags);
  }
  const auto offsets = arrayOf(bags.offsets, bags.bags + 1, name, "offsets");
  if (!offsets) return tl::unexpected(offsets.error());
  if (bags.weights_count != (bags.weights == nullptr ? 0 : bags.ids_count)) {
    return fail(ErrorCode::kInvalidArgument, "table %s: there are %zu weights for %zu ids", name,
                bags.weights_count, bags.ids_count);
  }
  if (bags.pooling != TIDEPOOL_SUM && bags.pooling != TIDEPOOL_MEAN) {
    return fail(ErrorCode::kInvalidArgument, "table %s: %d is no tidepool_pooling", name,
                bags.pooling);
  }
  const bool inserts = (bags.flags & TIDEPOOL_INSERT_NOTHING) == 0;
  return Batch{*ids, *offsets, bags.weights, static_cast<Pooling>(bags.pooling),
               inserts ? Absent::kInsert : Absent::kInitial};
}

Status checkApart(std::span<const BagPart> parts, float* const* outs, const size_t* floats) {
  MemoryRange all{UINTPTR_MAX, 0};
  for (size_t i = 0; i < parts.size(); ++i) {
    const MemoryRange out = MemoryRange::of(outs[i], floats[i]);
    all = {std::min(all.first, out.first), std::max(all.end, out.end)};
  }
  for (size_t i = 0; i < parts.size(); ++i) {
    if (!parts[i].reads(all)) continue;  // mostly
    for (size_t k = 0; k < parts.size(); ++k) {
      if (!parts[i].reads(MemoryRange::of(outs[k], floats[k]))) continue;
      return fail(ErrorCode::kInvalidArgument,
                  "table %s: the memory of its ids, offsets or weights is that of out %zu, too",
                  parts[i].table, k);
    }
  }
  return {};
}

}  // namespace tidepool
