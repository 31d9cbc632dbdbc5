// SPDX-License-Identifier: Apache-2.0
// writeStatsJson(): the statistics page as one JSON object. See stats_json.h. Every counter is read
// relaxed: each is exact, the whole is not one snapshot.
#include "runtime/stats/stats_json.h"

#include <algorithm>

#include "runtime/stats/stats_region.h"

namespace tidepool {
namespace {

uint64_t read(const StatCounter& counter) { return counter.load(std::memory_order_relaxed); }

/// Bytes of the well-formed UTF-8 sequence at the start of `text`; 0 if there is none.
size_t utf8Length(std::string_view text) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char lead = byte(0);
  if (lead < 0x80) return 1;
  const size_t length = lead >= 0xc2 && lead <= 0xdf   ? 2
                        : (lead & 0xf0) == 0xe0        ? 3
                        : lead >= 0xf0 && lead <= 0xf4 ? 4
                                                       : 0;
  if (length == 0 || length > text.size()) return 0;
  for (size_t i = 1; i < length; ++i) {
    if ((byte(i) & 0xc0) != 0x80) return 0;
  }
  // Overlong forms, surrogates, and code points beyond U+10FFFF.
  if (lead == 0xe0 && byte(1) < 0xa0) return 0;
  if (lead == 0xed && byte(1) > 0x9f) return 0;
  if (lead == 0xf0 && byte(1) < 0x90) return 0;
  if (lead == 0xf4 && byte(1) > 0x8f) return 0;
  return length;
}

void appendEscape(TextBuffer& out, unsigned char control) {
  constexpr char kHex[] = "0123456789abcdef";
  out.append("\\u00");
  out.append(kHex[control >> 4]);
  out.append(kHex[control & 15]);
}

/// Writes keys and values of one object at a time, minding the commas. Borrows the buffer.
class JsonWriter {
 public:
  explicit JsonWriter(TextBuffer& out) : out_(out) {}

  void open(char bracket) {
    out_.append(bracket);
    first_ = true;
  }
  void close(char bracket) {
    out_.append(bracket);
    first_ = false;
  }
  /// Starts the next element of an array, or (as part of key()) of an object.
  void next() {
    if (!first_) out_.append(',');
    first_ = false;
  }
  JsonWriter& key(std::string_view name) {
    next();
    out_.append('"');
    out_.append(name);  // keys are our own literals: nothing to escape
    out_.append("\":");
    return *this;
  }
  void number(std::string_view name, uint64_t value) { key(name).out_.appendNumber(value); }
  void counter(std::string_view name, const StatCounter& value) { number(name, read(value)); }
  void fixed(std::string_view name, double value, int decimals) {
    key(name).out_.appendFixed(value, decimals);
  }
  void text(std::string_view name, std::string_view value) {
    appendJsonString(key(name).out_, value);
  }
  void flag(std::string_view name, const StatCounter& value) {
    key(name).out_.append(read(value) != 0 ? "true" : "false");
  }

 private:
  TextBuffer& out_;
  bool first_ = true;
};

void writeTiers(const StatsPage& page, JsonWriter& json) {
  json.key("tiers").open('[');
  // Acquire: pairs with the release in addStatsTier(). Clamped: the count is the writer's word.
  const uint64_t count =
      std::min<uint64_t>(page.tier_count.load(std::memory_order_acquire), kMaxTiers);
  for (uint64_t i = 0; i < count; ++i) {
    const TierStats& tier = page.tiers[i];
    json.next();
    json.open('{');
    json.text("name", statsText(tier.name));
    json.text("kind", statsText(tier.kind));
    json.counter("capacity_bytes", tier.capacity_bytes);
    json.counter("used_bytes", tier.used_bytes);
    json.counter("reads_bytes", tier.reads_bytes);
    json.counter("writes_bytes", tier.writes_bytes);
    json.flag("emulated", tier.emulated);
    json.close('}');
  }
  json.close(']');
}

void writeSources(const StatsPage& page, JsonWriter& json) {
  json.key("samples").open('[');
  // Acquire: pairs with the release in addStatsSource().
  const uint64_t count =
      std::min<uint64_t>(page.source_count.load(std::memory_order_acquire), kMaxSources);
  for (uint64_t i = 0; i < count; ++i) {
    const SampleStats& source = page.sources[i];
    json.next();
    json.open('{');
    json.text("source", statsText(source.source));
    json.counter("count", source.count);
    json.fixed("cpu_seconds", static_cast<double>(read(source.cpu_nanoseconds)) * 1e-9, 6);
    json.close('}');
  }
  json.close(']');
}

/// The errors still in the ring, oldest first.
void writeErrors(const StatsPage& page, JsonWriter& json, TextBuffer& out) {
  json.counter("error_count", page.error_count);
  json.key("errors").open('[');
  const uint64_t count = read(page.error_count);
  const uint64_t kept = std::min<uint64_t>(count, kMaxErrors);
  for (uint64_t i = count - kept; i != count; ++i) {
    char line[256];
    readStatsError(page, static_cast<int>(i % kMaxErrors), line);
    json.next();
    appendJsonString(out, line);
  }
  json.close(']');
}

void writeFaults(const StatsPage& page, JsonWriter& json) {
  json.key("faults").open('{');
  json.counter("missing", page.faults_missing);
  json.counter("write_protect", page.faults_write_protect);
  json.fixed("p50_us", static_cast<double>(page.fault_latency.quantile(0.5).value()) / 1000, 3);
  json.fixed("p99_us", static_cast<double>(page.fault_latency.quantile(0.99).value()) / 1000, 3);
  json.close('}');
}

}  // namespace

void appendJsonString(TextBuffer& out, std::string_view text) {
  out.append('"');
  while (!text.empty()) {
    const size_t length = utf8Length(text);
    if (length == 0) {
      out.append("\\ufffd");
    } else if (text[0] == '"' || text[0] == '\\') {
      out.append('\\');
      out.append(text[0]);
    } else if (static_cast<unsigned char>(text[0]) < 0x20 || text[0] == 0x7f) {
      appendEscape(out, static_cast<unsigned char>(text[0]));
    } else {
      out.append(text.substr(0, length));
    }
    text.remove_prefix(std::max<size_t>(length, 1));
  }
  out.append('"');
}

void writeStatsJson(const StatsPage& page, Nanoseconds now, TextBuffer& out) {
  const uint64_t started = read(page.started_nanoseconds);
  const double elapsed =
      now.value() > started ? static_cast<double>(now.value() - started) * 1e-9 : 0;
  const double sampling = static_cast<double>(read(page.sampling_cpu_nanoseconds)) * 1e-9;
  JsonWriter json(out);
  json.open('{');
  json.number("schema", page.schema);
  json.number("pid", page.pid);
  json.text("program", statsText(page.program));
  json.text("mode", statsText(page.mode));
  json.fixed("elapsed_seconds", elapsed, 3);
  json.counter("dram_budget_bytes", page.dram_budget_bytes);
  json.counter("dram_used_bytes", page.dram_used_bytes);
  json.counter("managed_bytes", page.managed_bytes);
  json.counter("managed_local_bytes", page.managed_local_bytes);
  json.counter("unmanaged_bytes", page.unmanaged_bytes);
  json.counter("metadata_bytes", page.metadata_bytes);
  writeTiers(page, json);
  json.counter("promotions", page.promotions);
  json.counter("promoted_bytes", page.promoted_bytes);
  json.counter("demotions", page.demotions);
  json.counter("demoted_bytes", page.demoted_bytes);
  json.counter("wasted_migrations", page.wasted_migrations);
  json.counter("clean_evictions", page.clean_evictions);
  json.counter("rescues", page.rescues);
  json.counter("prefetched_pages", page.prefetched_pages);
  json.counter("prefetch_hits", page.prefetch_hits);
  json.counter("lost_pages", page.lost_pages);
  writeFaults(page, json);
  writeSources(page, json);
  json.fixed("sampling_cpu_seconds", sampling, 6);
  json.fixed("sampling_cpu_ratio", elapsed > 0 ? sampling / elapsed : 0, 6);
  json.fixed("service_cpu_seconds", static_cast<double>(read(page.service_cpu_nanoseconds)) * 1e-9,
             6);
  writeErrors(page, json, out);
  json.close('}');
}

}  // namespace tidepool
