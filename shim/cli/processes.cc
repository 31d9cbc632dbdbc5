// SPDX-License-Identifier: Apache-2.0
// `tidepool stat` and `tidepool ps`. See processes.h.
#include "shim/cli/processes.h"

#include <dirent.h>
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <memory>

#include "runtime/base/clock.h"
#include "runtime/base/text_buffer.h"
#include "runtime/stats/stats_json.h"
#include "shim/cli/launch.h"

namespace tidepool::cli {
namespace {

uint64_t get(const StatCounter& counter) { return counter.load(std::memory_order_relaxed); }

struct DirectoryCloser {
  void operator()(DIR* directory) const { closedir(directory); }
};

void noOperands(const char* command, const Arguments& arguments) {
  if (arguments.operands().empty()) return;
  throw UsageError(fmt::format("{}: unexpected '{}'", command, arguments.operands().front()));
}

}  // namespace

int pidOf(const Arguments& arguments, const char* command) {
  if (arguments.operands().size() != 1) {
    throw UsageError(fmt::format("{0}: give one process id: tidepool {0} PID", command));
  }
  const std::string& text = arguments.operands().front();
  int pid = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), pid);
  if (error != std::errc() || end != text.data() + text.size() || pid <= 0) {
    throw UsageError(
        fmt::format("{}: '{}' is not a process id: `tidepool ps` lists them", command, text));
  }
  return pid;
}

std::string safeText(std::string_view text, size_t most) {
  std::string safe(text.substr(0, most));
  for (char& character : safe) {
    const auto byte = static_cast<unsigned char>(character);
    if (byte < 0x20 || byte == 0x7f) character = '?';
  }
  return safe;
}

namespace {

/// Of tiers for whose kind `counts(kind)` holds.
template <typename Counts>
Bytes usedBytes(const StatsPage& page, Counts counts) {
  uint64_t used = 0;
  // Acquire: pairs with the store in describeFarTiers().
  const auto count = std::min<uint64_t>(page.tier_count.load(std::memory_order_acquire), kMaxTiers);
  for (uint64_t i = 0; i < count; ++i) {
    if (counts(statsText(page.tiers[i].kind))) used += get(page.tiers[i].used_bytes);
  }
  return Bytes(used);
}

}  // namespace

Bytes farBytes(const StatsPage& page) {
  return usedBytes(page,
                   [](std::string_view kind) { return kind != "local" && kind != "compressed"; });
}

Bytes poolBytes(const StatsPage& page) {
  return usedBytes(page, [](std::string_view kind) { return kind == "compressed"; });
}

std::vector<StatsView> findProcesses() {
  std::vector<StatsView> found;
  const std::unique_ptr<DIR, DirectoryCloser> directory(opendir("/proc"));
  while (const dirent* entry = directory ? readdir(directory.get()) : nullptr) {
    const std::string_view name = entry->d_name;
    int pid = 0;
    const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), pid);
    if (error != std::errc() || end != name.data() + name.size()) continue;
    Result<StatsView> view = StatsView::open(pid);
    if (view) found.push_back(std::move(*view));
  }
  std::sort(found.begin(), found.end(),
            [](const StatsView& left, const StatsView& right) { return left.pid() < right.pid(); });
  return found;
}

std::string statsJson(const StatsView& view) {
  std::vector<char> memory(kStatsJsonCapacity);
  TextBuffer out(memory);
  writeStatsJson(view.page(), MonotonicClock().now(), out);
  return std::string(out.view());
}

int stat(const Arguments& arguments) {
  const Result<StatsView> view = StatsView::open(pidOf(arguments, "stat"));
  if (!view) throw CommandError(1, view.error().text());
  if (arguments.has("--json")) {
    fmt::print("{}\n", statsJson(*view));
    return 0;
  }
  std::vector<char> memory(kStatsTableCapacity);
  TextBuffer out(memory);
  writeStatsTable(view->page(), MonotonicClock().now(), out);
  fmt::print("{}", out.view());
  return 0;
}

int ps(const Arguments& arguments) {
  noOperands("ps", arguments);
  const std::vector<StatsView> processes = findProcesses();
  if (arguments.has("--json")) {
    std::string json;
    for (const StatsView& view : processes) json += (json.empty() ? "\n" : ",\n") + statsJson(view);
    fmt::print("[{}]\n", json.empty() ? json : json + "\n");
    return 0;
  }
  if (processes.empty()) {
    fmt::print(
        stderr,
        "tidepool: no process of yours runs under Tidepool: start one with `tidepool run`\n");
    return 0;
  }
  constexpr std::string_view kRow = "{:>8}  {:<16}  {:<9}  {:>8}  {:>8}  {:>8}  {:>8}\n";
  fmt::print(kRow, "PID", "PROGRAM", "MODE", "DRAM", "BUDGET", "FAR", "MANAGED");
  for (const StatsView& view : processes) {
    const StatsPage& page = view.page();
    const Bytes budget(get(page.dram_budget_bytes));
    fmt::print(kRow, view.pid(), safeText(statsText(page.program), 16),
               safeText(statsText(page.mode), 9), sizeText(Bytes(get(page.dram_used_bytes))),
               budget == Bytes() ? "none" : sizeText(budget), sizeText(farBytes(page)),
               sizeText(Bytes(get(page.managed_bytes))));
  }
  return 0;
}

}  // namespace tidepool::cli
