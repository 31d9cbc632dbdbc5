// SPDX-License-Identifier: Apache-2.0
// The C API's look-ups, steps, rows and batches ahead. See tables.h.
#include <limits>

#include "allocator/capi/bag_arguments.h"
#include "allocator/capi/table_objects.h"
#include "allocator/table/occurrences.h"

namespace tidepool {
namespace {

/// The tables' parts of a call, checked but for what the tables do themselves.
struct Parts {
  std::vector<OpenTable*> opens;
  std::vector<BagPart> bags;
};

Result<OpenTable*> openTable(const tidepool_table* handle, size_t i) {
  const auto open = tableOf(handle);
  if (!open) return fail(open.error().code(), "call %zu: %s", i, open.error().text());
  return open;
}

/// Errors: what is wrong with the first part that has something wrong. kRefused: reported already
/// as a closed table.
template <typename Float>
Result<Parts> partsOf(const tidepool_bags* calls, size_t count, Float* const* values,
                      const size_t* floats, const char* what, uint32_t flags) {
  TP_TRY(checkCall(count, calls, values, floats, what));
  Parts parts;
  for (size_t i = 0; i < count; ++i) {
    const auto bags = bagsAt(calls, i);
    if (!bags) return tl::unexpected(bags.error());
    const auto open = openTable(bags->table, i);
    if (!open) return tl::unexpected(open.error());
    if (*open == nullptr) return Parts();  // closed: there are fewer parts than calls
    const TableOptions& options = (*open)->table->options();
    const char* const name = options.name.c_str();
    auto batch = batchOf(*bags, name, flags);
    if (!batch) return tl::unexpected(batch.error());
    TP_TRY(checkFloats(values[i], floats[i], bags->bags, name, options.format.dim, what));
    parts.opens.push_back(*open);
    parts.bags.push_back({name, *batch});
  }
  return parts;
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
  const TableOptions& options = open->table->options();
  const Status fits =
      checkFloats(out, floats, count, options.name.c_str(), options.format.dim, "out");
  if (!fits) return report(fits.error());
  if (MemoryRange::of(out, floats).overlaps(MemoryRange::of(ids, count))) {
    return report(Error::make(ErrorCode::kInvalidArgument,
                              "table %s: the memory of its ids is that of out, too",
                              options.name.c_str()));
  }
  return report(((*open->table).*read)(call->ids, out));
}

tidepool_status writeBy(WriteRows write, tidepool_table* handle, const int64_t* ids, size_t count,
                        const float* in, size_t floats) {
  OpenTable* const open = tableOrReport(handle);
  if (open == nullptr) return tidepool_error_status();
  const auto call = rowsCall(*open, ids, count);
  if (!call) return report(call.error());
  const TableOptions& options = open->table->options();
  const Status fits =
      checkFloats(in, floats, count, options.name.c_str(), options.format.dim, "in");
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
  if (parts->opens.size() < count) return reportClosed("table");
  if (count == 0) return TIDEPOOL_OK;
  const Status apart = checkApart(parts->bags, outs, floats);
  if (!apart) return report(apart.error());
  std::vector<EmbeddingTable::BagCall> table_calls;
  for (size_t i = 0; i < count; ++i) {
    EmbeddingTable& table = *parts->opens[i]->table;
    table_calls.push_back({&table, parts->bags[i].batch, outs[i], table.options().format.dim});
  }
  return report(EmbeddingTable::bags(table_calls, *parts->opens.front()->workers));
}

tidepool_status tidepool_tables_update(const tidepool_bags* calls, size_t count,
                                       const float* const* gradients, const size_t* floats) {
  const auto parts = partsOf(calls, count, gradients, floats, "gradients", 0);
  if (!parts) return report(parts.error());
  if (parts->opens.size() < count) return reportClosed("table");
  if (count == 0) return TIDEPOOL_OK;
  std::vector<EmbeddingTable::UpdateCall> table_calls;
  for (size_t i = 0; i < count; ++i) {
    EmbeddingTable& table = *parts->opens[i]->table;
    table_calls.push_back({&table, parts->bags[i].batch, gradients[i], table.options().format.dim});
  }
  return report(EmbeddingTable::updates(table_calls, *parts->opens.front()->workers));
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
