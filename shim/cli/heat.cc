// SPDX-License-Identifier: Apache-2.0
// Reading a process's heat map, what its numbers mean, and JSON. See heat.h.
#include "shim/cli/heat.h"

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <nlohmann/json.hpp>
#include <thread>

#include "runtime/base/clock.h"
#include "runtime/stats/stats_fields.h"
#include "runtime/stats/stats_json.h"
#include "shim/cli/launch.h"
#include "shim/cli/processes.h"
#include "shim/cli/refresh.h"

namespace tidepool::cli {
namespace {

using Json = nlohmann::ordered_json;

constexpr auto kRetry = std::chrono::milliseconds(10);
constexpr int kRetries = 200;  // a map is being written for a moment; the first may take seconds

HeatReport readHeat(const StatsView& view) {
  const HeatPage* const page = view.heat();
  if (page == nullptr) {
    throw CommandError(1, fmt::format("process {} runs a version of Tidepool without heat maps, or "
                                      "with others than this command reads",
                                      view.pid()));
  }
  HeatReport report;
  for (int tries = 0; !page->read(report.map); ++tries) {
    if (tries == kRetries) {
      throw CommandError(1, fmt::format("process {} has not made its first heat map yet: try again "
                                        "in some seconds",
                                        view.pid()));
    }
    std::this_thread::sleep_for(kRetry);
  }
  report.pid = view.pid();
  report.program = safeText(statsText(view.page().program), sizeof view.page().program);
  report.now = MonotonicClock().now();
  const StatSpan span = spanOf(view.page(), report.now);
  report.sampling_ratio = span.sampling_ratio;
  if (span.elapsed > 0) {
    report.map_ratio = static_cast<double>(report.map.cpu.value()) * 1e-9 / span.elapsed;
  }
  return report;
}

uint64_t bytesOf(uint64_t pages) { return toBytes(PageCount(pages)).value(); }

Json rangeJson(const HeatRange& range, const HeatReport& report) {
  Json json = {{"start", range.start}};
  constexpr const char* kKeys[kHeatPlaces] = {"local_bytes",      "direct_bytes", "fetch_bytes",
                                              "compressed_bytes", "zero_bytes",   "lost_bytes"};
  for (size_t i = 0; i < kHeatPlaces; ++i) json[kKeys[i]] = bytesOf(range.places[i]);
  json["known_bytes"] = bytesOf(range.known);
  json["hot_bytes"] = bytesOf(range.hot);
  json["hot_far_bytes"] = bytesOf(range.hot_far);
  if (range.known == 0) {
    for (const char* key : {"heat", "newest_seconds", "oldest_seconds"}) json[key] = nullptr;
    return json;
  }
  json["heat"] = meanHeat(range);
  json["newest_seconds"] = secondsSince(Nanoseconds(range.newest), report.now);
  json["oldest_seconds"] = secondsSince(Nanoseconds(range.oldest), report.now);
  return json;
}

Screen screenOf(bool terminal) {
  Screen screen;
  winsize size = {};
  if (!terminal) return screen;
  if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 && size.ws_row > 0) {
    screen.columns = size.ws_col;
    screen.rows = size.ws_row;
  }
  screen.colours = colourAllowed();
  return screen;
}

int watch(const StatsView& view, Nanoseconds pause) {
  const bool terminal = isatty(STDOUT_FILENO) != 0;
  const RawKeys keys;
  for (;;) {
    const std::string text = heatText(readHeat(view), screenOf(terminal));
    fmt::print("{}{}{}", terminal ? "\x1b[H\x1b[J" : "", text, terminal ? "q ends" : "\n");
    std::fflush(stdout);
    if (std::ferror(stdout) != 0 || keys.waitForQuit(pause)) break;
    if (!StatsView::open(view.pid())) break;  // it has ended
  }
  if (terminal) fmt::print("\n");
  return 0;
}

}  // namespace

HeatRange totalOf(const HeatMap& map) {
  HeatRange total;
  for (const HeatRange& range : map.ranges()) total.add(range);
  return total;
}

double meanHeat(const HeatRange& range) {
  if (range.known == 0) return 0;
  return std::min<double>(kMostHeat, static_cast<double>(range.heat) / range.known);
}

double topHeat(const HeatMap& map) {
  double top = kHot;
  for (const HeatRange& range : map.ranges()) top = std::max(top, meanHeat(range));
  return top;
}

int digitOf(const HeatRange& range, double top) {
  if (range.known == 0) return -1;
  return static_cast<int>(std::clamp(std::ceil(9 * meanHeat(range) / top), 0.0, 9.0));
}

double secondsSince(Nanoseconds then, Nanoseconds now) {
  return now > then ? static_cast<double>((now - then).value()) * 1e-9 : 0;
}

char letterOf(const HeatRange& range) {
  const auto most = std::max_element(range.places.begin(), range.places.end());
  const char letter = kPlaceNames[most - range.places.begin()].letter;
  const bool nearly_all = uint64_t{*most} * 10 >= range.pages() * 9;
  return nearly_all ? letter : static_cast<char>(letter - 'A' + 'a');
}

std::string heatJson(const HeatReport& report) {
  const HeatMap& map = report.map;
  Json json = {{"schema", 1},
               {"pid", report.pid},
               {"program", report.program},
               {"age_seconds", secondsSince(map.ended, report.now)},
               {"pass_seconds", secondsSince(map.begun, map.ended)},
               {"sampling_cpu_ratio", report.sampling_ratio},
               {"map_cpu_ratio", report.map_ratio},
               {"range_bytes", map.width().value()},
               {"most_heat", kMostHeat},
               {"hot_from", kHot},
               {"ranges", Json::array()}};
  for (const HeatRange& range : map.ranges()) json["ranges"].push_back(rangeJson(range, report));
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

namespace {

void writeFile(const std::string& path, const std::string& text) {
  FILE* const file = fopen(path.c_str(), "we");
  bool written = file != nullptr && fwrite(text.data(), 1, text.size(), file) == text.size();
  if (file != nullptr) written = fclose(file) == 0 && written;
  if (!written) throw CommandError(1, fmt::format("cannot write {}: {}", path, strerror(errno)));
}

}  // namespace

int heat(const Arguments& arguments) {
  const int pid = pidOf(arguments, "heat");
  const bool again = arguments.has("--interval");
  const Nanoseconds pause = intervalOf(arguments, "heat");
  const std::string picture = arguments.value("--svg", "");
  if (again && (arguments.has("--json") || !picture.empty())) {
    throw UsageError("heat: --interval goes without --json and --svg");
  }
  const Result<StatsView> view = StatsView::open(pid);
  if (!view) throw CommandError(1, view.error().text());
  if (again) return watch(*view, pause);
  const HeatReport report = readHeat(*view);
  if (!picture.empty()) writeFile(picture, heatSvg(report));
  if (arguments.has("--json")) {
    fmt::print("{}\n", heatJson(report));
  } else if (picture.empty()) {
    Screen screen = screenOf(isatty(STDOUT_FILENO) != 0);
    screen.rows = 0;  // it may scroll
    fmt::print("{}", heatText(report, screen));
  }
  return 0;
}

}  // namespace tidepool::cli
