// SPDX-License-Identifier: Apache-2.0
/// The C++ API's embedding tables: handles that close themselves, spans for arrays. Header-only
/// over the C API (tables.h), whose rules hold. Included by tidepool.hpp; works without exceptions.
#ifndef TIDEPOOL_TABLES_HPP
#define TIDEPOOL_TABLES_HPP

#include "tidepool.hpp"

namespace tidepool::api {

/// What a table is made of; see tidepool_table_params.
struct TableParams {
  std::string name;
  uint64_t rows = 0;
  uint32_t dim = 0;
  std::string tier = {};  // empty: the first far tier, "local" without any
  tidepool_element element = TIDEPOOL_FLOAT32;
  tidepool_optimizer optimizer = TIDEPOOL_SGD;
  tidepool_id_kind ids = TIDEPOOL_DENSE;
  tidepool_initializer initializer = TIDEPOOL_ZEROS;
  float init_first = 0, init_second = 0;
  uint64_t seed = 0;
  uint64_t dram_bytes = 0;  // 0: a share of what tables have together
  tidepool_rates rates = TIDEPOOL_RATES_INIT;
  uint32_t track = 0;           // for expire(): TIDEPOOL_TRACK_LAST_USE, TIDEPOOL_TRACK_USES
  uint32_t admit_after = 0;     // of hashed ids; as in tidepool_table_params
  uint64_t remembered_ids = 0;  // for that
};

/// A table; the end of the object closes it. Checkpoints of it are gone by then.
class Table {
 public:
  static Expected<Table> make(const Context& context, const TableParams& params) {
    tidepool_table_params plain = TIDEPOOL_TABLE_PARAMS_INIT;
    plain.name = params.name.c_str();
    plain.tier = params.tier.empty() ? nullptr : params.tier.c_str();
    plain.rows = params.rows;
    plain.dim = params.dim;
    plain.element = params.element;
    plain.optimizer = params.optimizer;
    plain.id_kind = params.ids;
    plain.initializer = params.initializer;
    plain.init_first = params.init_first;
    plain.init_second = params.init_second;
    plain.seed = params.seed;
    plain.dram_bytes = params.dram_bytes;
    plain.rates = &params.rates;
    plain.track = params.track;
    plain.admit_after = params.admit_after;
    plain.remembered_ids = params.remembered_ids;
    tidepool_table* table = nullptr;
    if (tidepool_table_create(context.handle(), &plain, &table) != TIDEPOOL_OK) {
      return Failure::last();
    }
    return Table(table, params.dim);
  }

  /// Fails with CONFLICT while a checkpoint of it is there; else the object is empty then.
  Expected<void> close() {
    const tidepool_status status = tidepool_table_close(handle());
    if (status == TIDEPOOL_OK) static_cast<void>(handle_.release());
    return detail::result(status);
  }

  uint32_t dim() const { return dim_; }
  Expected<void> setRates(const tidepool_rates& rates) {
    return detail::result(tidepool_table_set_rates(handle(), &rates));
  }
  /// The rows of the ids: dim() floats each.
  Expected<void> readRows(std::span<const int64_t> ids, std::span<float> out) const {
    return detail::result(
        tidepool_table_read_rows(handle(), ids.data(), ids.size(), out.data(), out.size()));
  }
  /// Hashed ids that have rows, `first` of them left out; returns how many `ids` got.
  Expected<size_t> listIds(uint64_t first, std::span<int64_t> ids) const {
    size_t count = 0;
    if (tidepool_table_list_ids(handle(), first, ids.data(), ids.size(), &count) != TIDEPOOL_OK) {
      return Failure::last();
    }
    return count;
  }
  /// Takes hashed ids out; how many of them had rows.
  Expected<uint64_t> removeIds(std::span<const int64_t> ids) {
    uint64_t removed = 0;
    if (tidepool_table_remove_ids(handle(), ids.data(), ids.size(), &removed) != TIDEPOOL_OK) {
      return Failure::last();
    }
    return removed;
  }
  /// Takes out the ids that the expiry says; how many. Begin with TIDEPOOL_EXPIRY_INIT.
  Expected<uint64_t> expire(const tidepool_expiry& expiry) {
    uint64_t removed = 0;
    if (tidepool_table_expire(handle(), &expiry, &removed) != TIDEPOOL_OK) return Failure::last();
    return removed;
  }
  Expected<void> writeRows(std::span<const int64_t> ids, std::span<const float> in) {
    return detail::result(
        tidepool_table_write_rows(handle(), ids.data(), ids.size(), in.data(), in.size()));
  }
  /// The same as parts of training, for optimizers of the caller's own.
  Expected<void> gatherRows(std::span<const int64_t> ids, std::span<float> out) const {
    return detail::result(
        tidepool_table_gather_rows(handle(), ids.data(), ids.size(), out.data(), out.size()));
  }
  Expected<void> scatterRows(std::span<const int64_t> ids, std::span<const float> in) {
    return detail::result(
        tidepool_table_scatter_rows(handle(), ids.data(), ids.size(), in.data(), in.size()));
  }
  /// Announces a batch; what finish() takes.
  Expected<uint64_t> prefetch(std::span<const int64_t> ids) {
    uint64_t token = 0;
    if (tidepool_table_prefetch(handle(), ids.data(), ids.size(), &token) != TIDEPOOL_OK) {
      return Failure::last();
    }
    return token;
  }
  Expected<void> finish(uint64_t token) {
    return detail::result(tidepool_table_finish(handle(), token));
  }
  /// Finishes all, and gives back what memory they take, until the next is announced.
  Expected<void> stopPrefetch() { return detail::result(tidepool_table_stop_prefetch(handle())); }
  Expected<tidepool_table_stats> stats() const {
    tidepool_table_stats stats{};
    stats.struct_size = sizeof stats;
    if (tidepool_table_get_stats(handle(), &stats) != TIDEPOOL_OK) return Failure::last();
    return stats;
  }
  tidepool_table* handle() const { return handle_.get(); }

 private:
  Table(tidepool_table* handle, uint32_t dim) : handle_(handle), dim_(dim) {}
  detail::Owned<tidepool_table, tidepool_table_close> handle_;
  uint32_t dim_;
};

/// One table's part of a look-up or a step: bag b is made of ids[offsets[b]] .. ids[offsets[b + 1]
/// - 1]. Borrows everything. `values`: the bags' results, or their gradients, dim floats each.
template <typename Float>
struct Bags {
  const Table& table;
  std::span<const int64_t> ids;
  std::span<const int64_t> offsets;  // one more than there are bags
  std::span<Float> values;
  std::span<const float> weights = {};  // empty: all 1
  tidepool_pooling pooling = TIDEPOOL_SUM;
  uint32_t flags = 0;  // of a look-up: TIDEPOOL_INSERT_NOTHING, or 0
};
using Lookup = Bags<float>;
using Step = Bags<const float>;

namespace detail {
/// What the C API takes of a part: all but values and flags.
template <typename Part>
tidepool_bags bagsOf(const Part& part, tidepool_table* table) {
  tidepool_bags bags = TIDEPOOL_BAGS_INIT;
  bags.table = table;
  bags.ids = part.ids.data();
  bags.ids_count = part.ids.size();
  // Without a number in it: refused as NULL.
  bags.offsets = part.offsets.empty() ? nullptr : part.offsets.data();
  bags.bags = part.offsets.empty() ? 0 : part.offsets.size() - 1;
  bags.weights = part.weights.empty() ? nullptr : part.weights.data();
  bags.weights_count = part.weights.size();
  bags.pooling = part.pooling;
  return bags;
}

template <typename Float, typename Call>
Expected<void> callTables(Call call, std::span<const Bags<Float>> parts) {
  std::vector<tidepool_bags> calls;
  std::vector<Float*> values;
  std::vector<size_t> floats;
  for (const Bags<Float>& part : parts) {
    tidepool_bags bags = bagsOf(part, part.table.handle());
    bags.flags = part.flags;
    calls.push_back(bags);
    values.push_back(part.values.data());
    floats.push_back(part.values.size());
  }
  return result(call(calls.data(), calls.size(), values.data(), floats.data()));
}
}  // namespace detail

/// Pools the rows of every bag, of several tables in one call; see tidepool_tables_lookup().
inline Expected<void> lookUp(std::span<const Lookup> parts) {
  return detail::callTables(tidepool_tables_lookup, parts);
}
inline Expected<void> lookUp(std::initializer_list<Lookup> parts) {
  return lookUp(std::span(parts.begin(), parts.size()));
}
/// One step of each table's optimizer; see tidepool_tables_update().
inline Expected<void> update(std::span<const Step> parts) {
  return detail::callTables(tidepool_tables_update, parts);
}
inline Expected<void> update(std::initializer_list<Step> parts) {
  return update(std::span(parts.begin(), parts.size()));
}

/// Local memory that tables without dram_bytes have together; see tidepool_tables_set_budget().
inline Expected<void> setTablesBudget(const Context& context, uint64_t bytes) {
  return detail::result(tidepool_tables_set_budget(context.handle(), bytes));
}

/// A checkpoint that is being taken; the end of the object cancels it if it is under way.
class Checkpoint {
 public:
  /// Begins one of the tables, which outlive it.
  static Expected<Checkpoint> start(
      std::span<const Table* const> tables, const std::string& directory,
      const tidepool_checkpoint_params& params = TIDEPOOL_CHECKPOINT_PARAMS_INIT) {
    const std::vector<tidepool_table*> handles = handlesOf(tables);
    tidepool_checkpoint* checkpoint = nullptr;
    if (tidepool_checkpoint_start(handles.data(), handles.size(), directory.c_str(), &params,
                                  &checkpoint) != TIDEPOOL_OK) {
      return Failure::last();
    }
    return Checkpoint(checkpoint);
  }
  /// Restores tables from those of their names; the number of the checkpoint.
  static Expected<uint64_t> restore(std::span<const Table* const> tables,
                                    const std::string& directory, uint64_t number = 0) {
    return restoreBy(tidepool_tables_restore, tables, directory, number);
  }
  /// Their weights alone, whatever the optimizers: for serving.
  static Expected<uint64_t> restoreWeights(std::span<const Table* const> tables,
                                           const std::string& directory, uint64_t number = 0) {
    return restoreBy(tidepool_tables_restore_weights, tables, directory, number);
  }
  /// Reads one through. Fails with CORRUPT and what is wrong with it.
  static Expected<tidepool_checkpoint_info> verify(const std::string& directory,
                                                   uint64_t number = 0) {
    tidepool_checkpoint_info info = emptyInfo();
    if (tidepool_checkpoint_verify(directory.c_str(), number, &info) != TIDEPOOL_OK) {
      return Failure::last();
    }
    return info;
  }

  Expected<tidepool_checkpoint_info> progress() const {
    tidepool_checkpoint_info info = emptyInfo();
    if (tidepool_checkpoint_progress(handle_.get(), &info) != TIDEPOOL_OK) return Failure::last();
    return info;
  }
  /// Waits until it is over.
  Expected<tidepool_checkpoint_info> wait() const {
    tidepool_checkpoint_info info = emptyInfo();
    if (tidepool_checkpoint_wait(handle_.get(), &info) != TIDEPOOL_OK) return Failure::last();
    return info;
  }
  Expected<void> cancel() { return detail::result(tidepool_checkpoint_cancel(handle_.get())); }

 private:
  explicit Checkpoint(tidepool_checkpoint* handle) : handle_(handle) {}
  static tidepool_checkpoint_info emptyInfo() {
    tidepool_checkpoint_info info{};
    info.struct_size = sizeof info;
    return info;
  }
  static Expected<uint64_t> restoreBy(decltype(&tidepool_tables_restore) restore,
                                      std::span<const Table* const> tables,
                                      const std::string& directory, uint64_t number) {
    const std::vector<tidepool_table*> handles = handlesOf(tables);
    uint64_t restored = 0;
    if (restore(handles.data(), handles.size(), directory.c_str(), number, &restored) !=
        TIDEPOOL_OK) {
      return Failure::last();
    }
    return restored;
  }
  static std::vector<tidepool_table*> handlesOf(std::span<const Table* const> tables) {
    std::vector<tidepool_table*> handles;
    for (const Table* table : tables) handles.push_back(table->handle());
    return handles;
  }
  struct Free {
    void operator()(tidepool_checkpoint* handle) const { tidepool_checkpoint_free(handle); }
  };
  std::unique_ptr<tidepool_checkpoint, Free> handle_;
};

/// Publishes tables for other processes of this host to read; see tidepool_publisher_create(). The
/// end of the object leaves readers what was published last.
class Publisher {
 public:
  /// The tables outlive it. `mode`: rights of the file.
  static Expected<Publisher> make(std::span<const Table* const> tables, const std::string& path,
                                  uint32_t mode = 0600) {
    std::vector<tidepool_table*> handles;
    for (const Table* table : tables) handles.push_back(table->handle());
    tidepool_publisher_params params = TIDEPOOL_PUBLISHER_PARAMS_INIT;
    params.mode = mode;
    tidepool_publisher* publisher = nullptr;
    if (tidepool_publisher_create(handles.data(), handles.size(), path.c_str(), &params,
                                  &publisher) != TIDEPOOL_OK) {
      return Failure::last();
    }
    return Publisher(publisher);
  }
  /// The rows as they are now; the number of the generation.
  Expected<uint64_t> publish() {
    uint64_t generation = 0;
    if (tidepool_publish(handle_.get(), &generation) != TIDEPOOL_OK) return Failure::last();
    return generation;
  }

 private:
  explicit Publisher(tidepool_publisher* handle) : handle_(handle) {}
  struct Free {
    void operator()(tidepool_publisher* handle) const { tidepool_publisher_free(handle); }
  };
  std::unique_ptr<tidepool_publisher, Free> handle_;
};

/// One published table's part of a look-up, as Bags; `table` is what Published::find() gives.
struct PublishedLookup {
  size_t table;
  std::span<const int64_t> ids;
  std::span<const int64_t> offsets;
  std::span<float> values;
  std::span<const float> weights = {};
  tidepool_pooling pooling = TIDEPOOL_SUM;
};

/// Tables that another process publishes. Any number of threads may read, without a lock.
class Published {
 public:
  static Expected<Published> open(const std::string& path) {
    tidepool_published* published = nullptr;
    if (tidepool_published_open(path.c_str(), &published) != TIDEPOOL_OK) return Failure::last();
    return Published(published);
  }
  Expected<tidepool_published_table> find(const std::string& name) const {
    tidepool_published_table table{};
    table.struct_size = sizeof table;
    if (tidepool_published_find(handle_.get(), name.c_str(), &table) != TIDEPOOL_OK) {
      return Failure::last();
    }
    return table;
  }
  Expected<tidepool_published_info> info() const {
    tidepool_published_info info{};
    info.struct_size = sizeof info;
    if (tidepool_published_get_info(handle_.get(), &info) != TIDEPOOL_OK) return Failure::last();
    return info;
  }
  /// Pools the rows of every bag, all of one generation, which it returns.
  Expected<uint64_t> lookUp(std::span<const PublishedLookup> parts) const {
    std::vector<size_t> tables;
    std::vector<tidepool_bags> calls;
    std::vector<float*> values;
    std::vector<size_t> floats;
    for (const PublishedLookup& part : parts) {
      tables.push_back(part.table);
      calls.push_back(detail::bagsOf(part, nullptr));
      values.push_back(part.values.data());
      floats.push_back(part.values.size());
    }
    uint64_t generation = 0;
    if (tidepool_published_lookup(handle_.get(), tables.data(), calls.data(), calls.size(),
                                  values.data(), floats.data(), &generation) != TIDEPOOL_OK) {
      return Failure::last();
    }
    return generation;
  }
  Expected<uint64_t> lookUp(std::initializer_list<PublishedLookup> parts) const {
    return lookUp(std::span(parts.begin(), parts.size()));
  }
  /// The rows of the ids, all of one generation, which it returns.
  Expected<uint64_t> readRows(size_t table, std::span<const int64_t> ids,
                              std::span<float> out) const {
    uint64_t generation = 0;
    if (tidepool_published_read_rows(handle_.get(), table, ids.data(), ids.size(), out.data(),
                                     out.size(), &generation) != TIDEPOOL_OK) {
      return Failure::last();
    }
    return generation;
  }

 private:
  explicit Published(tidepool_published* handle) : handle_(handle) {}
  struct Close {
    void operator()(tidepool_published* handle) const { tidepool_published_close(handle); }
  };
  std::unique_ptr<tidepool_published, Close> handle_;
};

}  // namespace tidepool::api

#endif  // TIDEPOOL_TABLES_HPP
