// SPDX-License-Identifier: Apache-2.0
// Entries are written as under a sequence lock whose reader does not try again: an entry that
// changes while it is read belongs to a table that comes or goes.
#include "runtime/stats/table_stats.h"

#include <algorithm>

namespace tidepool {
namespace {

// Release and acquire: a reader that sees a byte of the new text sees that the version is odd, too.
template <size_t kSize>
void writeText(char (&to)[kSize], std::string_view from) {
  const size_t length = std::min(from.size(), kSize - 1);
  for (size_t i = 0; i < kSize; ++i) {
    std::atomic_ref<char>(to[i]).store(i < length ? from[i] : '\0', std::memory_order_release);
  }
}

template <size_t kSize>
void readText(const char (&from)[kSize], char (&to)[kSize]) {
  for (size_t i = 0; i < kSize; ++i) {
    // atomic_ref wants a mutable object; a load writes nothing.
    to[i] = std::atomic_ref<char>(const_cast<char&>(from[i])).load(std::memory_order_acquire);
  }
  to[kSize - 1] = '\0';
}

TableStats* takeEntry(StatsPage& page) {
  for (TableStats& entry : page.tables) {
    uint64_t free = 0;
    // Acquire: pairs with the release of the entry's last user.
    if (entry.taken.compare_exchange_strong(free, 1, std::memory_order_acquire)) return &entry;
  }
  return nullptr;
}

double part(uint64_t of, uint64_t whole) {
  if (whole == 0) return 0;
  return std::min(1.0, static_cast<double>(of) / static_cast<double>(whole));
}

}  // namespace

StatCounter* addTable(StatsPage& page, std::string_view name, std::string_view tier, uint64_t rows,
                      Bytes row) {
  TableStats* const entry = takeEntry(page);
  if (entry == nullptr) {
    page.more_tables.fetch_add(1, std::memory_order_relaxed);
    return nullptr;
  }
  const uint64_t odd = entry->version.load(std::memory_order_relaxed) | 1;
  entry->version.store(odd, std::memory_order_relaxed);
  writeText(entry->name, name);
  writeText(entry->tier, tier);
  entry->rows.store(rows, std::memory_order_release);
  entry->row_bytes.store(row.value(), std::memory_order_release);
  for (StatCounter& count : entry->counts) count.store(0, std::memory_order_release);
  entry->version.store(odd + 1, std::memory_order_release);  // pairs with the first in readTable()
  return entry->counts;
}

void removeTable(StatsPage& page, const StatCounter* counts) {
  if (counts == nullptr) {
    page.more_tables.fetch_sub(1, std::memory_order_relaxed);
    return;
  }
  for (TableStats& entry : page.tables) {
    if (entry.counts != counts) continue;
    entry.version.fetch_add(1, std::memory_order_relaxed);
    entry.taken.store(0, std::memory_order_release);
  }
}

bool readTable(const TableStats& entry, TableReading& out) {
  out.version = entry.version.load(std::memory_order_acquire);
  if (out.version == 0 || out.version % 2 != 0) return false;
  readText(entry.name, out.name);
  readText(entry.tier, out.tier);
  out.rows = entry.rows.load(std::memory_order_acquire);
  out.row_bytes = entry.row_bytes.load(std::memory_order_acquire);
  for (size_t i = 0; i < kTableCounts; ++i) {
    out.counts[i] = entry.counts[i].load(std::memory_order_acquire);
  }
  return entry.version.load(std::memory_order_relaxed) == out.version;
}

double hitRatio(uint64_t hits, uint64_t lookups) { return part(hits, lookups); }

double budgetShare(const StatsPage& page, const TableReading& table) {
  const uint64_t its = table[TableCount::kDramBudgetBytes];
  return part(its != 0 ? its : table[TableCount::kDramBytes],
              page.dram_budget_bytes.load(std::memory_order_relaxed));
}

}  // namespace tidepool
