// SPDX-License-Identifier: Apache-2.0
// The C API's tables: making and closing them, rates, rows, statistics. See tables.h.
#include <unistd.h>

#include <cmath>
#include <cstring>
#include <set>

#include "allocator/capi/table_objects.h"

namespace tidepool {

Result<OpenTable*> tableOf(const tidepool_table* handle) {
  if (handle == nullptr) return fail(ErrorCode::kInvalidArgument, "table is NULL");
  OpenTable* const open = table_slots.isOurs(handle) ? TableSlots::find(handle) : nullptr;
  if (open != nullptr && open->owner != getpid()) {
    return fail(ErrorCode::kUnsupported,
                "table %s belongs to process %d, which made it; this one (%d) cannot use it",
                open->table->options().name.c_str(), open->owner, getpid());
  }
  return open;
}

OpenTable* tableOrReport(const tidepool_table* handle) {
  const auto open = tableOf(handle);
  if (!open) {
    report(open.error());
    return nullptr;
  }
  if (*open == nullptr) reportClosed("table");
  return *open;
}

Result<std::vector<OpenTable*>> tablesOf(tidepool_table* const* handles, size_t count) {
  if (handles == nullptr || count == 0) {
    return fail(ErrorCode::kInvalidArgument, "tables is NULL, or there are none");
  }
  std::vector<OpenTable*> tables;
  std::set<OpenTable*> seen;
  for (size_t i = 0; i < count; ++i) {
    const auto open = tableOf(handles[i]);
    if (!open) return fail(open.error().code(), "tables[%zu]: %s", i, open.error().text());
    if (*open == nullptr) return std::vector<OpenTable*>();
    if (!seen.insert(*open).second) {
      return fail(ErrorCode::kInvalidArgument, "tables[%zu] is there twice", i);
    }
    tables.push_back(*open);
  }
  return tables;
}

std::vector<EmbeddingTable*> plain(const std::vector<OpenTable*>& tables) {
  std::vector<EmbeddingTable*> plain;
  for (const OpenTable* open : tables) plain.push_back(open->table.get());
  return plain;
}

Status TablesInUse::take(const std::vector<OpenTable*>& tables, Bytes local) {
  TP_TRY(tables.front()->context->chargeLocal(local));
  local_ = local;
  tables_ = tables;
  for (OpenTable* open : tables_) open->users.fetch_add(1, std::memory_order_relaxed);
  return {};
}

TablesInUse::~TablesInUse() {
  if (tables_.empty()) return;
  tables_.front()->context->dischargeLocal(local_);
  // Release: the thread that closes the table sees that what worked on it is gone.
  for (OpenTable* open : tables_) open->users.fetch_sub(1, std::memory_order_release);
}

namespace {

/// A number of an enum that ends at `last`. Errors: kInvalidArgument.
template <typename Enum>
Status readEnum(int32_t number, Enum last, const char* what, Enum& out) {
  if (number < 0 || number > static_cast<int32_t>(last)) {
    return fail(ErrorCode::kInvalidArgument, "table: %d is no %s", number, what);
  }
  out = static_cast<Enum>(number);
  return {};
}

Result<OptimizerStep> readRates(const tidepool_rates* given) {
  const auto rates =
      readStruct<tidepool_rates>(given, tidepool_rates TIDEPOOL_RATES_INIT, "tidepool_rates");
  if (!rates) return tl::unexpected(rates.error());
  struct Rate {
    const char* name;
    float value;
  };
  for (const Rate& rate :
       {Rate{"learning_rate", rates->learning_rate}, Rate{"momentum", rates->momentum},
        Rate{"beta1", rates->beta1}, Rate{"beta2", rates->beta2}, Rate{"epsilon", rates->epsilon},
        Rate{"weight_decay", rates->weight_decay}}) {
    if (std::isfinite(rate.value)) continue;
    return fail(ErrorCode::kInvalidArgument, "%s is not a finite number", rate.name);
  }
  OptimizerStep step;
  step.learning_rate = rates->learning_rate;
  step.momentum = rates->momentum;
  step.beta1 = rates->beta1;
  step.beta2 = rates->beta2;
  step.epsilon = rates->epsilon;
  step.weight_decay = rates->weight_decay;
  return step;
}

Result<TableOptions> optionsOf(const tidepool_table_params& params) {
  TableOptions options;
  if (params.name == nullptr || params.name[0] == '\0') {
    return fail(ErrorCode::kInvalidArgument, "the table's name is NULL or empty");
  }
  options.name = params.name;
  options.rows = params.rows;
  options.format.dim = params.dim;
  TP_TRY(readEnum(params.element, ElementType::kInt8, "tidepool_element", options.format.type));
  TP_TRY(
      readEnum(params.optimizer, Optimizer::kAdam, "tidepool_optimizer", options.format.optimizer));
  TP_TRY(readEnum(params.id_kind, IdKind::kHashed, "tidepool_id_kind", options.ids));
  TP_TRY(readEnum(params.initializer, Initializer::Kind::kNormal, "tidepool_initializer",
                  options.initializer.kind));
  if (!std::isfinite(params.init_first) || !std::isfinite(params.init_second)) {
    return fail(ErrorCode::kInvalidArgument, "table %s: init_first or init_second is not finite",
                params.name);
  }
  options.initializer.first = params.init_first;
  options.initializer.second = params.init_second;
  options.initializer.seed = params.seed;
  options.dram = Bytes(params.dram_bytes);
  if (params.track > (TIDEPOOL_TRACK_LAST_USE | TIDEPOOL_TRACK_USES)) {
    return fail(ErrorCode::kInvalidArgument, "table %s: track is %u", params.name, params.track);
  }
  options.tracked = static_cast<Tracked>(params.track);
  options.admit_after = params.admit_after;
  options.remembered_ids = params.remembered_ids;
  const auto step = readRates(params.rates);
  if (!step) return tl::unexpected(step.error());
  options.step = *step;
  TP_TRY(EmbeddingTable::check(options));
  return options;
}

Result<tidepool_table*> create(Context& context, const tidepool_table_params* params) {
  if (params == nullptr) return fail(ErrorCode::kInvalidArgument, "params is NULL");
  const auto known = readStruct<tidepool_table_params>(
      params, tidepool_table_params TIDEPOOL_TABLE_PARAMS_INIT, "tidepool_table_params");
  if (!known) return tl::unexpected(known.error());
  const auto options = optionsOf(*known);
  if (!options) return tl::unexpected(options.error());
  const auto tier = tableTier(context, known->tier);
  if (!tier) return tl::unexpected(tier.error());
  auto open = ProcessTables::instance().create(context, *options, *tier);
  if (!open) return tl::unexpected(open.error());
  auto* const slot = table_slots.open(open->get());
  if (slot == nullptr) {
    ProcessTables::instance().close(std::move(*open));
    return fail(ErrorCode::kNoSpace, "4096 tables are open; close some first");
  }
  static_cast<void>(open->release());
  return static_cast<tidepool_table*>(slot);
}

}  // namespace
}  // namespace tidepool

using namespace tidepool;

extern "C" {

tidepool_status tidepool_tables_set_budget(tidepool_context* handle, uint64_t bytes) {
  Context* const context = contextOf(handle);
  if (context == nullptr) return tidepool_error_status();
  if (bytes == 0) {
    return report(Error::make(ErrorCode::kInvalidArgument, "a budget of 0 bytes holds no table"));
  }
  return report(ProcessTables::instance().setBudget(*context, Bytes(bytes)));
}

tidepool_status tidepool_table_create(tidepool_context* handle, const tidepool_table_params* params,
                                      tidepool_table** out) {
  if (out == nullptr) return reportNull("out");
  Context* const context = contextOf(handle);
  if (context == nullptr) return tidepool_error_status();
  const auto table = create(*context, params);
  if (!table) return report(table.error());
  *out = *table;
  return TIDEPOOL_OK;
}

tidepool_status tidepool_table_close(tidepool_table* handle) {
  if (handle == nullptr) return reportNull("table");
  OpenTable* const open = table_slots.isOurs(handle) ? TableSlots::find(handle) : nullptr;
  if (open == nullptr) return reportClosed("table");
  if (open->owner == getpid() && open->users.load(std::memory_order_acquire) > 0) {
    return report(
        Error::make(ErrorCode::kConflict,
                    "table %s: a checkpoint or a publisher of it is not freed; free it first",
                    open->table->options().name.c_str()));
  }
  std::unique_ptr<OpenTable> gone(table_slots.close(handle));
  if (gone == nullptr) return reportClosed("table");
  ProcessTables::instance().close(std::move(gone));
  return TIDEPOOL_OK;
}

tidepool_status tidepool_table_set_rates(tidepool_table* handle, const tidepool_rates* rates) {
  OpenTable* const open = tableOrReport(handle);
  if (open == nullptr) return tidepool_error_status();
  if (rates == nullptr) return reportNull("rates");
  const auto step = readRates(rates);
  if (!step) return report(step.error());
  open->table->setStep(*step);
  return TIDEPOOL_OK;
}

tidepool_status tidepool_table_get_stats(tidepool_table* handle, tidepool_table_stats* out) {
  if (out == nullptr) return reportNull("out");
  OpenTable* const open = tableOrReport(handle);
  if (open == nullptr) return tidepool_error_status();
  const TableCounts counts = open->table->counts();
  tidepool_table_stats stats{};
  stats.rows = open->table->rows();
  stats.lookups = counts.lookups;
  stats.hits = counts.hits;
  stats.in_place = counts.in_place;
  stats.fetched = counts.fetched;
  stats.prefetched = counts.prefetched;
  stats.inserted = counts.inserted;
  stats.evictions = counts.evictions;
  stats.written_back = counts.written_back;
  stats.steps = counts.steps;
  stats.dram_bytes = counts.dram.value();
  stats.metadata_bytes = counts.metadata.value();
  stats.dram_budget = open->table->dram().value();
  stats.removed = counts.removed;
  stats.unwritten = counts.unwritten;
  return fillIn(out, stats);
}

}  // extern "C"
