// SPDX-License-Identifier: Apache-2.0
// A heat map for people: a digit a range, below it where the range lies. See heat.h.
#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "runtime/base/text_buffer.h"
#include "shim/cli/heat.h"

namespace tidepool::cli {
namespace {

constexpr size_t kMargin = 16;  // columns of the address before the cells
constexpr size_t kLeastCells = 8;
constexpr uint64_t kGap = 8;  // ranges without content that do not begin a new row
// Rows of a screen that are not the map's: heads, sums, and a line to type on.
constexpr size_t kOtherRows = 15;

/// With colours of the 256: from dark blue to bright red, digits that can be read on each.
std::string heatCells(const HeatRow& row, double top, bool colours) {
  constexpr int kBack[] = {17, 18, 24, 30, 65, 100, 136, 172, 202, 196};
  std::string out;
  for (const HeatRange* range : row) {
    const int digit = range == nullptr ? -1 : digitOf(*range, top);
    if (digit < 0) {
      out += range == nullptr ? ' ' : '?';
    } else if (colours) {
      out +=
          fmt::format("\x1b[38;5;{};48;5;{}m{}\x1b[0m", digit < 5 ? 255 : 16, kBack[digit], digit);
    } else {
      out += static_cast<char>('0' + digit);
    }
  }
  return out;
}

std::string placeCells(const HeatRow& row) {
  std::string out;
  for (const HeatRange* range : row) out += range == nullptr ? ' ' : letterOf(*range);
  return out;
}

std::string timeText(double seconds) {
  return seconds < 100 ? fmt::format("{:.1f} s", seconds) : fmt::format("{:.0f} min", seconds / 60);
}

std::string pagesText(uint64_t pages) { return sizeText(toBytes(PageCount(pages))); }

double percentOf(uint64_t part, uint64_t whole) {
  return whole == 0 ? 0 : 100 * static_cast<double>(part) / static_cast<double>(whole);
}

/// When half of what is known had been learned; each range counts as its oldest page.
Nanoseconds halfKnownSince(const HeatMap& map, uint64_t known) {
  std::vector<std::pair<uint64_t, uint64_t>> learned;
  for (const HeatRange& range : map.ranges()) learned.emplace_back(range.oldest, range.known);
  std::sort(learned.rbegin(), learned.rend());
  uint64_t sum = 0;
  for (const auto& [oldest, pages] : learned) {
    sum += pages;
    if (2 * sum >= known) return Nanoseconds(oldest);
  }
  return {};
}

/// What lies where, how much of it is hot, and how sure that is.
std::string sums(const HeatReport& report) {
  const HeatRange total = totalOf(report.map);
  std::string out;
  for (size_t i = 0; i < kHeatPlaces; ++i) {
    if (total.places[i] == 0) continue;
    out += fmt::format("{} {:<12} {:>7}\n", kPlaceNames[i].letter, kPlaceNames[i].name,
                       pagesText(total.places[i]));
  }
  if (total.known == 0) {
    return out +
           "nothing is known of its heat: nothing has had to leave local memory yet, or its "
           "use is not sampled\n";
  }
  out += fmt::format("hot: {}, of which {} are not in local memory\n", pagesText(total.hot),
                     pagesText(total.hot_far));
  const auto ago = [&](uint64_t time) {
    return timeText(secondsSince(Nanoseconds(time), report.now));
  };
  return out + fmt::format("known: {:.0f} % of it, looked at {} to {} ago, half of it within {}\n",
                           percentOf(total.known, total.pages()), ago(total.newest),
                           ago(total.oldest), ago(halfKnownSince(report.map, total.known).value()));
}

}  // namespace

std::vector<HeatRow> heatRows(const HeatMap& map, size_t cells) {
  std::vector<HeatRow> rows;
  const HeatRange* last = nullptr;
  for (const HeatRange& range : map.ranges()) {
    const uint64_t gap =
        last == nullptr ? 0 : (range.start - last->start) / map.width().value() - 1;
    if (last == nullptr || gap > kGap || rows.back().size() + gap + 1 > cells) {
      rows.emplace_back();
    } else {
      rows.back().insert(rows.back().end(), gap, nullptr);
    }
    rows.back().push_back(&range);
    last = &range;
  }
  return rows;
}

std::vector<std::string> heatHead(const HeatReport& report) {
  return {fmt::format("{}, process {}: {} in use", report.program, report.pid,
                      pagesText(totalOf(report.map).pages())),
          fmt::format("ranges of {}; as of {} ago", sizeText(report.map.width()),
                      timeText(secondsSince(report.map.ended, report.now))),
          fmt::format("cost: sampling {:.2f} % of a core, this map {:.2f} %",
                      100 * report.sampling_ratio, 100 * report.map_ratio)};
}

std::string heatLine(const HeatPage* page, size_t cells) {
  HeatMap map;
  if (page == nullptr || !page->read(map)) return "";
  map.fit(cells);
  const HeatRange total = totalOf(map);
  if (total.known == 0) return "";
  const double top = topHeat(map);
  HeatRow row;
  for (const HeatRange& range : map.ranges()) row.push_back(&range);
  return fmt::format("heat {}  hot {}, {} of it far", heatCells(row, top, false),
                     pagesText(total.hot), pagesText(total.hot_far));
}

std::string heatText(HeatReport report, const Screen& screen) {
  HeatMap& map = report.map;
  const size_t cells = std::max(kLeastCells, std::max(screen.columns, kMargin) - kMargin);
  std::vector<HeatRow> rows = heatRows(map, cells);
  while (screen.rows != 0 && rows.size() > 1 && 2 * rows.size() + kOtherRows > screen.rows) {
    map.fit(map.ranges().size() - 1);
    rows = heatRows(map, cells);
  }
  const std::vector<std::string> head = heatHead(report);
  std::string out = fmt::format(
      "{}\n{}\n\n{:<{}}heat from 0 to 9, ?: not known; below, where most of a range lies\n",
      head[0], head[1], "address", kMargin);
  const double top = topHeat(map);
  for (const HeatRow& row : rows) {
    out += fmt::format("{:<{}}{}\n{:<{}}{}\n", fmt::format("{:#x}", row.front()->start), kMargin,
                       heatCells(row, top, screen.colours), "", kMargin, placeCells(row));
  }
  return out + "\n" + sums(report) + head[2] + "\n";
}

}  // namespace tidepool::cli
