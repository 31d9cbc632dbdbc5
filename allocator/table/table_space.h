// SPDX-License-Identifier: Apache-2.0
// What the tables of one context share: the far tiers their homes are in, a budget of local memory
// for those that name none of their own, and the threads that work for them. Tiers are opened when
// the first table needs them.
// Thread-safe; must outlive its tables.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "allocator/fabric/fabric_pool.h"
#include "allocator/table/shared_budget.h"
#include "allocator/table/table.h"
#include "allocator/table/tier_tender.h"
#include "allocator/table/workers.h"
#include "runtime/base/mutex.h"
#include "runtime/base/result.h"
#include "runtime/options.h"
#include "runtime/tier/tier.h"

namespace tidepool {

/// Where the far tiers of a space come from, if others use them as well. Thread-safe.
class RowStores {
 public:
  virtual ~RowStores() = default;
  /// A far tier, by its place from 0 on. Errors: those of opening it; kPermission and kUnsupported
  /// if this system cannot share it: it is then the tables' alone.
  virtual Result<std::unique_ptr<RowStore>> open(size_t far_tier) = 0;
  /// Local memory beside that of tables, for rows of regions that are drained. Errors: kNoSpace.
  virtual Status chargeLocal(Bytes size) = 0;
  virtual void dischargeLocal(Bytes size) = 0;
};

class TableSpace {
 public:
  /// `far`: where homes can be, none for local memory alone. `threads`: 0 for as many as the
  /// process may use processors. `budget`: local memory that tables share which name none of their
  /// own, 0 for none. `stores`, which outlives the space: null if its tiers are its own. `agent`:
  /// the socket of the host's agent, empty for the usual one.
  static Result<std::unique_ptr<TableSpace>> create(std::span<const FarSpec> far, size_t threads,
                                                    const Patience& patience,
                                                    Bytes budget = Bytes(),
                                                    RowStores* stores = nullptr,
                                                    const char* agent = "");
  ~TableSpace();

  /// A table in the far tier `tier` (from 1, as they were given), or in local memory (0). One of a
  /// far tier without a `dram` of its own has a share of the budget. Errors: kNotFound for another
  /// number, kNoSpace if the budget does not hold one table more, those of opening the tier and of
  /// EmbeddingTable::create().
  Result<std::unique_ptr<EmbeddingTable>> createTable(const TableOptions& options, size_t tier)
      TP_EXCLUDES(mutex_);

  /// What such a table needs at the least, alone or of the budget; 0 in local memory. Errors:
  /// kNotFound, kInvalidArgument for options that no table can have, kUnsupported for a kind of far
  /// tier that tables cannot be in.
  Result<Bytes> leastDram(const TableOptions& options, size_t tier) const;
  Result<Bytes> leastShare(const TableOptions& options, size_t tier) const;

  /// A far tier (from 1), for others than tables; opens it if nobody has. It lives as long as the
  /// space. Errors: kNotFound, kUnsupported (it is not the space's own), those of opening it.
  Result<Tier*> farTier(size_t tier) TP_EXCLUDES(mutex_);

  /// Whether all far tiers are fetch tiers. One of the fabric may be either.
  bool fetchesAll() const;

  Workers& workers() { return workers_; }
  /// What tables share that name no dram.
  SharedBudget& shared() { return shared_; }

 private:
  struct FarTier {
    FarSpec spec;
    std::unique_ptr<Tier> tier;
    std::unique_ptr<TierTender> tender;  // of a mirror of the space's own
    std::unique_ptr<RowStore> store;     // over the tier, or somebody else's
    std::unique_ptr<FabricPool> fabric;  // has no store: tables are in regions as they need them
    bool open() const { return store != nullptr || fabric != nullptr; }
  };
  /// For rows of regions that are drained: of what the process has beside its tables; where only
  /// tables have a budget, of what they share.
  class LocalMemory final : public LocalRoom {
   public:
    explicit LocalMemory(TableSpace& space) : space_(space) {}
    Status take(Bytes size) override;
    void giveBack(Bytes size) override;

   private:
    TableSpace& space_;
  };
  TableSpace(size_t threads, const Patience& patience, Bytes budget, RowStores* stores,
             const char* agent)
      : workers_(threads),
        shared_(budget),
        patience_(patience),
        stores_(stores),
        agent_(agent),
        local_(*this) {}
  Result<TierKind> kindOf(const TableOptions& options, size_t tier) const;
  Status openTier(size_t number) TP_REQUIRES(mutex_);
  Status openOwnTier(FarTier& tier) TP_REQUIRES(mutex_);
  Status openFabric(FarTier& tier) TP_REQUIRES(mutex_);
  Result<std::unique_ptr<BackingStore>> makeBackingStore(const TableOptions& options, size_t tier)
      TP_EXCLUDES(mutex_);

  Workers workers_;
  SharedBudget shared_;
  const Patience patience_;
  RowStores* const stores_;
  const std::string agent_;
  LocalMemory local_;
  Mutex mutex_;
  std::vector<FarTier> far_;  // the list is fixed, its tiers are opened under mutex_
};

}  // namespace tidepool
