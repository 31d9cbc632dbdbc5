// SPDX-License-Identifier: Apache-2.0
// ProcessTables: memory is charged before it is taken, and discharged after it was given back.
#include "allocator/capi/process_tables.h"

#include <unistd.h>

#include <charconv>
#include <cstring>
#include <utility>

#include "runtime/base/text_buffer.h"

namespace tidepool {

namespace {

/// The tiers of the process's managed memory, which is started for them: what heaps have of a tier,
/// and what tables have of it, are then of one and the same.
class SharedStores final : public RowStores {
 public:
  Result<std::unique_ptr<RowStore>> open(size_t far_tier) override {
    const auto memory = ProcessMemory::instance().memory();
    if (!memory) return tl::unexpected(memory.error());
    return (*memory)->rowStore(far_tier);
  }
  Status chargeLocal(Bytes size) override { return ProcessMemory::instance().chargeLocal(size); }
  void dischargeLocal(Bytes size) override { ProcessMemory::instance().dischargeLocal(size); }
};

}  // namespace

ProcessTables& ProcessTables::instance() {
  // Never destroyed: threads may still use tables while the process ends.
  static ProcessTables& tables = *new ProcessTables;
  return tables;
}

Status ProcessTables::start(Context& context) {
  if (space_ != nullptr && owner_ == getpid()) return {};
  // In a child of fork(): threads and connections are the parent's, and what was charged for its
  // tables is counted there.
  static_cast<void>(space_.release());
  tables_ = sharing_ = 0;
  context.dischargeLocal(std::exchange(shared_, Bytes()));
  static SharedStores stores;
  auto space = TableSpace::create(context.farTiers(), 0, context.options().remote_timeout, Bytes(),
                                  &stores, context.options().agent);
  if (!space) return tl::unexpected(space.error());
  space_ = std::move(*space);
  owner_ = getpid();
  return {};
}

/// What was said to contexts that are all closed is not meant for later ones.
void ProcessTables::forgetOldBudget() {
  const uint64_t now = ProcessMemory::instance().generation();
  if (std::exchange(generation_, now) != now) wanted_ = Bytes();
}

/// One table more that shares. Errors: kInvalidArgument, kNoSpace.
Status ProcessTables::startSharing(Context& context, const char* name) {
  if (sharing_ == 0) {
    forgetOldBudget();
    const Bytes budget = wanted_ > Bytes() ? wanted_ : context.options().dram / 2;
    if (budget == Bytes()) {
      return fail(
          ErrorCode::kInvalidArgument,
          "table %s: neither dram_bytes nor a budget says how much local memory it may have; "
          "set one, or call tidepool_tables_set_budget()",
          name);
    }
    TP_TRY(context.chargeLocal(budget));
    const Status set = space_->shared().setBudget(budget);
    TP_CHECK(set.has_value());  // nobody shares it yet
    shared_ = budget;
  }
  ++sharing_;
  return {};
}

void ProcessTables::stopSharing(Context& context) {
  if (--sharing_ > 0) return;
  TP_CHECK(space_->shared().setBudget(Bytes()).has_value());
  context.dischargeLocal(std::exchange(shared_, Bytes()));
}

Status ProcessTables::chargeTable(OpenTable& table, const TableOptions& options, size_t tier) {
  table.shares = tier != 0 && options.dram == Bytes();
  if (table.shares) return startSharing(*table.context, options.name.c_str());
  Bytes size = options.dram;
  if (tier == 0) {
    size = Bytes(options.rows * options.format.stride());
    if (options.ids == IdKind::kHashed) size += IdMap::memoryFor(options.rows);
  }
  TP_TRY(table.context->chargeLocal(size));
  table.charged = size;
  return {};
}

/// What create() began, backwards. The table itself is gone.
void ProcessTables::leave(OpenTable& table) {
  if (table.shares) stopSharing(*table.context);
  if (table.charged > Bytes()) table.context->dischargeLocal(table.charged);
  if (--tables_ == 0) space_.reset();
}

Result<std::unique_ptr<OpenTable>> ProcessTables::create(Context& context,
                                                         const TableOptions& options, size_t tier) {
  TP_TRY(EmbeddingTable::check(options));
  auto made = std::make_unique<OpenTable>();
  made->context = &context;
  made->owner = getpid();
  TableSpace* space = nullptr;
  {
    MutexLock lock(mutex_);
    TP_TRY(start(context));
    ++tables_;
    const Status charged = chargeTable(*made, options, tier);
    if (!charged) {
      made->shares = false;
      leave(*made);
      return tl::unexpected(charged.error());
    }
    space = space_.get();  // stays while it has tables
  }
  // Without the lock: rows get their first values, which may take minutes.
  auto table = space->createTable(options, tier);
  if (!table) {
    MutexLock lock(mutex_);
    leave(*made);
    return tl::unexpected(table.error());
  }
  made->table = std::move(*table);
  made->workers = &space->workers();
  context.addUser();
  return made;
}

void ProcessTables::close(std::unique_ptr<OpenTable> table) {
  Context& context = *table->context;
  if (table->owner != getpid()) {
    context.dischargeLocal(table->charged);
    static_cast<void>(table.release());  // the parent's
  } else {
    table->table.reset();
    MutexLock lock(mutex_);
    leave(*table);
  }
  context.removeUser();
}

Status ProcessTables::setBudget(Context& context, Bytes budget) {
  MutexLock lock(mutex_);
  if (sharing_ > 0 && owner_ == getpid()) {
    if (budget > shared_) TP_TRY(context.chargeLocal(budget - shared_));
    const Status set = space_->shared().setBudget(budget);
    if (!set && budget > shared_) context.dischargeLocal(budget - shared_);
    TP_TRY(set);
    if (budget < shared_) context.dischargeLocal(shared_ - budget);
    shared_ = budget;
  } else {
    // Whether it could be charged is to be known now, not with the first table.
    TP_TRY(context.chargeLocal(budget));
    context.dischargeLocal(budget);
  }
  forgetOldBudget();
  wanted_ = budget;
  return {};
}

Result<size_t> tableTier(const Context& context, const char* name) {
  const std::span<const FarSpec> far = context.farTiers();
  if (name == nullptr) return far.empty() ? size_t{0} : size_t{1};
  const std::string_view wanted(name);
  if (wanted == "local" || wanted == "dram" || wanted == "0") return size_t{0};
  size_t number = 0;
  const auto [end, error] = std::from_chars(wanted.data(), wanted.data() + wanted.size(), number);
  const bool is_number = error == std::errc() && end == wanted.data() + wanted.size();
  ShortText<160> known;
  size_t of_kind = 0, found = 0;
  for (size_t i = 1; i <= far.size(); ++i) {
    char text[192];
    TP_TRY(renderFarSpec(far[i - 1], text));
    const std::string_view its(text);
    if (its == wanted || (is_number && number == i)) return i;
    // A memory server may be named without the size that was asked of it.
    if (its.starts_with(wanted) && its[wanted.size()] == ':') {
      found = i;
      ++of_kind;
    }
    known.append(", ");
    known.append(its);
  }
  if (of_kind == 1) return found;
  return fail(ErrorCode::kNotFound, "no tier is called '%.*s': there are local%s",
              static_cast<int>(std::min<size_t>(wanted.size(), 40)), wanted.data(), known.c_str());
}

}  // namespace tidepool
