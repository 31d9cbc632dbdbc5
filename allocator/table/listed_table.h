// SPDX-License-Identifier: Apache-2.0
// A table in the statistics of the `tidepool run` that this process is of, for `tidepool stat` and
// `top`. Nothing without a run. Not thread-safe: used under the table's lock. Of no use in a child
// of fork(), which has statistics of its own.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>

#include "allocator/run_api.h"
#include "runtime/base/units.h"

namespace tidepool {

/// Null: there is no run, it does not manage this process, or it knows of no tables. The process
/// becomes a managed one if it may.
const TidepoolRunApi* runThatListsTables();

class ListedTable {
 public:
  /// `run`, which outlives it, is what lists it. `name` and `tier` are as users call them.
  ListedTable(const TidepoolRunApi& run, std::string name, std::string tier, uint64_t rows,
              Bytes row);
  ~ListedTable();
  ListedTable(const ListedTable&) = delete;
  ListedTable& operator=(const ListedTable&) = delete;

  /// Since the table was made.
  void setCounts(uint64_t lookups, uint64_t hits) {
    if (counts_ == nullptr) return;
    counts_[0].store(lookups, std::memory_order_relaxed);
    counts_[1].store(hits, std::memory_order_relaxed);
  }
  /// Local memory held, and what the table is held to, 0 for nothing. One that found no room in the
  /// statistics tries again.
  void setDram(Bytes held, Bytes budget);

 private:
  void list();

  const TidepoolRunApi& run_;
  const std::string name_, tier_;
  const uint64_t rows_;
  const Bytes row_;
  std::atomic<uint64_t>* counts_ = nullptr;
};

}  // namespace tidepool
