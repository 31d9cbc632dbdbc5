// SPDX-License-Identifier: Apache-2.0
// The C API's publishers, and tables that others publish. See tables.h.
#include "allocator/capi/bag_arguments.h"
#include "allocator/capi/table_objects.h"
#include "allocator/publish/published.h"
#include "allocator/publish/publisher.h"

struct tidepool_publisher {
  tidepool::TablesInUse tables;  // until the publisher has ended
  std::unique_ptr<tidepool::Publisher> publisher;
};

struct tidepool_published {
  std::unique_ptr<tidepool::Published> tables;
};

namespace tidepool {
namespace {

constexpr uint32_t kAllRights = 0777;

Result<tidepool_publisher*> makePublisher(const std::vector<OpenTable*>& tables, const char* path,
                                          const tidepool_publisher_params& params) {
  if ((params.mode & ~kAllRights) != 0) {
    return fail(ErrorCode::kInvalidArgument, "mode is 0%o; rights such as 0640 are possible",
                params.mode);
  }
  auto made = std::make_unique<tidepool_publisher>();
  TP_TRY(made->tables.take(tables, Publisher::memoryFor(plain(tables))));
  auto publisher = Publisher::open(plain(tables), path, params.mode);
  if (!publisher) return tl::unexpected(publisher.error());
  made->publisher = std::move(*publisher);
  return made.release();
}

Result<const ImageTable*> tableAt(const tidepool_published& published, size_t table) {
  const auto tables = published.tables->tables();
  if (table < tables.size()) return &tables[table];
  return fail(ErrorCode::kInvalidArgument, "there is no table %zu; %zu are published", table,
              tables.size());
}

/// Checked, and as Published takes them.
Result<std::vector<Published::BagCall>> callsOf(const tidepool_published& published,
                                                const size_t* tables, const tidepool_bags* calls,
                                                size_t count, float* const* outs,
                                                const size_t* floats) {
  TP_TRY(checkCall(count, calls, outs, floats, "outs"));
  if (count > 0 && tables == nullptr) return fail(ErrorCode::kInvalidArgument, "tables is NULL");
  std::vector<Published::BagCall> made;
  std::vector<BagPart> parts;
  for (size_t i = 0; i < count; ++i) {
    const auto table = tableAt(published, tables[i]);
    if (!table) return tl::unexpected(table.error());
    const auto bags = bagsAt(calls, i);
    if (!bags) return tl::unexpected(bags.error());
    const char* const name = (*table)->name().c_str();
    const auto batch = batchOf(*bags, name, TIDEPOOL_INSERT_NOTHING);
    if (!batch) return tl::unexpected(batch.error());
    const uint32_t dim = (*table)->format().dim;
    TP_TRY(checkFloats(outs[i], floats[i], bags->bags, name, dim, "outs"));
    made.push_back({tables[i], *batch, outs[i], dim});
    parts.push_back({name, *batch});
  }
  TP_TRY(checkApart(parts, outs, floats));
  return made;
}

/// How a look-up has ended.
tidepool_status end(const Result<uint64_t>& done, uint64_t* generation) {
  if (!done) return report(done.error());
  if (generation != nullptr) *generation = *done;
  return TIDEPOOL_OK;
}

}  // namespace
}  // namespace tidepool

using namespace tidepool;

extern "C" {

tidepool_status tidepool_publisher_create(tidepool_table* const* handles, size_t count,
                                          const char* path, const tidepool_publisher_params* params,
                                          tidepool_publisher** out) {
  if (out == nullptr) return reportNull("out");
  if (path == nullptr) return reportNull("path");
  const auto known = readStruct<tidepool_publisher_params>(
      params, tidepool_publisher_params TIDEPOOL_PUBLISHER_PARAMS_INIT,
      "tidepool_publisher_params");
  if (!known) return report(known.error());
  const auto tables = tablesOf(handles, count);
  if (!tables) return report(tables.error());
  if (tables->empty()) return reportClosed("table");
  const auto made = makePublisher(*tables, path, *known);
  if (!made) return report(made.error());
  *out = *made;
  return TIDEPOOL_OK;
}

tidepool_status tidepool_publish(tidepool_publisher* publisher, uint64_t* generation) {
  if (publisher == nullptr) return reportNull("publisher");
  return end(publisher->publisher->publish(), generation);
}

void tidepool_publisher_free(tidepool_publisher* publisher) { freeOurs(publisher); }

tidepool_status tidepool_published_open(const char* path, tidepool_published** out) {
  if (out == nullptr) return reportNull("out");
  if (path == nullptr) return reportNull("path");
  auto tables = Published::open(path);
  if (!tables) return report(tables.error());
  *out = new tidepool_published{std::move(*tables)};
  return TIDEPOOL_OK;
}

void tidepool_published_close(tidepool_published* published) { delete published; }

tidepool_status tidepool_published_find(tidepool_published* published, const char* name,
                                        tidepool_published_table* out) {
  if (published == nullptr) return reportNull("published");
  if (name == nullptr) return reportNull("name");
  if (out == nullptr) return reportNull("out");
  const auto found = published->tables->find(name);
  if (!found) return report(found.error());
  const ImageTable& table = published->tables->tables()[*found];
  tidepool_published_table info{};
  info.table = *found;
  info.rows = table.rows();
  info.dim = table.format().dim;
  info.element = static_cast<int32_t>(table.format().type);
  info.id_kind = static_cast<int32_t>(table.ids());
  return fillIn(out, info);
}

tidepool_status tidepool_published_get_info(tidepool_published* published,
                                            tidepool_published_info* out) {
  if (published == nullptr) return reportNull("published");
  if (out == nullptr) return reportNull("out");
  tidepool_published_info info{};
  info.generation = published->tables->generation();
  info.tables = published->tables->tables().size();
  info.repeated = published->tables->repeated();
  const auto when = published->tables->publishedAt();
  if (!when) return report(when.error());
  info.published_at = when->value();
  return fillIn(out, info);
}

tidepool_status tidepool_published_lookup(tidepool_published* published, const size_t* tables,
                                          const tidepool_bags* calls, size_t count,
                                          float* const* outs, const size_t* floats,
                                          uint64_t* generation) {
  if (published == nullptr) return reportNull("published");
  const auto made = callsOf(*published, tables, calls, count, outs, floats);
  if (!made) return report(made.error());
  return end(published->tables->bags(*made), generation);
}

tidepool_status tidepool_published_read_rows(tidepool_published* published, size_t table,
                                             const int64_t* ids, size_t count, float* out,
                                             size_t floats, uint64_t* generation) {
  if (published == nullptr) return reportNull("published");
  const auto known = tableAt(*published, table);
  if (!known) return report(known.error());
  const char* const name = (*known)->name().c_str();
  const auto array = arrayOf(ids, count, name, "ids");
  if (!array) return report(array.error());
  const Status fits = checkFloats(out, floats, count, name, (*known)->format().dim, "out");
  if (!fits) return report(fits.error());
  if (MemoryRange::of(out, floats).overlaps(MemoryRange::of(ids, count))) {
    return report(Error::make(ErrorCode::kInvalidArgument,
                              "table %s: the memory of its ids is that of out, too", name));
  }
  return end(published->tables->readRows(table, *array, out), generation);
}

}  // extern "C"
