// SPDX-License-Identifier: Apache-2.0
// The embedding tables of a process in its statistics page: entering and removing them, and copying
// an entry out that may change, or be nonsense. All lock-free, and thread-safe; no allocation. A
// child of fork() has a page of its own, without its parent's tables.
#pragma once

#include <string_view>

#include "runtime/stats/stats_page.h"

namespace tidepool {

/// Enters a table; texts are cut to what there is room for. Returns its counts, zeros, which are
/// the caller's to store until removeTable(). Null when there is no room: it is only counted.
StatCounter* addTable(StatsPage& page, std::string_view name, std::string_view tier, uint64_t rows,
                      Bytes row);
/// What addTable() has returned, null as well. Another page's is left alone.
void removeTable(StatsPage& page, const StatCounter* counts);

/// A copy of an entry, as safe as numbers and bounded texts are.
struct TableReading {
  uint64_t version = 0;  // another one: another table
  char name[sizeof TableStats::name];
  char tier[sizeof TableStats::tier];
  uint64_t rows = 0;
  uint64_t row_bytes = 0;
  uint64_t counts[kTableCounts] = {};

  uint64_t operator[](TableCount which) const { return counts[static_cast<size_t>(which)]; }
};
/// False: no table is there, or it comes or goes just now.
bool readTable(const TableStats& entry, TableReading& out);

/// Share of the look-ups that hit, from 0 to 1 whatever the numbers are; 0 without any.
double hitRatio(uint64_t hits, uint64_t lookups);

/// What a table may have of the process's budget, or has, if nothing bounds it: from 0 to 1
/// whatever the numbers are; 0 without a budget.
double budgetShare(const StatsPage& page, const TableReading& table);

/// Calls `say(index, reading)` for every table.
template <typename Say>
void forTables(const StatsPage& page, Say say) {
  TableReading reading;
  for (int i = 0; i < kMaxTables; ++i) {
    if (readTable(page.tables[i], reading)) say(i, reading);
  }
}

}  // namespace tidepool
