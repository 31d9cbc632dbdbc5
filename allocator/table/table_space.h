// SPDX-License-Identifier: Apache-2.0
// What the tables of one context share: the far tiers their homes are in, a budget of local memory,
// and the threads that work for them. Tiers are opened when the first table needs them.
// Thread-safe; must outlive its tables.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "allocator/table/table.h"
#include "allocator/table/workers.h"
#include "runtime/base/mutex.h"
#include "runtime/base/result.h"
#include "runtime/options.h"
#include "runtime/tier/remote_tier.h"

namespace tidepool {

class TableSpace {
 public:
  /// `far`: where homes can be, none for local memory alone. `threads`: 0 for as many as the
  /// process may use processors. Errors: kUnsupported for a kind of far tier that tables cannot
  /// use.
  static Result<std::unique_ptr<TableSpace>> create(std::span<const FarSpec> far, size_t threads,
                                                    Nanoseconds remote_timeout);
  ~TableSpace();

  /// A table in the far tier `tier` (from 1, as they were given), or in local memory (0). Errors:
  /// kNotFound for another number, those of opening the tier and of EmbeddingTable::create().
  Result<std::unique_ptr<EmbeddingTable>> createTable(const TableOptions& options, size_t tier)
      TP_EXCLUDES(mutex_);

  /// A far tier (from 1), for others than tables; opens it if nobody has. It lives as long as the
  /// space. Errors: kNotFound, those of opening it.
  Result<Tier*> farTier(size_t tier) TP_EXCLUDES(mutex_);

  Workers& workers() { return workers_; }
  size_t farTiers() const { return far_.size(); }

 private:
  struct FarTier {
    FarSpec spec;
    std::unique_ptr<DirectTier> direct;
    std::unique_ptr<RemoteTier> remote;
  };
  TableSpace(size_t threads, Nanoseconds remote_timeout)
      : workers_(threads), remote_timeout_(remote_timeout) {}
  Status openTier(FarTier& tier) TP_REQUIRES(mutex_);
  Result<std::unique_ptr<RowHome>> makeHome(const TableOptions& options, size_t tier)
      TP_EXCLUDES(mutex_);

  Workers workers_;
  const Nanoseconds remote_timeout_;
  Mutex mutex_;
  std::vector<FarTier> far_;  // the list is fixed, its tiers are opened under mutex_
};

}  // namespace tidepool
