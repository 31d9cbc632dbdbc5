// SPDX-License-Identifier: Apache-2.0
// `tidepool heat`: the heat map of a process as text, JSON and SVG. Plain values, so that what is
// drawn depends on nothing else.
#pragma once

#include <string>
#include <vector>

#include "runtime/stats/heat_page.h"
#include "shim/cli/arguments.h"

namespace tidepool::cli {

/// A map, and what belongs to it.
struct HeatReport {
  int pid = 0;
  std::string program;  // fit for a terminal
  HeatMap map;
  Nanoseconds now;
  double sampling_ratio = 0, map_ratio = 0;  // of a core, since the process's start
};

/// Of the whole map.
HeatRange totalOf(const HeatMap& map);
/// What 9 stands for: the mean heat of the hottest range; kHot at least.
double topHeat(const HeatMap& map);
/// From 0 (cold) to 9, for `top`; -1: nothing is known. A range of which anything was seen in use
/// is not 0.
int digitOf(const HeatRange& range, double top);
/// Of the known pages, from 0 to kMostHeat.
double meanHeat(const HeatRange& range);
/// Seconds from `then` to `now`; 0 if that is to come.
double secondsSince(Nanoseconds then, Nanoseconds now);

struct PlaceName {
  char letter;
  const char* name;
};
inline constexpr PlaceName kPlaceNames[kHeatPlaces] = {{'L', "local"},      {'D', "direct tier"},
                                                       {'F', "fetch tier"}, {'C', "compressed"},
                                                       {'Z', "only zeros"}, {'X', "lost"}};
/// The letter of where most of it lies; a small one if that is less than nine tenths.
char letterOf(const HeatRange& range);

/// Ranges of nearby addresses, at most `cells`; null where there is no content.
using HeatRow = std::vector<const HeatRange*>;
std::vector<HeatRow> heatRows(const HeatMap& map, size_t cells);
/// What it is a map of, how old it is, and what it costs: a line each.
std::vector<std::string> heatHead(const HeatReport& report);

/// What it is drawn on.
struct Screen {
  size_t columns = 80;
  size_t rows = 0;  // 0: there is no end
  bool colours = false;
};
std::string heatText(HeatReport report, const Screen& screen);
/// All of it in one line, for `tidepool top`; empty if there is no map, or nothing is known.
std::string heatLine(const HeatPage* page, size_t cells);
std::string heatJson(const HeatReport& report);
std::string heatSvg(const HeatReport& report);

/// Throws UsageError and CommandError.
int heat(const Arguments& arguments);

}  // namespace tidepool::cli
