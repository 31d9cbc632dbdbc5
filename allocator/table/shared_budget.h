// SPDX-License-Identifier: Apache-2.0
// One budget of local memory for several tables. Each has a share, which follows what it gains by
// it: the live miss-ratio curves of all say where a byte saves most misses. Shares move between
// calls, now and then, counted in look-ups; what the tables hold together is never above the
// budget. Of many tables not each that comes or goes moves the shares of all: the first look-up
// does, or the table that makes up a sixteenth. Thread-safe. Its lock is taken before those of
// tables, never after.
#pragma once

#include <atomic>
#include <functional>
#include <vector>

#include "allocator/policy/budget_shares.h"
#include "allocator/table/table.h"
#include "runtime/base/mutex.h"
#include "runtime/base/result.h"

namespace tidepool {

class SharedBudget {
 public:
  explicit SharedBudget(Bytes budget) : budget_(budget) {}
  SharedBudget(const SharedBudget&) = delete;
  SharedBudget& operator=(const SharedBudget&) = delete;

  /// What a table of the options needs at the least that shares: what it needs alone, and a curve.
  static Bytes leastShare(const TableOptions& options, TierKind tier);

  /// A table of the options, whose dram is not looked at, with a share of the budget. Errors: those
  /// of EmbeddingTable::create(), kNoSpace if the budget does not hold one table more.
  Result<std::unique_ptr<EmbeddingTable>> createTable(const TableOptions& options,
                                                      std::unique_ptr<BackingStore> backing,
                                                      Workers& workers) TP_EXCLUDES(mutex_);
  /// The table gives its share back. Its destructor says so.
  void remove(EmbeddingTable& table) TP_EXCLUDES(mutex_);

  /// Another budget from now on, for the tables as they are. Errors, with the old one kept:
  /// kNoSpace if it does not hold the tables, kConflict if rows of announced batches need more.
  Status setBudget(Bytes budget) TP_EXCLUDES(mutex_);
  Bytes budget() TP_EXCLUDES(mutex_);
  /// What the tables hold.
  Bytes held() TP_EXCLUDES(mutex_);

  // For who owns the budget, and has other uses for it:
  /// From now on called after some look-ups with how many they were, without a lock and by one
  /// thread at a time, so that setBudget() may be. It changes the budget by one of so many parts,
  /// and is asked as much more often as that moves fewer slots than rebalance(). To be set before
  /// there are tables.
  void setOwner(uint64_t parts, std::function<void(uint64_t)> owner) {
    parts_ = parts;
    owner_ = std::move(owner);
  }
  /// The share of all look-ups that would hit with budgets of these sizes, each divided as it would
  /// be then, by the curves as they are now; empty if nothing is known. Moves nothing.
  std::vector<double> hitsAt(std::span<const Bytes> budgets) TP_EXCLUDES(mutex_);
  /// Of the tables there are: what their calls did to read rows in a fetch tier, so far.
  RowLink::Effort effort() TP_EXCLUDES(mutex_);
  /// What they need at the least.
  Bytes least() TP_EXCLUDES(mutex_);

  /// Takes some of the budget from the tables, for rows of theirs that a drained region had; and
  /// gives it back. Errors: kNoSpace, kConflict, with nothing taken.
  Status lend(Bytes size) TP_EXCLUDES(mutex_);
  void takeBack(Bytes size) TP_EXCLUDES(mutex_);

  /// So many look-ups were made by a call that has ended: no lock of a table is held. Moves shares
  /// when it is time for that, unless somebody else is at it.
  void onLookups(uint64_t count) TP_EXCLUDES(mutex_);
  /// Moves them now, if it pays.
  void rebalance() TP_EXCLUDES(mutex_);
  uint64_t moves() const { return moves_.load(std::memory_order_relaxed); }

 private:
  struct Member {
    EmbeddingTable* table;
    Bytes share;
    Bytes least;
  };
  Bytes heldLocked() const TP_REQUIRES(mutex_);
  Bytes leastLocked() const TP_REQUIRES(mutex_);
  TableDemand demandOf(EmbeddingTable& table) TP_REQUIRES(mutex_);
  std::vector<TableDemand> demands(Bytes budget) TP_REQUIRES(mutex_);
  std::vector<Bytes> targets(Bytes budget, std::span<const TableDemand> tables) TP_REQUIRES(mutex_);
  void move(Bytes budget, std::span<const Bytes> targets) TP_REQUIRES(mutex_);
  void setShare(Member& member, Bytes share) TP_REQUIRES(mutex_);
  Status makeRoom(Bytes size, Bytes budget, const char* what) TP_REQUIRES(mutex_);
  void levelIfDue() TP_REQUIRES(mutex_);
  bool restoring() const TP_REQUIRES(mutex_);
  void level() TP_REQUIRES(mutex_);
  void settle() TP_EXCLUDES(mutex_);
  void rebalanceLocked() TP_REQUIRES(mutex_);

  Mutex mutex_;
  Bytes budget_ TP_GUARDED_BY(mutex_);
  Bytes pending_ TP_GUARDED_BY(mutex_);  // of tables that are being made, and what is lent
  std::vector<Member> members_ TP_GUARDED_BY(mutex_);
  uint64_t slots_ TP_GUARDED_BY(mutex_) = 0;   // of all tables, when demands() last looked
  size_t levelled_ TP_GUARDED_BY(mutex_) = 0;  // tables there were when level() was at it
  BudgetShares shares_ TP_GUARDED_BY(mutex_);
  std::atomic<uint64_t> lookups_{0};  // since the last time
  std::atomic<uint64_t> period_{64 * 1024};
  std::function<void(uint64_t)> owner_;  // null: there is none
  uint64_t parts_ = 1;
  std::atomic<uint64_t> unasked_{0};  // look-ups since it was called
  std::atomic<uint64_t> ask_period_{64 * 1024};
  std::atomic<bool> moving_{false};
  std::atomic<bool> stale_{false};  // tables have come or gone since
  std::atomic<uint64_t> moves_{0};  // shares that were changed
};

}  // namespace tidepool
