// SPDX-License-Identifier: Apache-2.0
// The C API's look-ups, steps, rows and batches ahead. See tables.h. Everything about the arguments
// that the tables themselves cannot know is checked here: lengths, NULL, memory that overlaps.
#include <algorithm>
#include <limits>

#include "allocator/capi/table_objects.h"
#include "allocator/table/occurrences.h"

namespace tidepool {
namespace {

struct MemoryRange {
  uintptr_t first = 0, end = 0;
  template <typename T>
  static MemoryRange of(const T* data, size_t count) {
    const auto at = reinterpret_cast<uintptr_t>(data);
    return {at, at + count * sizeof(T)};
  }
  bool overlaps(const MemoryRange& other) const { return first < other.end && other.first < end; }
};

/// One table's part of a call, checked but for what the table does itself.
struct Part {
  OpenTable* open = nullptr;
  Batch batch;
  bool reads(const MemoryRange& written) const {
    return written.overlaps(MemoryRange::of(batch.ids.data(), batch.ids.size())) ||
           written.overlaps(MemoryRange::of(batch.offsets.data(), batch.offsets.size())) ||
           (batch.weights != nullptr &&
            written.overlaps(MemoryRange::of(batch.weights, batch.ids.size())));
  }
};

/// The i-th of an array of structures as long as the caller knows them.
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

Result<OpenTable*> openTable(const tidepool_table* handle, size_t i) {
  const auto open = tableOf(handle);
  if (!open) return fail(open.error().code(), "call %zu: %s", i, open.error().text());
  return open;
}

Result<Batch> batchOf(const tidepool_bags& bags, const char* name) {
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

/// Errors: what is wrong with the first part that has something wrong. kRefused: reported already
/// as a closed table.
template <typename Float>
Result<std::vector<Part>> partsOf(const tidepool_bags* calls, size_t count, Float* const* values,
                                  const size_t* floats, const char* what, uint32_t flags) {
  if (count > 0 && (calls == nullptr || values == nullptr || floats == nullptr)) {
    return fail(ErrorCode::kInvalidArgument, "%s is NULL",
                calls == nullptr    ? "calls"
                : values == nullptr ? what
                                    : "floats");
  }
  std::vector<Part> parts;
  for (size_t i = 0; i < count; ++i) {
    const auto bags = bagsAt(calls, i);
    if (!bags) return tl::unexpected(bags.error());
    const auto open = openTable(bags->table, i);
    if (!open) return tl::unexpected(open.error());
    if (*open == nullptr) return std::vector<Part>();  // closed: there are fewer parts than calls
    const char* const name = (*open)->table->options().name.c_str();
    if ((bags->flags & ~flags) != 0) {
      return fail(ErrorCode::kInvalidArgument, "table %s: flags %u are none of this call", name,
                  bags->flags);
    }
    auto batch = batchOf(*bags, name);
    if (!batch) return tl::unexpected(batch.error());
    TP_TRY(checkFloats(values[i], floats[i], bags->bags, **open, what));
    parts.push_back({*open, *batch});
  }
  return parts;
}

/// What was checked must not change while another table's results are written.
Status checkApart(const std::vector<Part>& parts, float* const* outs, const size_t* floats) {
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
                  parts[i].open->table->options().name.c_str(), k);
    }
  }
  return {};
}

struct RowsCall {
  OpenTable* open;
  std::span<const int64_t> ids;
};

Result<RowsCall> rowsCall(OpenTable& open, const int64_t* ids, size_t count) {
  const auto array = arrayOf(ids, count, open.table->options().name.c_str(), "ids");
  if (!array) return tl::unexpected(array.error());
  return RowsCall{&open, *array};
}

using ReadRows = Status (EmbeddingTable::*)(std::span<const int64_t> ids, float* out);
using WriteRows = Status (EmbeddingTable::*)(std::span<const int64_t> ids, const float* in);

tidepool_status readBy(ReadRows read, tidepool_table* handle, const int64_t* ids, size_t count,
                       float* out, size_t floats) {
  OpenTable* const open = tableOrReport(handle);
  if (open == nullptr) return tidepool_error_status();
  const auto call = rowsCall(*open, ids, count);
  if (!call) return report(call.error());
  const Status fits = checkFloats(out, floats, count, *open, "out");
  if (!fits) return report(fits.error());
  if (MemoryRange::of(out, floats).overlaps(MemoryRange::of(ids, count))) {
    return report(Error::make(ErrorCode::kInvalidArgument,
                              "table %s: the memory of its ids is that of out, too",
                              open->table->options().name.c_str()));
  }
  return report(((*open->table).*read)(call->ids, out));
}

tidepool_status writeBy(WriteRows write, tidepool_table* handle, const int64_t* ids, size_t count,
                        const float* in, size_t floats) {
  OpenTable* const open = tableOrReport(handle);
  if (open == nullptr) return tidepool_error_status();
  const auto call = rowsCall(*open, ids, count);
  if (!call) return report(call.error());
  const Status fits = checkFloats(in, floats, count, *open, "in");
  if (!fits) return report(fits.error());
  return report(((*open->table).*write)(call->ids, in));
}

}  // namespace
}  // namespace tidepool

using namespace tidepool;

extern "C" {

tidepool_status tidepool_tables_lookup(const tidepool_bags* calls, size_t count, float* const* outs,
                                       const size_t* floats) {
  const auto parts = partsOf(calls, count, outs, floats, "outs", TIDEPOOL_INSERT_NOTHING);
  if (!parts) return report(parts.error());
  if (parts->size() < count) return reportClosed("table");
  if (count == 0) return TIDEPOOL_OK;
  const Status apart = checkApart(*parts, outs, floats);
  if (!apart) return report(apart.error());
  std::vector<EmbeddingTable::BagCall> table_calls;
  for (size_t i = 0; i < count; ++i) {
    EmbeddingTable& table = *(*parts)[i].open->table;
    table_calls.push_back({&table, (*parts)[i].batch, outs[i], table.options().format.dim});
  }
  return report(EmbeddingTable::bags(table_calls, *parts->front().open->workers));
}

tidepool_status tidepool_tables_update(const tidepool_bags* calls, size_t count,
                                       const float* const* gradients, const size_t* floats) {
  const auto parts = partsOf(calls, count, gradients, floats, "gradients", 0);
  if (!parts) return report(parts.error());
  if (parts->size() < count) return reportClosed("table");
  if (count == 0) return TIDEPOOL_OK;
  std::vector<EmbeddingTable::UpdateCall> table_calls;
  for (size_t i = 0; i < count; ++i) {
    EmbeddingTable& table = *(*parts)[i].open->table;
    table_calls.push_back({&table, (*parts)[i].batch, gradients[i], table.options().format.dim});
  }
  return report(EmbeddingTable::updates(table_calls, *parts->front().open->workers));
}

tidepool_status tidepool_table_list_ids(tidepool_table* handle, uint64_t first, int64_t* ids,
                                        size_t capacity, size_t* count) {
  OpenTable* const open = tableOrReport(handle);
  if (open == nullptr) return tidepool_error_status();
  if (count == nullptr) return reportNull("count");
  const auto out = arrayOf(ids, capacity, open->table->options().name.c_str(), "ids");
  if (!out) return report(out.error());
  if (open->table->options().ids == IdKind::kDense) {
    return report(
        Error::make(ErrorCode::kUnsupported,
                    "table %s: its ids are the numbers of its rows; hashed ids are listed",
                    open->table->options().name.c_str()));
  }
  *count = open->table->knownIds(first, {ids, capacity});
  return TIDEPOOL_OK;
}

tidepool_status tidepool_table_remove_ids(tidepool_table* handle, const int64_t* ids, size_t count,
                                          uint64_t* removed) {
  OpenTable* const open = tableOrReport(handle);
  if (open == nullptr) return tidepool_error_status();
  const auto call = rowsCall(*open, ids, count);
  if (!call) return report(call.error());
  const auto gone = open->table->removeIds(call->ids);
  if (!gone) return report(gone.error());
  if (removed != nullptr) *removed = *gone;
  return TIDEPOOL_OK;
}

tidepool_status tidepool_table_expire(tidepool_table* handle, const tidepool_expiry* expiry,
                                      uint64_t* removed) {
  OpenTable* const open = tableOrReport(handle);
  if (open == nullptr) return tidepool_error_status();
  if (expiry == nullptr) return reportNull("expiry");
  const auto known =
      readStruct<tidepool_expiry>(expiry, tidepool_expiry TIDEPOOL_EXPIRY_INIT, "tidepool_expiry");
  if (!known) return report(known.error());
  const auto gone = open->table->expire({known->unused_for, known->used_fewer_than});
  if (!gone) return report(gone.error());
  if (removed != nullptr) *removed = *gone;
  return TIDEPOOL_OK;
}

tidepool_status tidepool_table_read_rows(tidepool_table* handle, const int64_t* ids, size_t count,
                                         float* out, size_t floats) {
  return readBy(&EmbeddingTable::readRows, handle, ids, count, out, floats);
}

tidepool_status tidepool_table_write_rows(tidepool_table* handle, const int64_t* ids, size_t count,
                                          const float* in, size_t floats) {
  return writeBy(&EmbeddingTable::writeRows, handle, ids, count, in, floats);
}

tidepool_status tidepool_table_gather_rows(tidepool_table* handle, const int64_t* ids, size_t count,
                                           float* out, size_t floats) {
  return readBy(&EmbeddingTable::gatherRows, handle, ids, count, out, floats);
}

tidepool_status tidepool_table_scatter_rows(tidepool_table* handle, const int64_t* ids,
                                            size_t count, const float* in, size_t floats) {
  return writeBy(&EmbeddingTable::scatterRows, handle, ids, count, in, floats);
}

tidepool_status tidepool_table_prefetch(tidepool_table* handle, const int64_t* ids, size_t count,
                                        uint64_t* token) {
  if (token == nullptr) return reportNull("token");
  OpenTable* const open = tableOrReport(handle);
  if (open == nullptr) return tidepool_error_status();
  const auto call = rowsCall(*open, ids, count);
  if (!call) return report(call.error());
  const auto batch = open->table->prefetch(call->ids);
  if (!batch) return report(batch.error());
  *token = *batch;
  return TIDEPOOL_OK;
}

tidepool_status tidepool_table_finish(tidepool_table* handle, uint64_t token) {
  OpenTable* const open = tableOrReport(handle);
  if (open == nullptr) return tidepool_error_status();
  const uint64_t newest = open->table->announced();
  if (token == 0 || token > newest) {
    return report(
        Error::make(ErrorCode::kInvalidArgument, "table %s: %llu is no token; the newest is %llu",
                    open->table->options().name.c_str(), static_cast<unsigned long long>(token),
                    static_cast<unsigned long long>(newest)));
  }
  open->table->finished(token);
  return TIDEPOOL_OK;
}

tidepool_status tidepool_table_stop_prefetch(tidepool_table* handle) {
  OpenTable* const open = tableOrReport(handle);
  if (open == nullptr) return tidepool_error_status();
  const Status stopped = open->table->stopPrefetch();
  return stopped ? TIDEPOOL_OK : report(stopped.error());
}

tidepool_status tidepool_distinct_ids(const int64_t* ids, size_t count, int64_t* distinct,
                                      size_t* distinct_count, int64_t* positions) {
  if (distinct_count == nullptr) return reportNull("distinct_count");
  *distinct_count = 0;
  if (count == 0) return TIDEPOOL_OK;
  if (ids == nullptr) return reportNull("ids");
  if (distinct == nullptr) return reportNull("distinct");
  if (positions == nullptr) return reportNull("positions");
  if (count > std::numeric_limits<uint32_t>::max()) {
    return report(
        Error::make(ErrorCode::kInvalidArgument, "%zu ids are too many for one call", count));
  }
  Occurrences occurrences;
  occurrences.order({reinterpret_cast<const RowNumber*>(ids), count});
  const auto rows = occurrences.rows();
  for (size_t i = 0; i < rows.size(); ++i) {
    distinct[i] = static_cast<int64_t>(rows[i]);
    for (const uint32_t at : occurrences.positions(i)) positions[at] = static_cast<int64_t>(i);
  }
  *distinct_count = rows.size();
  return TIDEPOOL_OK;
}

}  // extern "C"
