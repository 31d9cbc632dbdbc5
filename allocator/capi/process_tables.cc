// SPDX-License-Identifier: Apache-2.0
// ProcessTables: memory is charged before it is taken, and discharged after it was given back.
#include "allocator/capi/process_tables.h"

#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstring>
#include <new>
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

// Pages have such a part of the budget at the least: the program's own code runs in them.
constexpr uint64_t kLeastForPages = 16;

uint64_t get(const StatCounter& counter) { return counter.load(std::memory_order_relaxed); }

/// What this process may use of the budget, which it may share with relatives (TreeShare).
Bytes shareOf(const StatsPage& page, Bytes dram) {
  return std::min(dram, Bytes(get(page.dram_share_bytes)));
}

}  // namespace

ProcessTables& ProcessTables::instance() {
  static ProcessTables& tables = make();
  return tables;
}

ProcessTables& ProcessTables::make() {
  pthread_atfork(nullptr, nullptr, [] { instance().beginInChild(); });
  // Never destroyed: threads may still use tables while the process ends.
  return *new ProcessTables;
}

/// A thread of the parent's may have had the lock. What it was changing is the parent's, too. The
/// tables' memory is none of the child's (HugeMemory), which has its own pages in that budget.
void ProcessTables::beginInChild() TP_LOCKS_INHERITED {
  new (&mutex_) Mutex;
  const Bytes charged = std::exchange(shared_, Bytes()) + std::exchange(single_, Bytes());
  if (charged > Bytes()) ProcessMemory::instance().dischargeInChild(charged);
}

/// Before it is discharged it is no longer counted: a child that is forked in between gives back
/// what was charged, or less.
void ProcessTables::discharge(Context& context, Bytes& charged, Bytes size) {
  charged -= size;
  context.dischargeLocal(size);
}

Status ProcessTables::start(Context& context) {
  if (space_ != nullptr && owner_ == getpid()) return {};
  // In a child of fork(): threads and connections are the parent's.
  static_cast<void>(space_.release());
  tables_ = sharing_ = 0;
  static SharedStores stores;
  auto space = TableSpace::create(context.farTiers(), 0, context.options().patience(), Bytes(),
                                  &stores, context.options().agent);
  if (!space) return tl::unexpected(space.error());
  space_ = std::move(*space);
  space_->shared().setOwner(DramSplit::kSteps, [this](uint64_t lookups) { follow(lookups); });
  owner_ = getpid();
  return {};
}

/// What was said to contexts that are all closed is not meant for later ones.
void ProcessTables::forgetOldBudget() {
  const uint64_t now = ProcessMemory::instance().generation();
  if (std::exchange(generation_, now) != now) wanted_ = Bytes();
}

/// Half of what there is for the process; of the whole where that cannot be changed afterwards.
Bytes ProcessTables::firstShare(Bytes dram) const {
  MemorySource* const source = ProcessMemory::instance().started();
  const StatsPage* const page = source == nullptr ? nullptr : source->stats();
  if (!follows_ || page == nullptr) return dram / 2;
  return std::max(shareOf(*page, dram) / 2, dram / DramSplit::kSteps);
}

/// One table more that shares. Errors: kInvalidArgument, kNoSpace.
Status ProcessTables::startSharing(Context& context, const char* name) {
  if (sharing_ == 0) {
    forgetOldBudget();
    // What pages in direct tiers lose by having less memory is nowhere counted.
    follows_ = wanted_ == Bytes() && space_->fetchesAll();
    const Bytes budget = wanted_ > Bytes() ? wanted_ : firstShare(context.options().dram);
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
    split_ = DramSplit();
    seen_ = {};
  }
  ++sharing_;
  return {};
}

void ProcessTables::stopSharing(Context& context) {
  if (--sharing_ > 0) return;
  TP_CHECK(space_->shared().setBudget(Bytes()).has_value());
  discharge(context, shared_, shared_);
}

Status ProcessTables::chargeTable(OpenTable& table, const TableOptions& options, size_t tier) {
  table.shares = tier != 0 && options.dram == Bytes();
  if (table.shares) return startSharing(*table.context, options.name.c_str());
  Bytes size = options.dram;
  if (tier == 0) {
    size = Bytes(options.rows * options.format.stride()) + TableIds::memoryFor(options);
  }
  TP_TRY(table.context->chargeLocal(size));
  single_ += size;
  table.charged = size;
  return {};
}

/// What create() began, backwards. The table itself is gone.
void ProcessTables::leave(OpenTable& table) {
  if (table.shares) stopSharing(*table.context);
  if (table.charged > Bytes()) discharge(*table.context, single_, table.charged);
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
  auto table = createIn(*space, options, tier);
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
    static_cast<void>(table.release());  // the parent's
  } else {
    table->table.reset();
    MutexLock lock(mutex_);
    leave(*table);
  }
  context.removeUser();
}

/// What the tables have together from now on. Errors, with everything as it was: those of charging
/// and of SharedBudget::setBudget().
Status ProcessTables::resize(Bytes budget) {
  ProcessMemory& memory = ProcessMemory::instance();
  if (budget > shared_) TP_TRY(memory.chargeLocal(budget - shared_));
  const Status set = space_->shared().setBudget(budget);
  if (!set && budget > shared_) memory.dischargeLocal(budget - shared_);
  TP_TRY(set);
  const Bytes before = std::exchange(shared_, budget);  // as in discharge()
  if (budget < before) memory.dischargeLocal(before - budget);
  return {};
}

/// Back to what tables have at first, if they have less by now. False if not, or if pages need it.
bool ProcessTables::growToHalf() {
  MutexLock lock(mutex_);
  const Bytes half = ProcessMemory::instance().options().dram / 2;
  return follows_ && shared_ < half && resize(half);
}

/// As TableSpace says. What tables gain nothing by any more may be what one more of them needs.
Result<std::unique_ptr<EmbeddingTable>> ProcessTables::createIn(TableSpace& space,
                                                                const TableOptions& options,
                                                                size_t tier) {
  auto table = space.createTable(options, tier);
  const bool full = !table && table.error().code() == ErrorCode::kNoSpace;
  return full && options.dram == Bytes() && growToHalf() ? space.createTable(options, tier)
                                                         : std::move(table);
}

/// What has happened since it was last asked.
DramSplit::Window ProcessTables::look(const StatsPage& page, uint64_t lookups) {
  const RowLink::Effort effort = space_->shared().effort();
  const Seen now{get(page.faults_a_step_short), get(page.faults_two_steps_short), effort.rows,
                 Nanoseconds(get(page.faults_short_nanoseconds)), effort.waited};
  const Seen before = std::exchange(seen_, now);
  DramSplit::Window window;
  // Tables that are gone have taken their counts with them.
  if (before.rows == 0 || now.rows < before.rows || now.waited < before.waited) return window;
  const Bytes step = ProcessMemory::instance().options().dram / DramSplit::kSteps;
  const Bytes budgets[] = {shared_ - std::min(shared_, step), shared_, shared_ + step};
  const std::vector<double> hits = space_->shared().hitsAt(budgets);
  if (hits.empty()) return window;
  window = {now.near - before.near, now.next - before.next, now.faulted - before.faulted};
  window.lost = (hits[1] - hits[0]) * static_cast<double>(lookups);
  window.gained = (hits[2] - hits[1]) * static_cast<double>(lookups);
  window.fetched = now.rows - before.rows;
  window.waited = now.waited - before.waited;
  return window;
}

DramSplit::Bounds ProcessTables::bounds(const StatsPage& page) {
  ProcessMemory& memory = ProcessMemory::instance();
  const Bytes dram = memory.options().dram, step = dram / DramSplit::kSteps;
  const Bytes share = shareOf(page, dram);
  const bool managed_only = memory.options().budget_scope == BudgetScope::kManaged;
  // What the tables have is in both, once it has been touched.
  const Bytes outside(managed_only ? 0 : get(page.unmanaged_bytes));
  const Bytes taken = std::max(memory.charged(), outside) + dram / kLeastForPages;
  const Bytes least = std::max(step, space_->shared().least());
  if (taken <= share) return {shared_, step, least, shared_ + (share - taken)};
  // Relatives have come to use it: pages have nothing to give.
  const Bytes over = taken - share;
  const Bytes most = share == dram ? shared_ : shared_ - std::min(shared_, over);
  return {shared_, step, least, std::max(least, most)};
}

/// What tables are to have from now on.
Bytes ProcessTables::divide(MemorySource& source, const StatsPage& page, uint64_t lookups) {
  const DramSplit::Bounds bounds = this->bounds(page);
  const DramSplit::Window window = look(page, lookups);
  if (window.fetched > 0) {
    const double each =
        static_cast<double>(window.waited.value()) / static_cast<double>(window.fetched);
    source.noteRowsShort(Nanoseconds(static_cast<uint64_t>(std::max(window.gained, 0.0) * each)));
  }
  if (bounds.most < shared_) return bounds.most;
  return window.fetched > 0 ? split_.decide(window, bounds) : shared_;
}

/// Moves a step of the budget to where it saves more time. The tables' calls ask for it.
void ProcessTables::follow(uint64_t lookups) {
  MutexLock lock(mutex_);
  if (!follows_ || sharing_ == 0 || owner_ != getpid()) return;
  MemorySource* const source = ProcessMemory::instance().started();
  const StatsPage* const page = source == nullptr ? nullptr : source->stats();
  if (page == nullptr) return;
  // An error: rows that were announced are in the way, or others take memory just now. Then later.
  static_cast<void>(resize(divide(*source, *page, lookups)));
}

Status ProcessTables::setBudget(Context& context, Bytes budget) {
  MutexLock lock(mutex_);
  if (sharing_ > 0 && owner_ == getpid()) {
    TP_TRY(resize(budget));
    follows_ = false;
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
