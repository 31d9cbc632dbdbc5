// SPDX-License-Identifier: Apache-2.0
// A heat map as a picture: SVG 1.1 that needs no script and no font, whose digits and letters say
// all that its colours do. See heat.h.
#include <fmt/format.h>

#include "runtime/base/text_buffer.h"
#include "shim/cli/heat.h"

namespace tidepool::cli {
namespace {

constexpr size_t kCells = 64;  // a row
constexpr size_t kCell = 14, kCellHeight = 30, kLeft = 120, kHead = 66, kLegend = 90;

/// Shades that grow darker with heat, also in print without colours.
constexpr const char* kShades[] = {"#fff7ec", "#fee8c8", "#fdd49e", "#fdbb84", "#fc9a63",
                                   "#f37a55", "#e05a3f", "#c8301f", "#a00c08", "#670000"};
constexpr const char* kUnknown = "#ffffff";

/// Fit for XML; what is not ASCII is replaced.
std::string xmlText(std::string_view text) {
  std::string out;
  for (const char character : text) {
    switch (character) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      default:
        out += character >= 0x20 && character < 0x7f ? character : '?';
    }
  }
  return out;
}

std::string textAt(size_t x, size_t y, std::string_view text, std::string_view more = "") {
  return fmt::format("<text x=\"{}\" y=\"{}\"{}>{}</text>\n", x, y, more, xmlText(text));
}

/// What a pointer shows that rests on the cell.
std::string titleOf(const HeatRange& range, const HeatReport& report) {
  const auto size = [](uint64_t pages) { return sizeText(toBytes(PageCount(pages))); };
  std::string out =
      fmt::format("{:#x} to {:#x}:", range.start, range.start + report.map.width().value());
  for (size_t i = 0; i < kHeatPlaces; ++i) {
    if (range.places[i] == 0) continue;
    out += fmt::format(" {} {},", kPlaceNames[i].name, size(range.places[i]));
  }
  if (range.known == 0) return out + " heat not known";
  return out + fmt::format(" heat {:.1f}, hot {}, known of {}, {:.1f} s to {:.1f} s ago",
                           meanHeat(range), size(range.hot), size(range.known),
                           secondsSince(Nanoseconds(range.newest), report.now),
                           secondsSince(Nanoseconds(range.oldest), report.now));
}

/// A rectangle with a digit in it.
std::string shade(size_t x, size_t y, int digit) {
  const std::string label = digit < 0 ? "?" : fmt::format("{}", digit);
  return fmt::format(
      "<rect x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\" fill=\"{}\" stroke=\"#888888\" "
      "stroke-width=\"0.5\"/>\n<text class=\"cell\" x=\"{}\" y=\"{}\" fill=\"{}\">{}</text>\n",
      x, y, kCell, kCell, digit < 0 ? kUnknown : kShades[digit], x + kCell / 2, y + 11,
      digit > 5 ? "#ffffff" : "#000000", label);
}

std::string cellAt(size_t x, size_t y, const HeatRange& range, double top,
                   const HeatReport& report) {
  return fmt::format(
      "<g><title>{}</title>\n{}<text class=\"cell\" x=\"{}\" y=\"{}\">{}</text></g>\n",
      xmlText(titleOf(range, report)), shade(x, y, digitOf(range, top)), x + kCell / 2,
      y + kCell + 10, letterOf(range));
}

std::string legendAt(size_t y, double top) {
  std::string out = textAt(10, y + 11, "heat");
  for (int digit = 0; digit <= 9; ++digit) out += shade(kLeft + digit * kCell, y, digit);
  out += shade(kLeft + 11 * kCell, y, -1);
  out += textAt(kLeft + 13 * kCell, y + 11,
                fmt::format("9: {:.1f} of {}; ?: not known", top, kMostHeat));
  std::string letters;
  for (const PlaceName& place : kPlaceNames) {
    letters += fmt::format("{}{} {}", letters.empty() ? "" : "   ", place.letter, place.name);
  }
  return out + textAt(10, y + 36, "lies in") + textAt(kLeft, y + 36, letters) +
         textAt(kLeft, y + 54, "a small letter: less than nine tenths of the range lie there");
}

}  // namespace

std::string heatSvg(const HeatReport& report) {
  const HeatMap& map = report.map;
  const std::vector<HeatRow> rows = heatRows(map, kCells);
  const double top = topHeat(map);
  const size_t width = kLeft + kCells * kCell + 10;
  const size_t height = kHead + rows.size() * kCellHeight + kLegend;
  std::string out = fmt::format(
      "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n"
      "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{0}\" height=\"{1}\" "
      "viewBox=\"0 0 {0} {1}\" font-family=\"monospace\" font-size=\"11\">\n"
      "<style>.cell {{ text-anchor: middle; font-size: 10px; }}</style>\n"
      "<rect width=\"{0}\" height=\"{1}\" fill=\"#ffffff\"/>\n",
      width, height);
  size_t line = 20;
  for (const std::string& text : heatHead(report)) {
    out += textAt(10, line, text);
    line += 16;
  }
  size_t y = kHead;
  for (const HeatRow& row : rows) {
    out += textAt(10, y + 11, fmt::format("{:#x}", row.front()->start));
    for (size_t i = 0; i < row.size(); ++i) {
      if (row[i] != nullptr) out += cellAt(kLeft + i * kCell, y, *row[i], top, report);
    }
    y += kCellHeight;
  }
  return out + legendAt(y + 10, top) + "</svg>\n";
}

}  // namespace tidepool::cli
