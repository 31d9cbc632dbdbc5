// SPDX-License-Identifier: Apache-2.0
// writeStatsTable(): the statistics page for people. See stats_json.h; what there is to say is
// listed in stats_fields.h. Text from the page is shown with control characters replaced: it goes
// to a terminal.
#include <utility>

#include "runtime/stats/stats_fields.h"
#include "runtime/stats/stats_json.h"
#include "runtime/stats/table_stats.h"

namespace tidepool {
namespace {

// {key} stands for the number of that key.
constexpr std::string_view kWithBudget =
    "dram          {dram_used_bytes} of a budget of {dram_budget_bytes}\n";
constexpr std::string_view kWithoutBudget = "dram          {dram_used_bytes}, no budget\n";
constexpr std::string_view kMemory =
    "managed       {managed_bytes}, {managed_local_bytes} of it local; unmanaged "
    "{unmanaged_bytes}; "
    "metadata {metadata_bytes}\n";
constexpr std::string_view kMoves =
    "promoted      {promotions} ({promoted_bytes})   demoted {demotions} ({demoted_bytes})   "
    "wasted "
    "{wasted_migrations}\n"
    "evictions     {clean_evictions} clean, {zero_pages} zero, {rescues} rescued; prefetched "
    "{prefetched_pages}, used {prefetch_hits}; foretold {foretold_pages}, used {foretold_used}\n"
    "faults        {missing} missing, {write_protect} write-protect; p50 {p50_us} us, p99 {p99_us} "
    "us\n";
constexpr std::string_view kHeld =
    "held          {promotions_held_by_pins} promotions: a descriptor may pin pages (pins:ask)\n";
constexpr std::string_view kCompressed =
    "; brought in {compressed_hits}, written back {compressed_written_back}\n";
constexpr std::string_view kInThePool =
    "compressed    {compressed_pages} pages in {compressed_bytes}";
constexpr std::string_view kSuspended =
    "out of reach  {direct_suspensions} times, now {direct_suspended}: the host's lease was over\n";
constexpr std::string_view kLost = "lost pages    {lost_pages}\n";

/// Takes the next {key} off `text`, and what stands before it.
struct Piece {
  std::string_view before;
  std::string_view key;  // empty at the end of the text
};
constexpr Piece takePiece(std::string_view& text) {
  const size_t open = text.find('{');
  if (open == std::string_view::npos) {
    const Piece last{text, {}};
    text = {};
    return last;
  }
  const size_t close = text.find('}', open);
  const Piece piece{text.substr(0, open), text.substr(open + 1, close - open - 1)};
  text.remove_prefix(close + 1);
  return piece;
}

constexpr bool namesFields(std::string_view text) {
  while (!text.empty()) {
    const Piece piece = takePiece(text);
    if (!piece.key.empty() && statFieldAt(piece.key) == kStatFields.size()) return false;
  }
  return true;
}
static_assert(namesFields(kWithBudget) && namesFields(kWithoutBudget) && namesFields(kMemory) &&
              namesFields(kMoves) && namesFields(kHeld) && namesFields(kInThePool) &&
              namesFields(kCompressed) && namesFields(kSuspended) && namesFields(kLost));

/// Appends `text` with what could steer a terminal replaced by '?'.
void appendSafe(TextBuffer& out, std::string_view text, size_t width) {
  for (const char character : text) {
    const auto byte = static_cast<unsigned char>(character);
    out.append(byte < 0x20 || byte == 0x7f ? '?' : character);
  }
  for (size_t used = text.size(); used < width; ++used) out.append(' ');
}

void appendField(TextBuffer& out, const StatField& field, uint64_t value) {
  switch (field.unit) {
    case StatUnit::kCount:
      return out.appendNumber(value);
    case StatUnit::kBytes:
      return out.appendSize(Bytes(value));
    case StatUnit::kSeconds:
      return out.appendFixed(static_cast<double>(value) * 1e-9, 1);
    case StatUnit::kMicroseconds:
      return out.appendFixed(static_cast<double>(value) / 1000, 1);
  }
}

void appendFilled(TextBuffer& out, std::string_view text, const StatsPage& page) {
  while (!text.empty()) {
    const Piece piece = takePiece(text);
    out.append(piece.before);
    if (piece.key.empty()) continue;
    const StatField& field = kStatFields[statFieldAt(piece.key)];
    appendField(out, field, field.read(page));
  }
}

void appendSizeRight(TextBuffer& out, uint64_t bytes) {
  ShortText<24> size;
  size.appendSize(Bytes(bytes));
  out.appendRight(size.view(), 10);
}

void writeTiers(const StatsPage& page, TextBuffer& out) {
  if (tiersOf(page).empty()) return;
  out.append("\n");
  out.appendLeft("tier", 26);
  out.appendLeft("kind", 10);
  for (const TierField& field : kTierFields) out.appendRight(field.heading, 10);
  out.append("\n");
  for (const TierStats& tier : tiersOf(page)) {
    appendSafe(out, statsText(tier.name), 26);
    appendSafe(out, statsText(tier.kind), 10);
    for (const TierField& field : kTierFields) {
      appendSizeRight(out, readCounter(tier.*field.counter));
    }
    if (readCounter(tier.emulated) != 0) out.append("  emulated");
    const auto ways = static_cast<PageWays>(readCounter(tier.page_ways));
    if (ways != PageWays::kNone) {
      out.append("  by ");
      out.append(pageWaysName(ways));
    }
    if (const uint64_t again = readCounter(tier.reconnections)) {
      out.append("  reconnections: ");
      out.appendNumber(again);
    }
    out.append("\n");
    forServers(tier, [&](const ServerView& server) { appendServer(out, server); });
    if (noteOf(tier).empty()) continue;
    out.append("  not by verbs: ");
    appendSafe(out, noteOf(tier), 0);
    out.append("\n");
  }
  out.append("\n");
}

void appendPercent(TextBuffer& out, double share) {
  ShortText<24> text;
  text.appendFixed(100 * share, 1);
  text.append(" %");
  out.appendRight(text.view(), 10);
}

void writeTable(const StatsPage& page, const TableReading& table, TextBuffer& out) {
  appendSafe(out, statsText(table.name), 26);
  appendSafe(out, statsText(table.tier), 28);
  ShortText<24> rows;
  rows.appendNumber(table.rows);
  out.appendRight(rows.view(), 12);
  appendSizeRight(out, table.row_bytes);
  const uint64_t lookups = table[TableCount::kLookups];
  lookups == 0 ? out.appendRight("-", 10)
               : appendPercent(out, hitRatio(table[TableCount::kHits], lookups));
  appendSizeRight(out, table[TableCount::kDramBytes]);
  const uint64_t budget = table[TableCount::kDramBudgetBytes];
  budget == 0 ? out.appendRight("none", 10) : appendSizeRight(out, budget);
  readCounter(page.dram_budget_bytes) == 0 ? out.appendRight("-", 10)
                                           : appendPercent(out, budgetShare(page, table));
  out.append("\n");
}

void writeTables(const StatsPage& page, TextBuffer& out) {
  bool any = false;
  forTables(page, [&](int, const TableReading& table) {
    if (!std::exchange(any, true)) {
      out.appendLeft("table", 26);
      out.appendLeft("tier", 28);
      out.appendRight("rows", 12);
      for (const char* heading : {"row", "hits", "dram", "budget", "share"}) {
        out.appendRight(heading, 10);
      }
      out.append("\n");
    }
    writeTable(page, table, out);
  });
  const uint64_t more = readCounter(page.more_tables);
  if (more != 0) {
    out.append("and ");
    out.appendNumber(more);
    out.append(" tables more\n");
  }
  if (any || more != 0) out.append("\n");
}

/// Of the pages in the compressed pool: what they would take, by what they do.
void writeRatio(const StatsPage& page, TextBuffer& out) {
  const uint64_t bytes = readCounter(page.compressed_bytes);
  if (bytes == 0) return;
  out.append(", ");
  out.appendFixed(static_cast<double>(readCounter(page.compressed_pages) * kPageSize) /
                      static_cast<double>(bytes),
                  1);
  out.append(" to 1");
}

void writeSampling(const StatsPage& page, double ratio, TextBuffer& out) {
  out.append("sampling      ");
  out.appendFixed(100 * ratio, 2);
  out.append(" % of a core");
  for (const SampleStats& source : sourcesOf(page)) {
    out.append("; ");
    appendSafe(out, statsText(source.source), 0);
    out.append(' ');
    out.appendNumber(readCounter(source.count));
  }
  out.append("\n");
}

}  // namespace

void appendServer(TextBuffer& out, const ServerView& server) {
  out.append(server.role == ServerRole::kSpare ? "  spare: " : "  copy on ");
  appendSafe(out, server.name, 0);
  if (server.role == ServerRole::kLost) {
    out.append(": lost, ");
    out.append(server.why);
  } else if (server.role == ServerRole::kFilling) {
    out.append(": being made, ");
    out.appendNumber(server.copied_pages);
    out.append(" of ");
    out.appendNumber(server.of_pages);
    out.append(" pages");
  }
  if (server.unverified_reads != 0) {
    out.append("; ");
    out.appendNumber(server.unverified_reads);
    out.append(" reads did not verify, ");
    out.appendNumber(server.mended_pages);
    out.append(" pages mended");
  }
  out.append("\n");
}

void writeStatsTable(const StatsPage& page, Nanoseconds now, TextBuffer& out) {
  const StatSpan span = spanOf(page, now);
  appendSafe(out, statsText(page.program), 0);
  out.append(", process ");
  out.appendNumber(page.pid);
  out.append(", ");
  appendSafe(out, statsText(page.mode), 0);
  out.append(", up ");
  out.appendFixed(span.elapsed, 1);
  out.append(" s\n");
  appendFilled(out, readCounter(page.dram_budget_bytes) != 0 ? kWithBudget : kWithoutBudget, page);
  appendFilled(out, kMemory, page);
  writeTiers(page, out);
  writeTables(page, out);
  appendFilled(out, kMoves, page);
  if (readCounter(page.promotions_held_by_pins) != 0) appendFilled(out, kHeld, page);
  writeSampling(page, span.sampling_ratio, out);
  if (readCounter(page.compressed_pages) + readCounter(page.compressed_hits) != 0) {
    appendFilled(out, kInThePool, page);
    writeRatio(page, out);
    appendFilled(out, kCompressed, page);
  }
  if (readCounter(page.direct_suspensions) != 0) appendFilled(out, kSuspended, page);
  if (readCounter(page.lost_pages) != 0) appendFilled(out, kLost, page);
  forErrors(page, [&](std::string_view line) {
    out.append("error         ");
    appendSafe(out, line, 0);
    out.append("\n");
  });
}

}  // namespace tidepool
