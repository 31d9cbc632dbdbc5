// SPDX-License-Identifier: Apache-2.0
// What all tables of the C API in a process share: far tiers, threads and a budget (TableSpace),
// and how their local memory is charged to the process's budget. Unless the program says how much,
// tables have half of it together at first, and then what they gain more by than pages do
// (DramSplit). Started by the first table, ended with the last. Thread-safe. A child of fork()
// begins anew: what it inherited it can neither use nor end.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <memory>

#include "allocator/context.h"
#include "allocator/table/table_space.h"
#include "runtime/base/mutex.h"
#include "runtime/policy/dram_split.h"
#include "runtime/stats/stats_page.h"

namespace tidepool {

/// A table as handles stand for it.
struct OpenTable {
  Context* context = nullptr;
  std::unique_ptr<EmbeddingTable> table;
  Workers* workers = nullptr;  // of the space, which outlives the table
  Bytes charged;               // for it alone
  bool shares = false;         // the tables' budget
  pid_t owner = 0;
  std::atomic<size_t> users{0};  // checkpoints and publishers that are not freed
};

class ProcessTables {
 public:
  static ProcessTables& instance();

  /// A table in far tier `tier` of the context, or in local memory (0). Errors: those of charging
  /// and of TableSpace.
  Result<std::unique_ptr<OpenTable>> create(Context& context, const TableOptions& options,
                                            size_t tier) TP_EXCLUDES(mutex_);
  void close(std::unique_ptr<OpenTable> table) TP_EXCLUDES(mutex_);
  /// As tidepool_tables_set_budget().
  Status setBudget(Context& context, Bytes budget) TP_EXCLUDES(mutex_);

 private:
  /// Counts since some beginning, of which a window is the difference of two.
  struct Seen {
    uint64_t near = 0, next = 0, rows = 0;
    Nanoseconds faulted, waited;
  };
  static ProcessTables& make();
  void beginInChild();
  Status start(Context& context) TP_REQUIRES(mutex_);
  Bytes firstShare(Bytes dram) const TP_REQUIRES(mutex_);
  Status startSharing(Context& context, const char* name) TP_REQUIRES(mutex_);
  void forgetOldBudget() TP_REQUIRES(mutex_);
  void stopSharing(Context& context) TP_REQUIRES(mutex_);
  Status chargeTable(OpenTable& table, const TableOptions& options, size_t tier)
      TP_REQUIRES(mutex_);
  void leave(OpenTable& table) TP_REQUIRES(mutex_);
  void discharge(Context& context, Bytes& charged, Bytes size) TP_REQUIRES(mutex_);
  Status resize(Bytes budget) TP_REQUIRES(mutex_);
  bool growToHalf() TP_EXCLUDES(mutex_);
  Result<std::unique_ptr<EmbeddingTable>> createIn(TableSpace& space, const TableOptions& options,
                                                   size_t tier) TP_EXCLUDES(mutex_);
  void follow(uint64_t lookups) TP_EXCLUDES(mutex_);
  DramSplit::Window look(const StatsPage& page, uint64_t lookups) TP_REQUIRES(mutex_);
  DramSplit::Bounds bounds(const StatsPage& page) TP_REQUIRES(mutex_);
  Bytes divide(MemorySource& source, const StatsPage& page, uint64_t lookups) TP_REQUIRES(mutex_);

  Mutex mutex_;
  std::unique_ptr<TableSpace> space_ TP_GUARDED_BY(mutex_);
  pid_t owner_ TP_GUARDED_BY(mutex_) = 0;  // of space_
  size_t tables_ TP_GUARDED_BY(mutex_) = 0;
  size_t sharing_ TP_GUARDED_BY(mutex_) = 0;       // of those, the ones that share
  Bytes wanted_ TP_GUARDED_BY(mutex_);             // by setBudget(); 0: never said
  uint64_t generation_ TP_GUARDED_BY(mutex_) = 0;  // of ProcessMemory, when it was said
  Bytes shared_ TP_GUARDED_BY(mutex_);             // charged while tables share
  Bytes single_ TP_GUARDED_BY(mutex_);             // charged for tables that do not
  bool follows_ TP_GUARDED_BY(mutex_) = false;     // it changes by what is gained
  DramSplit split_ TP_GUARDED_BY(mutex_);
  Seen seen_ TP_GUARDED_BY(mutex_);  // at the last look
};

/// The number of a far tier of the context, or 0 for local memory, by what the user calls it (as
/// findTier()); null: the first far tier if there is one. Errors: kNotFound, naming those that
/// there are.
Result<size_t> tableTier(const Context& context, const char* name);

}  // namespace tidepool
