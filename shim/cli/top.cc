// SPDX-License-Identifier: Apache-2.0
// `tidepool top`: rates between two readings of every process' page. Refreshes in place on a
// terminal, appends otherwise. See processes.h.
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <map>
#include <vector>

#include "runtime/base/clock.h"
#include "runtime/base/text_buffer.h"
#include "runtime/stats/stats_fields.h"
#include "runtime/stats/stats_json.h"
#include "runtime/stats/table_stats.h"
#include "shim/cli/heat.h"
#include "shim/cli/processes.h"
#include "shim/cli/refresh.h"

namespace tidepool::cli {
namespace {

/// What rates are counted from.
struct Reading {
  uint64_t faults = 0;
  uint64_t promoted = 0;
  uint64_t demoted = 0;
  uint64_t foretold = 0;
  uint64_t used = 0;  // of what was foretold
  uint64_t zero = 0;
  Nanoseconds time;
  std::map<int, TableReading> tables;  // by their places in the page
};

uint64_t get(const StatCounter& counter) { return counter.load(std::memory_order_relaxed); }

Reading readingOf(const StatsPage& page) {
  Reading reading{get(page.faults_missing) + get(page.faults_write_protect),
                  get(page.promoted_bytes),
                  get(page.demoted_bytes),
                  get(page.foretold_pages),
                  get(page.foretold_used),
                  get(page.zero_pages),
                  MonotonicClock().now(),
                  {}};
  forTables(page, [&](int place, const TableReading& table) { reading.tables[place] = table; });
  return reading;
}

/// What a count has grown by; one that went back belongs to a new process with an old pid.
uint64_t growth(uint64_t from, uint64_t to) { return to > from ? to - from : 0; }

uint64_t perSecond(uint64_t count, const Reading& before, const Reading& now) {
  const double seconds =
      std::max(1e-3, static_cast<double>((now.time - before.time).value()) * 1e-9);
  return static_cast<uint64_t>(static_cast<double>(count) / seconds);
}

constexpr std::string_view kRow =
    "{:>8}  {:<14}  {:>7}  {:>7}  {:>7}  {:>7}  {:>9}  {:>9}  {:>9}  {:>8}  {:>8}  {:>8}  "
    "{:>8}  {:>8}\n";

std::string row(const StatsView& view, const Reading& before, const Reading& now) {
  const StatsPage& page = view.page();
  const auto rate = [&](uint64_t from, uint64_t to) {
    return perSecond(growth(from, to), before, now);
  };
  const auto microseconds = [&](double fraction) {
    return static_cast<double>(page.fault_latency.quantile(fraction).value()) / 1000;
  };
  const Bytes budget(get(page.dram_budget_bytes));
  return fmt::format(
      kRow, view.pid(), safeText(statsText(page.program), 14),
      sizeText(Bytes(get(page.dram_used_bytes))), budget == Bytes() ? "none" : sizeText(budget),
      sizeText(poolBytes(page)), sizeText(farBytes(page)), rate(before.faults, now.faults),
      sizeText(Bytes(rate(before.promoted, now.promoted))),
      sizeText(Bytes(rate(before.demoted, now.demoted))), rate(before.zero, now.zero),
      rate(before.foretold, now.foretold), rate(before.used, now.used),
      fmt::format("{:.1f}", microseconds(0.5)), fmt::format("{:.1f}", microseconds(0.99)));
}

constexpr size_t kMostTables = 8;  // of a process: more are in `tidepool stat`

struct TableRate {
  TableReading table;
  uint64_t lookups = 0, hits = 0;  // since the reading before
};

/// Most looked-up tables first.
std::vector<TableRate> tableRates(const Reading& before, const Reading& now) {
  std::vector<TableRate> rates;
  for (const auto& [place, table] : now.tables) {
    const auto last = before.tables.find(place);
    const bool same = last != before.tables.end() && last->second.version == table.version;
    const TableReading& from = same ? last->second : table;
    rates.push_back({table, growth(from[TableCount::kLookups], table[TableCount::kLookups]),
                     growth(from[TableCount::kHits], table[TableCount::kHits])});
  }
  std::stable_sort(rates.begin(), rates.end(), [](const TableRate& one, const TableRate& other) {
    return one.lookups > other.lookups;
  });
  return rates;
}

std::string percent(double share) { return fmt::format("{:.1f} %", 100 * share); }

/// The tables of a process, a line each.
std::string tableRows(const StatsPage& page, const Reading& before, const Reading& now) {
  constexpr std::string_view kTable =
      "{:>10}{:<32}  {:>7}  {:>7}  {:>7}  {:>11}  {:>7}  {:>12}  {:>7}  {}\n";
  const std::vector<TableRate> rates = tableRates(before, now);
  uint64_t more = get(page.more_tables);
  std::string out;
  if (!rates.empty()) {
    out = fmt::format(kTable, "", "TABLE", "DRAM", "BUDGET", "SHARE", "LOOK-UPS/s", "HITS", "ROWS",
                      "ROW", "TIER");
  }
  for (size_t i = 0; i < rates.size() && i < kMostTables; ++i) {
    const auto& [table, lookups, hits] = rates[i];
    const Bytes budget(table[TableCount::kDramBudgetBytes]);
    out += fmt::format(kTable, "", safeText(statsText(table.name), 32),
                       sizeText(Bytes(table[TableCount::kDramBytes])),
                       budget == Bytes() ? "none" : sizeText(budget),
                       get(page.dram_budget_bytes) == 0 ? "-" : percent(budgetShare(page, table)),
                       perSecond(lookups, before, now),
                       lookups == 0 ? "-" : percent(hitRatio(hits, lookups)), table.rows,
                       sizeText(Bytes(table.row_bytes)),
                       safeText(statsText(table.tier), sizeof table.tier));
  }
  if (rates.size() > kMostTables) more += rates.size() - kMostTables;
  if (more != 0) out += fmt::format("{:>10}and {} tables more\n", "", more);
  return out;
}

/// The memory servers of a mirror that pages are not on: lost, or not copied to yet.
std::string mirrorRows(const StatsPage& page) {
  std::string out;
  for (const TierStats& tier : tiersOf(page)) {
    forServers(tier, [&](const ServerView& server) {
      if (server.role != ServerRole::kLost && server.role != ServerRole::kFilling) return;
      ShortText<256> line;
      appendServer(line, server);
      out += fmt::format("{:>10}{}", "", line.view());
    });
  }
  return out;
}

/// Where the hot memory is, if that is known.
std::string heatRow(const StatsView& view) {
  constexpr size_t kCells = 64;
  const std::string line = heatLine(view.heat(), kCells);
  return line.empty() ? "" : fmt::format("{:>10}{}\n", "", line);
}

using Readings = std::map<int, Reading>;

/// One table of rates since `last`, which is replaced. A process seen for the first time shows
/// none.
std::string table(Readings& last, bool bold) {
  const std::string head =
      fmt::format(kRow, "PID", "PROGRAM", "DRAM", "BUDGET", "POOL", "FAR", "FAULTS/s", "PROMO/s",
                  "DEMO/s", "ZERO/s", "FORE/s", "USED/s", "P50 us", "P99 us");
  std::string out = bold ? fmt::format("\x1b[1m{}\x1b[0m", head) : head;
  Readings current;
  for (const StatsView& view : findProcesses()) {
    const Reading now = readingOf(view.page());
    const auto found = last.find(view.pid());
    const Reading& before = found == last.end() ? now : found->second;
    out += row(view, before, now) + heatRow(view) + tableRows(view.page(), before, now) +
           mirrorRows(view.page());
    current[view.pid()] = now;
  }
  if (current.empty()) out += "no process of yours runs under Tidepool\n";
  last = std::move(current);
  return out;
}

}  // namespace

int top(const Arguments& arguments) {
  if (!arguments.operands().empty()) {
    throw UsageError(fmt::format("top: unexpected '{}'", arguments.operands().front()));
  }
  const Nanoseconds pause = intervalOf(arguments, "top");
  const bool once = arguments.has("--once");
  const bool terminal = isatty(STDOUT_FILENO) != 0 && !once;
  const bool bold = terminal && colourAllowed();
  const RawKeys keys;
  Readings last;
  table(last, false);
  for (;;) {
    if (keys.waitForQuit(pause)) return 0;
    // On a terminal: home, clear to the end, and the table over the old one.
    fmt::print("{}{}{}", terminal ? "\x1b[H\x1b[J" : "", table(last, bold),
               terminal ? "q ends\n" : "");
    std::fflush(stdout);
    if (once || std::ferror(stdout) != 0) return 0;
    if (!terminal) fmt::print("\n");
  }
}

}  // namespace tidepool::cli
