// SPDX-License-Identifier: Apache-2.0
// writeStatsJson(): the statistics page as one JSON object. See stats_json.h; what is written is
// listed in stats_fields.h.
#include "runtime/stats/stats_json.h"

#include <algorithm>
#include <utility>

#include "runtime/stats/stats_fields.h"
#include "runtime/stats/table_stats.h"

namespace tidepool {
namespace {

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
  void fixed(std::string_view name, double value, int decimals) {
    key(name).out_.appendFixed(value, decimals);
  }
  void text(std::string_view name, std::string_view value) {
    appendJsonString(key(name).out_, value);
  }
  void flag(std::string_view name, bool value) { key(name).out_.append(value ? "true" : "false"); }

 private:
  TextBuffer& out_;
  bool first_ = true;
};

void writeField(JsonWriter& json, const StatField& field, uint64_t value) {
  switch (field.unit) {
    case StatUnit::kCount:
    case StatUnit::kBytes:
      return json.number(field.key, value);
    case StatUnit::kSeconds:
      return json.fixed(field.key, static_cast<double>(value) * 1e-9, 6);
    case StatUnit::kMicroseconds:
      return json.fixed(field.key, static_cast<double>(value) / 1000, 3);
  }
}

void writeGroup(const StatsPage& page, JsonWriter& json, StatGroup group) {
  for (const StatField& field : kStatFields) {
    if (field.group == group) writeField(json, field, field.read(page));
  }
}

/// Of a mirror.
void writeServers(const TierStats& tier, JsonWriter& json) {
  bool any = false;
  forServers(tier, [&](const ServerView& server) {
    if (!std::exchange(any, true)) json.key("copies").open('[');
    json.next();
    json.open('{');
    json.text("server", server.name);
    json.text("state", serverRoleName(server.role));
    if (server.role == ServerRole::kLost) json.text("why", server.why);
    if (server.role == ServerRole::kFilling) {
      json.number("copied_pages", server.copied_pages);
      json.number("pages_to_copy", server.of_pages);
    }
    if (server.unverified_reads != 0) {
      json.number("unverified_reads", server.unverified_reads);
      json.number("mended_pages", server.mended_pages);
    }
    json.close('}');
  });
  if (any) json.close(']');
}

void writeTiers(const StatsPage& page, JsonWriter& json) {
  json.key("tiers").open('[');
  for (const TierStats& tier : tiersOf(page)) {
    json.next();
    json.open('{');
    json.text("name", statsText(tier.name));
    json.text("kind", statsText(tier.kind));
    for (const TierField& field : kTierFields) {
      json.number(field.key, readCounter(tier.*field.counter));
    }
    json.flag("emulated", readCounter(tier.emulated) != 0);
    const auto ways = static_cast<PageWays>(readCounter(tier.page_ways));
    if (ways != PageWays::kNone) {
      json.text("transport", pageWaysName(ways));
      json.number("reconnections", readCounter(tier.reconnections));
    }
    if (!noteOf(tier).empty()) json.text("transport_note", noteOf(tier));
    writeServers(tier, json);
    json.close('}');
  }
  json.close(']');
}

void writeTables(const StatsPage& page, JsonWriter& json) {
  json.key("tables").open('[');
  forTables(page, [&](int, const TableReading& table) {
    json.next();
    json.open('{');
    json.text("name", statsText(table.name));
    json.text("tier", statsText(table.tier));
    json.number("rows", table.rows);
    json.number("row_bytes", table.row_bytes);
    const uint64_t lookups = table[TableCount::kLookups], hits = table[TableCount::kHits];
    json.number("lookups", lookups);
    json.number("hits", hits);
    json.fixed("hit_ratio", hitRatio(hits, lookups), 6);
    json.number("dram_bytes", table[TableCount::kDramBytes]);
    json.number("dram_budget_bytes", table[TableCount::kDramBudgetBytes]);
    json.fixed("dram_budget_share", budgetShare(page, table), 6);
    json.close('}');
  });
  json.close(']');
  json.number("more_tables", readCounter(page.more_tables));
}

void writeSources(const StatsPage& page, JsonWriter& json) {
  json.key("samples").open('[');
  for (const SampleStats& source : sourcesOf(page)) {
    json.next();
    json.open('{');
    json.text("source", statsText(source.source));
    json.number("count", readCounter(source.count));
    json.fixed("cpu_seconds", static_cast<double>(readCounter(source.cpu_nanoseconds)) * 1e-9, 6);
    json.close('}');
  }
  json.close(']');
}

void writeErrors(const StatsPage& page, JsonWriter& json, TextBuffer& out) {
  json.number("error_count", readCounter(page.error_count));
  json.key("errors").open('[');
  forErrors(page, [&](std::string_view line) {
    json.next();
    appendJsonString(out, line);
  });
  json.close(']');
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
  const StatSpan span = spanOf(page, now);
  JsonWriter json(out);
  json.open('{');
  json.number("schema", page.schema);
  json.number("pid", page.pid);
  json.text("program", statsText(page.program));
  json.text("mode", statsText(page.mode));
  json.fixed("elapsed_seconds", span.elapsed, 3);
  writeGroup(page, json, StatGroup::kMemory);
  writeTiers(page, json);
  writeTables(page, json);
  writeGroup(page, json, StatGroup::kMoves);
  json.key("faults").open('{');
  writeGroup(page, json, StatGroup::kFaults);
  json.close('}');
  writeSources(page, json);
  writeGroup(page, json, StatGroup::kCpu);
  json.fixed("sampling_cpu_ratio", span.sampling_ratio, 6);
  writeErrors(page, json, out);
  json.close('}');
}

}  // namespace tidepool
