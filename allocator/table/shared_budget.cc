// SPDX-License-Identifier: Apache-2.0
// SharedBudget: givers go before takers, so that the sum is kept all along; and
// EmbeddingTable::bags(), which tells it of look-ups.
#include "allocator/table/shared_budget.h"

#include <algorithm>

#include "runtime/base/check.h"
#include "runtime/base/debug_check.h"

namespace tidepool {
namespace {

// Moving a slot costs about what a miss does: shares move no sooner than each slot could have been
// used a few times, and never after a few batches.
constexpr uint64_t kUsesASlot = 4;
constexpr uint64_t kLeastPeriod = 64 * 1024;
// Look-ups that take many times as long as finding out what a table would do with another share,
// which is some 10 us.
constexpr uint64_t kAskATable = 8 * 1024;
// Nobody has less than this part of an even share: a table that wakes up needs rows to show it.
constexpr uint64_t kLeastPart = 16;
// So few tables have their shares at once, whenever one comes or goes. Of more, as soon as such a
// part of them has: making n tables is to cost n log n, not their square.
constexpr size_t kFewTables = 64;
constexpr size_t kLevelPart = 16;

}  // namespace

Bytes SharedBudget::leastShare(const TableOptions& options, TierKind tier) {
  if (tier == TierKind::kLocal) return {};
  const Bytes whole(options.rows * options.format.stride());
  return DramPlan::least(options, tier) + LiveCurve::memoryFor(whole);
}

Bytes SharedBudget::heldLocked() const {
  Bytes held = pending_;
  for (const Member& member : members_) held += member.share;
  return held;
}

Bytes SharedBudget::held() {
  MutexLock lock(mutex_);
  return heldLocked();
}

/// With what is pending.
Bytes SharedBudget::leastLocked() const {
  Bytes least = pending_;
  for (const Member& member : members_) least += member.least;
  return least;
}

Bytes SharedBudget::least() {
  MutexLock lock(mutex_);
  return leastLocked();
}

Bytes SharedBudget::budget() {
  MutexLock lock(mutex_);
  return budget_;
}

/// With the curve as it is now, and so many tables.
TableDemand SharedBudget::demandOf(EmbeddingTable& table) {
  TableDemand demand;
  demand.lookups_a_second = table.curve_->lookups();
  const uint64_t most = DramPlan::mostSlots(table.options_);
  const std::vector<LiveCurve::Point> points = table.curve_->points(most);
  MutexLock lock(table.mutex_);
  for (const LiveCurve::Point& point : points) {
    demand.curve.push_back({table.plan_.forSlots(point.slots), point.hit_ratio});
  }
  demand.unit = Bytes(1);
  demand.least = table.plan_.least();
  demand.most = std::max(demand.least, table.plan_.forSlots(most));
  slots_ += table.cache_->capacity();
  return demand;
}

std::vector<TableDemand> SharedBudget::demands(Bytes budget) {
  std::vector<TableDemand> all;
  slots_ = 0;
  Bytes wanted;
  for (const Member& member : members_) {
    all.push_back(demandOf(*member.table));
    wanted += std::max(all.back().least, budget / (members_.size() * kLeastPart));
  }
  if (wanted > budget) return all;
  for (TableDemand& demand : all) {
    demand.least =
        std::min(std::max(demand.least, budget / (members_.size() * kLeastPart)), demand.most);
  }
  return all;
}

/// By the curves; before there are any, evenly. What gains nothing by them is given out all the
/// same: rows that come for the first time are in no curve.
std::vector<Bytes> SharedBudget::targets(Bytes budget, std::span<const TableDemand> tables) {
  std::vector<Bytes> shares;
  const bool known = std::any_of(tables.begin(), tables.end(),
                                 [](const TableDemand& one) { return one.lookups_a_second > 0; });
  if (known) {
    shares = shares_.update(budget, tables);
  } else {
    for (const TableDemand& table : tables) shares.push_back(table.least);
  }
  giveOutRest(budget, tables, shares);
  return shares;
}

void SharedBudget::setShare(Member& member, Bytes share) {
  // An error is the table's own: it was given up, keeps what it has, and says so when it is used.
  (void)member.table->setDram(share);
  const Bytes now = member.table->dram();
  if (now != member.share) moves_.fetch_add(1, std::memory_order_relaxed);
  member.share = now;
}

void SharedBudget::move(Bytes budget, std::span<const Bytes> targets) {
  TP_CHECK_OP(targets.size(), ==, members_.size());
  for (size_t i = 0; i < members_.size(); ++i) {
    if (targets[i] < members_[i].share) setShare(members_[i], targets[i]);
  }
  Bytes held = heldLocked();
  for (size_t i = 0; i < members_.size(); ++i) {
    Member& member = members_[i];
    if (targets[i] <= member.share || held >= budget) continue;
    // Who was to give may have kept some, for batches that were announced.
    held -= member.share;
    setShare(member,
             member.share + std::min(targets[i] - member.share, budget - held - member.share));
    held += member.share;
  }
}

/// Look-ups in other tables must not wait for a restore.
bool SharedBudget::restoring() const {
  return std::any_of(members_.begin(), members_.end(), [](const Member& member) {
    return member.table->restoring_.load(std::memory_order_relaxed);
  });
}

/// Shares for the tables as they are.
void SharedBudget::level() {
  const Bytes budget = budget_ - pending_;
  const std::vector<TableDemand> tables = demands(budget);
  move(budget_, targets(budget, tables));
  levelled_ = members_.size();
  stale_.store(false, std::memory_order_relaxed);
}

/// A table has come or gone, or the budget has changed.
void SharedBudget::levelIfDue() {
  const size_t now = members_.size();
  const size_t changed = now > levelled_ ? now - levelled_ : levelled_ - now;
  stale_.store(true, std::memory_order_relaxed);
  if (now <= kFewTables || changed * kLevelPart >= levelled_) level();
}

void SharedBudget::rebalanceLocked() {
  lookups_.store(0, std::memory_order_relaxed);
  if (restoring()) return;
  level();
  for (const Member& member : members_) member.table->curve_->age();
  const uint64_t period = std::max(kUsesASlot * slots_, kLeastPeriod);
  period_.store(period, std::memory_order_relaxed);
  ask_period_.store(std::max({period / parts_, kLeastPeriod, kAskATable * members_.size()}),
                    std::memory_order_relaxed);
}

/// Shrinks the tables until so much is free; many of them until there is some for others like it.
/// Errors: kNoSpace, kConflict.
Status SharedBudget::makeRoom(Bytes size, Bytes budget, const char* what) {
  const Bytes left = budget - std::min(budget, pending_ + size);
  const Bytes least = leastLocked();
  if (least + size > budget) {
    return fail(
        ErrorCode::kNoSpace,
        "%s: the budget of %llu bytes that tables share is too small; with this many tables "
        "it takes %llu bytes or more",
        what, static_cast<unsigned long long>(budget.value()),
        static_cast<unsigned long long>((least + size).value()));
  }
  const Bytes held = heldLocked();
  if (held + size <= budget) return {};
  Bytes kept = left;
  if (members_.size() > kFewTables) {
    kept -=
        std::min((held + size - budget) * (members_.size() / kLevelPart), left + pending_ - least);
    stale_.store(true, std::memory_order_relaxed);
  }
  move(kept + pending_, targets(kept, demands(kept)));
  if (heldLocked() + size <= budget) return {};
  return fail(ErrorCode::kConflict,
              "%s: rows of batches that were announced have the local memory that is wanted; "
              "finish those batches first",
              what);
}

Result<std::unique_ptr<EmbeddingTable>> SharedBudget::createTable(
    const TableOptions& options, std::unique_ptr<BackingStore> backing, Workers& workers) {
  TableOptions first = options;
  const Bytes least = leastShare(options, backing->kind());
  first.dram = least;
  {
    MutexLock lock(mutex_);
    TP_TRY(makeRoom(least, budget_, options.name.c_str()));
    pending_ += least;
  }
  // Without the lock: rows that are read in place get their first values, which may take minutes.
  auto table = EmbeddingTable::createIn(this, first, std::move(backing), workers);
  MutexLock lock(mutex_);
  TP_CHECK(least <= pending_);
  pending_ -= least;
  if (!table) return table;
  members_.push_back({table->get(), least, least});
  levelIfDue();
  return table;
}

void SharedBudget::remove(EmbeddingTable& table) {
  MutexLock lock(mutex_);
  std::erase_if(members_, [&table](const Member& member) { return member.table == &table; });
  stale_.store(true, std::memory_order_relaxed);
}

Status SharedBudget::setBudget(Bytes budget) {
  MutexLock lock(mutex_);
  TP_TRY(makeRoom(Bytes(), budget, "tables"));
  budget_ = budget;
  levelIfDue();
  return {};
}

Status SharedBudget::lend(Bytes size) {
  MutexLock lock(mutex_);
  TP_TRY(makeRoom(size, budget_, "rows of a region that is drained"));
  pending_ += size;
  return {};
}

void SharedBudget::takeBack(Bytes size) {
  MutexLock lock(mutex_);
  TP_CHECK(size <= pending_);
  pending_ -= size;
}

void SharedBudget::rebalance() {
  MutexLock lock(mutex_);
  rebalanceLocked();
}

/// Tables that have come, or what others have left, get their shares after all.
void SharedBudget::settle() {
  MutexLock lock(mutex_);
  if (stale_.load(std::memory_order_relaxed) && !restoring()) level();
}

std::vector<double> SharedBudget::hitsAt(std::span<const Bytes> budgets) {
  MutexLock lock(mutex_);
  if (restoring()) return {};
  const std::vector<TableDemand> tables = demands(budget_ - pending_);
  double lookups = 0;
  for (const TableDemand& table : tables) lookups += table.lookups_a_second;
  if (lookups == 0) return {};
  std::vector<double> hits(budgets.size());
  for (size_t i = 0; i < budgets.size(); ++i) {
    const Bytes budget = budgets[i] - std::min(budgets[i], pending_);
    std::vector<Bytes> shares = divideBudget(budget, tables);
    giveOutRest(budget, tables, shares);
    hits[i] = hitsOf(tables, shares) / lookups;
  }
  return hits;
}

RowLink::Effort SharedBudget::effort() {
  RowLink::Effort all;
  MutexLock lock(mutex_);
  if (restoring()) return all;
  for (const Member& member : members_) {
    MutexLock table(member.table->mutex_);
    const RowLink* const link = member.table->backing_->link();
    if (link == nullptr) continue;
    all.rows += link->effort().rows;
    all.waited += link->effort().waited;
  }
  return all;
}

void SharedBudget::onLookups(uint64_t count) {
  const uint64_t since = lookups_.fetch_add(count, std::memory_order_relaxed) + count;
  const bool due = since >= period_.load(std::memory_order_relaxed);
  const uint64_t unasked = unasked_.fetch_add(count, std::memory_order_relaxed) + count;
  const bool ask = owner_ && unasked >= ask_period_.load(std::memory_order_relaxed);
  if (!due && !ask && !stale_.load(std::memory_order_relaxed)) return;
  // Acquire and release: the next thread at it sees what was done.
  if (moving_.exchange(true, std::memory_order_acquire)) return;
  if (ask) owner_(unasked_.exchange(0, std::memory_order_relaxed));
  due ? rebalance() : settle();
  moving_.store(false, std::memory_order_release);
}

Status EmbeddingTable::bags(std::span<const BagCall> calls, Workers& workers) {
  const Status done = lookUp(calls, workers);
  if (done) noteLookups(calls, workers);
  return done;
}

/// Steps are not noted: they use the rows that were just looked up.
void EmbeddingTable::noteLookups(std::span<const BagCall> calls, Workers& workers) {
  SharedBudget* shared = nullptr;
  uint64_t lookups = 0;
  for (const BagCall& call : calls) {
    if (call.table->shared_ == nullptr) continue;
    shared = call.table->shared_;
    lookups += call.batch.ids.size();
  }
  if (shared == nullptr) return;
  workers.run(calls.size(), [&](size_t i, size_t) {
    if (calls[i].table->curve_) calls[i].table->curve_->observe(calls[i].batch.ids);
  });
  shared->onLookups(lookups);
}

}  // namespace tidepool
