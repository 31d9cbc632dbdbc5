// SPDX-License-Identifier: Apache-2.0
// writeStatsTable(): the statistics page for people. See stats_json.h. Text from the page is shown
// with control characters replaced: it goes to a terminal.
#include <algorithm>

#include "runtime/stats/stats_json.h"
#include "runtime/stats/stats_region.h"

namespace tidepool {
namespace {

constexpr size_t kLabelWidth = 14;

uint64_t read(const StatCounter& counter) { return counter.load(std::memory_order_relaxed); }

/// Appends `text` with what could steer a terminal replaced by '?'.
void appendSafe(TextBuffer& out, std::string_view text, size_t width) {
  for (const char character : text) {
    const auto byte = static_cast<unsigned char>(character);
    out.append(byte < 0x20 || byte == 0x7f ? '?' : character);
  }
  for (size_t used = text.size(); used < width; ++used) out.append(' ');
}

void appendSizeCell(TextBuffer& out, const StatCounter& size, size_t width) {
  ShortText<24> text;
  text.appendSize(Bytes(read(size)));
  out.appendRight(text.view(), width);
}

void label(TextBuffer& out, std::string_view name) { out.appendLeft(name, kLabelWidth); }

void writeMemory(const StatsPage& page, TextBuffer& out) {
  label(out, "dram");
  out.appendSize(Bytes(read(page.dram_used_bytes)));
  if (read(page.dram_budget_bytes) != 0) {
    out.append(" of a budget of ");
    out.appendSize(Bytes(read(page.dram_budget_bytes)));
  } else {
    out.append(", no budget");
  }
  out.append("\n");
  label(out, "managed");
  out.appendSize(Bytes(read(page.managed_bytes)));
  out.append(", ");
  out.appendSize(Bytes(read(page.managed_local_bytes)));
  out.append(" of it local; unmanaged ");
  out.appendSize(Bytes(read(page.unmanaged_bytes)));
  out.append("; metadata ");
  out.appendSize(Bytes(read(page.metadata_bytes)));
  out.append("\n");
}

void writeTiers(const StatsPage& page, TextBuffer& out) {
  // Acquire: pairs with the release in addStatsTier().
  const uint64_t count =
      std::min<uint64_t>(page.tier_count.load(std::memory_order_acquire), kMaxTiers);
  if (count == 0) return;
  out.append("\n");
  out.appendLeft("tier", 26);
  out.appendLeft("kind", 10);
  for (const std::string_view head : {"used", "capacity", "read", "written"}) {
    out.appendRight(head, 10);
  }
  out.append("\n");
  for (uint64_t i = 0; i < count; ++i) {
    const TierStats& tier = page.tiers[i];
    appendSafe(out, statsText(tier.name), 26);
    appendSafe(out, statsText(tier.kind), 10);
    appendSizeCell(out, tier.used_bytes, 10);
    appendSizeCell(out, tier.capacity_bytes, 10);
    appendSizeCell(out, tier.reads_bytes, 10);
    appendSizeCell(out, tier.writes_bytes, 10);
    if (read(tier.emulated) != 0) out.append("  emulated");
    out.append("\n");
  }
  out.append("\n");
}

void writeMoves(const StatsPage& page, TextBuffer& out) {
  label(out, "promoted");
  out.appendNumber(read(page.promotions));
  out.append(" (");
  out.appendSize(Bytes(read(page.promoted_bytes)));
  out.append(")   demoted ");
  out.appendNumber(read(page.demotions));
  out.append(" (");
  out.appendSize(Bytes(read(page.demoted_bytes)));
  out.append(")   wasted ");
  out.appendNumber(read(page.wasted_migrations));
  out.append("\n");
  label(out, "evictions");
  out.appendNumber(read(page.clean_evictions));
  out.append(" clean, ");
  out.appendNumber(read(page.rescues));
  out.append(" rescued; prefetched ");
  out.appendNumber(read(page.prefetched_pages));
  out.append(", used ");
  out.appendNumber(read(page.prefetch_hits));
  out.append("\n");
  label(out, "faults");
  out.appendNumber(read(page.faults_missing));
  out.append(" missing, ");
  out.appendNumber(read(page.faults_write_protect));
  out.append(" write-protect; p50 ");
  out.appendFixed(static_cast<double>(page.fault_latency.quantile(0.5).value()) / 1000, 1);
  out.append(" us, p99 ");
  out.appendFixed(static_cast<double>(page.fault_latency.quantile(0.99).value()) / 1000, 1);
  out.append(" us\n");
}

void writeSampling(const StatsPage& page, double elapsed, TextBuffer& out) {
  label(out, "sampling");
  const double spent = static_cast<double>(read(page.sampling_cpu_nanoseconds)) * 1e-9;
  out.appendFixed(elapsed > 0 ? 100 * spent / elapsed : 0, 2);
  out.append(" % of a core");
  // Acquire: pairs with the release in addStatsSource().
  const uint64_t count =
      std::min<uint64_t>(page.source_count.load(std::memory_order_acquire), kMaxSources);
  for (uint64_t i = 0; i < count; ++i) {
    out.append("; ");
    appendSafe(out, statsText(page.sources[i].source), 0);
    out.append(' ');
    out.appendNumber(read(page.sources[i].count));
  }
  out.append("\n");
}

void writeErrors(const StatsPage& page, TextBuffer& out) {
  if (read(page.lost_pages) != 0) {
    label(out, "lost pages");
    out.appendNumber(read(page.lost_pages));
    out.append("\n");
  }
  const uint64_t count = read(page.error_count);
  for (uint64_t i = count - std::min<uint64_t>(count, kMaxErrors); i != count; ++i) {
    char line[256];
    readStatsError(page, static_cast<int>(i % kMaxErrors), line);
    label(out, "error");
    appendSafe(out, line, 0);
    out.append("\n");
  }
}

}  // namespace

void writeStatsTable(const StatsPage& page, Nanoseconds now, TextBuffer& out) {
  const uint64_t started = read(page.started_nanoseconds);
  const double elapsed =
      now.value() > started ? static_cast<double>(now.value() - started) * 1e-9 : 0;
  appendSafe(out, statsText(page.program), 0);
  out.append(", process ");
  out.appendNumber(page.pid);
  out.append(", ");
  appendSafe(out, statsText(page.mode), 0);
  out.append(", up ");
  out.appendFixed(elapsed, 1);
  out.append(" s\n");
  writeMemory(page, out);
  writeTiers(page, out);
  writeMoves(page, out);
  writeSampling(page, elapsed, out);
  writeErrors(page, out);
}

}  // namespace tidepool
