// SPDX-License-Identifier: Apache-2.0
// Options: the table of keys, what each accepts, and the TIDEPOOL_CONF string both ways. Runs in
// the shim's constructor, before the program: no exceptions, no heap, no locale. Thread-safe.
#include "runtime/options.h"

#include <sys/sysinfo.h>

#include <algorithm>
#include <charconv>
#include <cstring>

#include "runtime/base/check.h"
#include "runtime/base/nearest.h"
#include "runtime/base/text_buffer.h"
#include "runtime/os/numa.h"

namespace tidepool {
namespace {

// Below this no program gets through its own start-up; it is surely a slip (a forgotten suffix).
constexpr Bytes kLeastDram(kMiB);
// Space smaller than this holds no useful table; beyond 64T the kernel's own mappings (a 47-bit
// address space, 128T) leave no room.
constexpr Bytes kLeastSpace(64 * kMiB);
constexpr Bytes kMostSpace(64 * kTiB);

/// printf arguments for a string_view under "%.*s"; cut, so that the advice after it still fits.
#define TP_SV(text) static_cast<int>(std::min<size_t>((text).size(), 60)), (text).data()

Result<bool> parseBool(std::string_view key, std::string_view value) {
  for (const std::string_view word : {"true", "yes", "on", "1"}) {
    if (value == word) return true;
  }
  for (const std::string_view word : {"false", "no", "off", "0"}) {
    if (value == word) return false;
  }
  return fail(ErrorCode::kInvalidArgument, "'%.*s' is not a value for %.*s: write true or false",
              TP_SV(value), TP_SV(key));
}

Status setBool(bool& option, std::string_view key, std::string_view value) {
  const Result<bool> parsed = parseBool(key, value);
  if (!parsed) return tl::unexpected(parsed.error());
  option = *parsed;
  return {};
}

Status setDram(Options& options, std::string_view, std::string_view value) {
  const Bytes machine = localMemory();
  const Result<Bytes> size = parseSize(value, machine);
  if (!size) return tl::unexpected(size.error());
  if (*size < kLeastDram) {
    return fail(ErrorCode::kInvalidArgument,
                "a DRAM budget of %llu bytes is too small: give at least 1M (did you forget a "
                "suffix such as M or G?)",
                static_cast<unsigned long long>(size->value()));
  }
  if (*size > machine) {
    return fail(ErrorCode::kInvalidArgument,
                "a DRAM budget of %.*s is more than this machine has (%s of local memory): give at "
                "most that, or a share such as 50%%",
                TP_SV(value), SizeText(machine).c_str());
  }
  options.dram = *size;
  return {};
}

Status setFar(Options& options, std::string_view, std::string_view value) {
  const Result<FarSpec> spec = parseFarSpec(value);
  if (!spec) return tl::unexpected(spec.error());
  if (options.far_count == Options::kMaxFar) {
    return fail(ErrorCode::kInvalidArgument, "more than %zu far tiers: leave out '%.*s'",
                Options::kMaxFar, TP_SV(value));
  }
  options.far[options.far_count++] = *spec;
  return {};
}

Status setStrict(Options& options, std::string_view key, std::string_view value) {
  return setBool(options.strict, key, value);
}
Status setSampling(Options& options, std::string_view key, std::string_view value) {
  return setBool(options.sampling, key, value);
}
Status setSamplingPmu(Options& options, std::string_view key, std::string_view value) {
  return setBool(options.sampling_pmu, key, value);
}
Status setUffdMove(Options& options, std::string_view key, std::string_view value) {
  return setBool(options.uffd_move, key, value);
}
Status setPrefetch(Options& options, std::string_view key, std::string_view value) {
  return setBool(options.prefetch, key, value);
}

Status setSamplingCpu(Options& options, std::string_view, std::string_view value) {
  const bool percent = !value.empty() && value.back() == '%';
  const std::string_view digits = percent ? value.substr(0, value.size() - 1) : value;
  double share = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), share);
  if (percent) share /= 100;
  const bool whole = error == std::errc() && end == digits.data() + digits.size();
  // Written so that not-a-number fails too.
  if (!whole || !(share > 0 && share <= 1)) {
    return fail(
        ErrorCode::kInvalidArgument,
        "'%.*s' is not a share of one core: write 0.01 or 1%% (sampling:false turns it off)",
        TP_SV(value));
  }
  options.sampling_cpu = share;
  return {};
}

Status setMigrationRate(Options& options, std::string_view, std::string_view value) {
  if (value == "auto") {
    options.migration_rate = 0;
    return {};
  }
  const Result<Bytes> rate = parseSize(value);
  if (!rate) return tl::unexpected(rate.error());
  options.migration_rate = static_cast<double>(rate->value());
  return {};
}

Status setSpace(Options& options, std::string_view, std::string_view value) {
  const Result<Bytes> size = parseSize(value);
  if (!size) return tl::unexpected(size.error());
  if (*size < kLeastSpace || *size > kMostSpace) {
    return fail(ErrorCode::kInvalidArgument, "space '%.*s' is out of range: give 64M to 64T",
                TP_SV(value));
  }
  options.space = Bytes(roundUp(size->value(), kGranuleSize));
  return {};
}

Status setRemoteTimeout(Options& options, std::string_view, std::string_view value) {
  const Result<Nanoseconds> timeout = parseDuration(value);
  if (!timeout) return tl::unexpected(timeout.error());
  options.remote_timeout = *timeout;
  return {};
}

Status setRemoteReconnect(Options& options, std::string_view, std::string_view value) {
  if (value == "off") {
    options.remote_reconnect = Nanoseconds(0);
    return {};
  }
  const Result<Nanoseconds> limit = parseDuration(value);
  if (!limit) return tl::unexpected(limit.error());
  options.remote_reconnect = *limit;
  return {};
}

Status setPath(std::span<char> path, std::string_view key, std::string_view value) {
  if (value.size() >= path.size()) {
    return fail(ErrorCode::kInvalidArgument, "the %.*s path is longer than %zu bytes: %.*s...",
                TP_SV(key), path.size() - 1, TP_SV(value));
  }
  memcpy(path.data(), value.data(), value.size());
  path[value.size()] = '\0';
  return {};
}

Status setStatsFile(Options& options, std::string_view key, std::string_view value) {
  if (value.empty()) {
    return fail(ErrorCode::kInvalidArgument, "stats_file needs a path, or - for standard error");
  }
  return setPath(options.stats_file, key, value);
}

Status setAgent(Options& options, std::string_view key, std::string_view value) {
  if (value.empty()) {
    return fail(ErrorCode::kInvalidArgument, "agent needs the path of the agent's socket");
  }
  return setPath(options.agent, key, value);
}

Status setBudgetScope(Options& options, std::string_view, std::string_view value) {
  if (value != "process" && value != "managed") {
    return fail(ErrorCode::kInvalidArgument, "budget_scope is 'process' or 'managed', not '%.*s'",
                TP_SV(value));
  }
  options.budget_scope = value == "managed" ? BudgetScope::kManaged : BudgetScope::kProcess;
  return {};
}

Status setStart(Options& options, std::string_view, std::string_view value) {
  if (value != "auto" && value != "now") {
    return fail(ErrorCode::kInvalidArgument, "start is 'auto' or 'now', not '%.*s'", TP_SV(value));
  }
  options.start = value == "now" ? StartWhen::kNow : StartWhen::kAuto;
  return {};
}

Status setForetell(Options& options, std::string_view, std::string_view value) {
  if (value != "auto" && value != "off") {
    return fail(ErrorCode::kInvalidArgument, "foretell is 'auto' or 'off', not '%.*s'",
                TP_SV(value));
  }
  options.foretell = value == "auto";
  return {};
}

Status setCompress(Options& options, std::string_view, std::string_view value) {
  if (value != "auto" && value != "off") {
    return fail(ErrorCode::kInvalidArgument, "compress is 'auto' or 'off', not '%.*s'",
                TP_SV(value));
  }
  options.compress = value == "auto";
  return {};
}

Status setSeal(Options& options, std::string_view, std::string_view value) {
  if (value != "on" && value != "off") {
    return fail(ErrorCode::kInvalidArgument, "seal is 'on' or 'off', not '%.*s'", TP_SV(value));
  }
  options.seal = value == "on";
  return {};
}

Status setPins(Options& options, std::string_view, std::string_view value) {
  if (value != "ask" && value != "never") {
    return fail(ErrorCode::kInvalidArgument, "pins is 'ask' or 'never', not '%.*s'", TP_SV(value));
  }
  options.pins = value == "never" ? Pins::kNever : Pins::kAsk;
  return {};
}

using Setter = Status (*)(Options&, std::string_view key, std::string_view value);

struct OptionRow {
  std::string_view key;
  Setter set;
};
constexpr OptionRow kOptions[] = {
    {"dram", setDram},
    {"far", setFar},
    {"strict", setStrict},
    {"sampling", setSampling},
    {"sampling_cpu", setSamplingCpu},
    {"migration_rate", setMigrationRate},
    {"uffd_move", setUffdMove},
    {"prefetch", setPrefetch},
    {"space", setSpace},
    {"remote_timeout", setRemoteTimeout},
    {"remote_reconnect", setRemoteReconnect},
    {"stats_file", setStatsFile},
    {"budget_scope", setBudgetScope},
    {"sampling_pmu", setSamplingPmu},
    {"agent", setAgent},
    {"start", setStart},
    {"pins", setPins},
    {"foretell", setForetell},
    {"compress", setCompress},
    {"seal", setSeal},
};
constexpr std::array<std::string_view, std::size(kOptions)> keysOfOptions() {
  std::array<std::string_view, std::size(kOptions)> keys;
  for (size_t i = 0; i < keys.size(); ++i) keys[i] = kOptions[i].key;
  return keys;
}
constexpr std::array kKeys = keysOfOptions();

/// One "key:value" of a TIDEPOOL_CONF string with its escapes undone.
struct ConfItem {
  char text[512];
  size_t length = 0;
  std::string_view view() const { return {text, length}; }
};

/// Takes the first item off `rest`. Errors: kInvalidArgument for an item that is too long.
Status takeItem(std::string_view& rest, ConfItem& item) {
  item.length = 0;
  size_t at = 0;
  while (at < rest.size() && (rest[at] == ' ' || rest[at] == '\t')) ++at;
  for (; at < rest.size() && rest[at] != ','; ++at) {
    if (rest[at] == '\\' && at + 1 < rest.size()) ++at;
    if (item.length == sizeof item.text) {
      return fail(ErrorCode::kInvalidArgument, "a TIDEPOOL_CONF item is too long: '%.*s...'",
                  TP_SV(item.view()));
    }
    item.text[item.length++] = rest[at];
  }
  rest.remove_prefix(std::min(rest.size(), at + 1));
  return {};
}

void appendEscaped(TextBuffer& out, std::string_view value) {
  for (const char character : value) {
    if (character == ',' || character == '\\') out.append('\\');
    out.append(character);
  }
}

/// Starts the item `key:` in `out`, after a comma if it is not the first.
TextBuffer& item(TextBuffer& out, std::string_view key) {
  if (!out.view().empty()) out.append(',');
  out.append(key);
  out.append(':');
  return out;
}

void appendFlag(TextBuffer& out, std::string_view key, bool value, bool standard) {
  if (value != standard) item(out, key).append(value ? "true" : "false");
}

}  // namespace

std::span<const std::string_view> optionKeys() { return kKeys; }

Status setOption(Options& options, std::string_view key, std::string_view value) {
  const auto found = std::find(kKeys.begin(), kKeys.end(), key);
  if (found == kKeys.end()) {
    const std::string_view nearest = nearestWord(key, kKeys);
    return fail(ErrorCode::kNotFound, "unknown option '%.*s': did you mean '%.*s'?", TP_SV(key),
                TP_SV(nearest));
  }
  return kOptions[found - kKeys.begin()].set(options, key, value);
}

Result<Options> parseOptions(std::string_view text, void (*warn)(const char* line)) {
  Options options;
  ConfItem conf;
  while (!text.empty()) {
    TP_TRY(takeItem(text, conf));
    if (conf.length == 0) continue;
    const std::string_view pair = conf.view();
    const size_t colon = pair.find(':');
    const bool has_value = colon != std::string_view::npos;
    const Status set = setOption(options, pair.substr(0, colon),
                                 has_value ? pair.substr(colon + 1) : std::string_view());
    if (set) continue;
    if (set.error().code() == ErrorCode::kNotFound) {
      if (warn != nullptr) warn(set.error().text());
      continue;
    }
    if (!has_value) {
      return fail(ErrorCode::kInvalidArgument, "option '%.*s' has no value: write %.*s:VALUE",
                  TP_SV(pair), TP_SV(pair));
    }
    return tl::unexpected(set.error());
  }
  return options;
}

StartOptions parseStartOptions(std::string_view text) {
  Options options;
  bool stats = false;
  ConfItem conf;
  while (!text.empty()) {
    if (!takeItem(text, conf)) {  // too long to be one of these
      text.remove_prefix(std::min(text.find(','), text.size() - 1) + 1);
      continue;
    }
    const std::string_view pair = conf.view();
    const size_t colon = std::min(pair.find(':'), pair.size());
    const std::string_view key = pair.substr(0, colon);
    const std::string_view value = pair.substr(std::min(colon + 1, pair.size()));
    // A value that is none leaves what was said before.
    if (key == "strict") [[maybe_unused]]
      const Status set = setBool(options.strict, key, value);
    if (key == "start") [[maybe_unused]]
      const Status set = setStart(options, key, value);
    if (key == "stats_file") stats = !value.empty();
    uint64_t bytes = 0;
    if (key == "dram" && std::from_chars(value.data(), value.data() + value.size(), bytes).ptr ==
                             value.data() + value.size()) {
      options.dram = Bytes(bytes);
    }
  }
  return {options.strict, options.start, options.dram, stats};
}

Status renderOptions(const Options& options, std::span<char> out) {
  TP_CHECK_OP(options.far_count, <=, Options::kMaxFar);
  const Options standard;
  TextBuffer text(out);
  if (options.dram != standard.dram) item(text, "dram").appendNumber(options.dram.value());
  for (size_t i = 0; i < options.far_count; ++i) {
    char spec[192];
    TP_TRY(renderFarSpec(options.far[i], spec));
    appendEscaped(item(text, "far"), spec);
  }
  appendFlag(text, "strict", options.strict, standard.strict);
  appendFlag(text, "sampling", options.sampling, standard.sampling);
  appendFlag(text, "sampling_pmu", options.sampling_pmu, standard.sampling_pmu);
  if (options.sampling_cpu != standard.sampling_cpu) {
    item(text, "sampling_cpu").appendDouble(options.sampling_cpu);
  }
  if (options.migration_rate > 0) {
    item(text, "migration_rate").appendNumber(static_cast<uint64_t>(options.migration_rate));
  }
  appendFlag(text, "uffd_move", options.uffd_move, standard.uffd_move);
  appendFlag(text, "prefetch", options.prefetch, standard.prefetch);
  if (options.space != standard.space) item(text, "space").appendNumber(options.space.value());
  if (options.remote_timeout != standard.remote_timeout) {
    item(text, "remote_timeout").appendNumber(options.remote_timeout.value());
    text.append("ns");
  }
  if (options.remote_reconnect == Nanoseconds(0)) {
    item(text, "remote_reconnect").append("off");
  } else if (options.remote_reconnect != standard.remote_reconnect) {
    item(text, "remote_reconnect").appendNumber(options.remote_reconnect.value());
    text.append("ns");
  }
  if (options.agent[0] != '\0') appendEscaped(item(text, "agent"), options.agent);
  if (options.stats_file[0] != '\0') appendEscaped(item(text, "stats_file"), options.stats_file);
  if (options.budget_scope == BudgetScope::kManaged) item(text, "budget_scope").append("managed");
  if (options.start == StartWhen::kNow) item(text, "start").append("now");
  if (options.pins == Pins::kNever) item(text, "pins").append("never");
  if (!options.foretell) item(text, "foretell").append("off");
  if (!options.compress) item(text, "compress").append("off");
  if (options.seal) item(text, "seal").append("on");
  if (text.overflowed()) return fail(ErrorCode::kNoSpace, "the options do not fit their buffer");
  return {};
}

Bytes machineMemory() {
  struct sysinfo info;
  // sysinfo(2) fails only for a bad pointer.
  TP_CHECK(sysinfo(&info) == 0);
  return Bytes(static_cast<uint64_t>(info.totalram) * info.mem_unit);
}

Bytes localMemory() {
  const Bytes all = machineMemory();
  const Bytes far = os::readNumaNodes().farMemory();
  // Nodes may have come or gone between the two readings.
  return far < all ? all - far : all;
}

}  // namespace tidepool
