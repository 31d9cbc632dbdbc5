// SPDX-License-Identifier: Apache-2.0
// `tidepool heat` against live processes with heat maps of the tests' own: what is drawn of which
// numbers, on a terminal and elsewhere.
#include <pty.h>

#include <nlohmann/json.hpp>

#include "runtime/base/clock.h"
#include "runtime/base/units.h"
#include "runtime/stats/stats_region.h"
#include "tests/cli/cli_runner.h"
#include "tests/stats/live_child.h"

namespace tidepool::cli {
namespace {

using nlohmann::json;
using testing::HasSubstr;

constexpr uint64_t kBase = 0x10'0000'0000;
constexpr uint64_t kLeast = HeatMap::kLeastWidth.value();
constexpr uint64_t kPages = kLeast / kPageSize;

/// A child with a page, and what `fill` makes of its heat map.
class Heated : public LiveChild {
 public:
  explicit Heated(const std::function<void(StatsRegion&)>& fill)
      : LiveChild([&] {
          static auto region = StatsRegion::create("managed");
          strcpy(region->page().program, "evil<&\x1b[31m");
          region->page().sampling_cpu_nanoseconds = 0;
          fill(*region);
        }) {}
};

/// Six ranges and, behind a gap of one, a seventh; behind a wide one an eighth.
void writeMap(StatsRegion& region) {
  const Nanoseconds now = MonotonicClock().now();
  const Nanoseconds second(1'000'000'000);
  HeatMap map;
  const auto add = [&](uint64_t range, HeatPlace place, uint8_t heat, uint64_t seconds_ago) {
    map.add(kBase + range * kLeast, {place, heat, now - second * seconds_ago}, kPages);
  };
  add(0, HeatPlace::kLocal, 16, 50);
  add(1, HeatPlace::kLocal, 8, 10);
  add(2, HeatPlace::kDirect, 4, 10);
  add(3, HeatPlace::kFetch, 1, 10);
  add(4, HeatPlace::kCompressed, 0, 10);
  map.add(kBase + 5 * kLeast, {HeatPlace::kDirect, 0, {}}, 10);
  map.add(kBase + 5 * kLeast + 10 * kPageSize, {HeatPlace::kZero, 0, {}}, 6);
  add(7, HeatPlace::kZero, 0, 10);
  add(1000, HeatPlace::kLost, 0, 10);
  map.begun = now - second * 3;
  map.ended = now - second * 2;
  region.heat().write(map);
}

TEST(Heat, DrawsADigitARangeAndWhereItLies) {
  const Heated child(writeMap);
  const Outcome outcome = tidepool({"heat", child.text()});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, HasSubstr("\n0x1000000000    95310? 0\n"
                                     "                LLDFCd Z\n"
                                     "0x1003e80000    0\n"
                                     "                X\n"));
  EXPECT_THAT(outcome.out, HasSubstr("process " + child.text() + ": 512K in use"));
  EXPECT_THAT(outcome.out, HasSubstr("ranges of 64.0K; as of 2."));
  EXPECT_THAT(outcome.out, HasSubstr("\nL local           128K\nD direct tier     104K\n"));
  EXPECT_THAT(outcome.out, HasSubstr("hot: 192K, of which 64.0K are not in local memory"));
  EXPECT_THAT(outcome.out,
              testing::ContainsRegex("known: 88 % of it, looked at 1[0-9]\\.[0-9] s to "
                                     "5[0-9]\\.[0-9] s ago, half of it within 1"));
  EXPECT_THAT(outcome.out, HasSubstr("cost: sampling 0.00 % of a core"));
  EXPECT_THAT(outcome.out, testing::Not(HasSubstr("\x1b")));
}

TEST(Heat, JsonHasBytesAndAges) {
  const Heated child(writeMap);
  const Outcome outcome = tidepool({"heat", child.text(), "--json"});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  const json heat = json::parse(outcome.out);
  EXPECT_EQ(heat["schema"], 1);
  EXPECT_EQ(std::to_string(heat["pid"].get<int>()), child.text());
  EXPECT_GE(heat["age_seconds"], 2.0);
  EXPECT_EQ(heat["pass_seconds"], 1.0);
  EXPECT_EQ(heat["range_bytes"], kLeast);
  ASSERT_EQ(heat["ranges"].size(), 8u);
  const json& first = heat["ranges"][0];
  EXPECT_EQ(first["start"], kBase);
  EXPECT_EQ(first["local_bytes"], kLeast);
  EXPECT_EQ(first["hot_bytes"], kLeast);
  EXPECT_EQ(first["hot_far_bytes"], 0);
  EXPECT_EQ(first["heat"], 16.0);
  EXPECT_GE(first["oldest_seconds"], 50.0);
  EXPECT_EQ(heat["ranges"][2]["hot_far_bytes"], kLeast);
  const json& unknown = heat["ranges"][5];
  EXPECT_EQ(unknown["direct_bytes"], 10 * kPageSize);
  EXPECT_EQ(unknown["zero_bytes"], 6 * kPageSize);
  EXPECT_EQ(unknown["known_bytes"], 0);
  EXPECT_TRUE(unknown["heat"].is_null() && unknown["oldest_seconds"].is_null());
}

/// What the command writes to a terminal of that size, until it ends.
std::string onTerminal(std::vector<std::string> words, unsigned short rows, unsigned short columns,
                       const char* no_color, const char* keys = "") {
  const winsize size = {rows, columns, 0, 0};
  int terminal = -1;
  const pid_t pid = forkpty(&terminal, nullptr, nullptr, &size);
  if (pid == 0) {
    setenv("NO_COLOR", no_color, 1);
    words.insert(words.begin(), command());
    std::vector<char*> argv;
    for (std::string& word : words) argv.push_back(word.data());
    argv.push_back(nullptr);
    execv(argv[0], argv.data());
    _exit(99);
  }
  EXPECT_EQ(write(terminal, keys, strlen(keys)), static_cast<ssize_t>(strlen(keys)));
  std::string text;
  char some[4096];
  for (ssize_t got; (got = read(terminal, some, sizeof some)) > 0;) text.append(some, got);
  close(terminal);
  int status = 0;
  EXPECT_EQ(waitpid(pid, &status, 0), pid);
  EXPECT_EQ(status, 0) << text;
  return text;
}

TEST(Heat, ATerminalHasColoursUnlessItIsNotToHaveThem) {
  const Heated child(writeMap);
  const std::vector<std::string> words = {"heat", child.text()};
  EXPECT_THAT(onTerminal(words, 50, 100, ""), HasSubstr("\x1b[38;5;16;48;5;196m9\x1b[0m"));
  const std::string plain = onTerminal(words, 50, 100, "1");
  EXPECT_THAT(plain, HasSubstr("    95310? 0\r\n"));
  EXPECT_THAT(plain, testing::Not(HasSubstr("\x1b")));
}

/// Lines of the map's digits, each with the columns that they take.
std::vector<size_t> rowsOf(const std::string& text) {
  std::vector<size_t> rows;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with("0x")) rows.push_back(line.find_last_not_of('\r') + 1);
  }
  return rows;
}

TEST(Heat, FitsTheTerminal) {
  const Heated child([](StatsRegion& region) {
    HeatMap map;
    map.add(kBase, {HeatPlace::kLocal, 3, Nanoseconds(1)}, 500 * kPages);
    region.heat().write(map);
  });
  EXPECT_EQ(rowsOf(tidepool({"heat", child.text()}).out),
            (std::vector<size_t>{80, 80, 80, 80, 80, 80, 80, 16 + 500 - 7 * 64}));
  EXPECT_EQ(rowsOf(onTerminal({"heat", child.text()}, 24, 116, "1")),
            (std::vector<size_t>{116, 116, 116, 116, 116}))
      << "it may scroll";
  // What is drawn again and again has to fit: ranges are joined.
  EXPECT_EQ(rowsOf(onTerminal({"heat", child.text(), "--interval", "3600"}, 24, 116, "1", "q")),
            (std::vector<size_t>{116, 116, 66}));
}

TEST(Heat, IsDrawnAgainUntilTheProcessEnds) {
  Heated child(writeMap);
  Running running({"heat", child.text(), "--interval", "0.1"}, {});
  while (!running.hasWritten()) usleep(10'000);
  child.end();
  const Outcome outcome = running.wait();
  EXPECT_EQ(outcome.exit_code, 0);
  EXPECT_THAT(outcome.out, HasSubstr("95310? 0\n"));
}

/// Whether an XML parser takes it, and what the elements of that name say.
std::vector<std::string> textsOf(const std::string& file, const std::string& element) {
  const std::string script =
      "import sys, xml.etree.ElementTree as tree\n"
      "for one in tree.parse(sys.argv[1]).iter('{http://www.w3.org/2000/svg}' + sys.argv[2]):\n"
      "    print(one.text)";
  const std::string line =
      "python3 -c \"" + script + "\" " + file + " " + element + " > " + file + ".texts";
  EXPECT_EQ(system(line.c_str()), 0);
  std::vector<std::string> texts;
  std::istringstream lines(readFile(file + ".texts"));
  for (std::string text; std::getline(lines, text);) texts.push_back(text);
  return texts;
}

TEST(Heat, SvgIsWellFormedAndSaysAllWithoutColours) {
  const Heated child(writeMap);
  const ScratchFolder scratch;
  const std::string file = scratch / "heat.svg";
  const Outcome outcome = tidepool({"heat", child.text(), "--svg", file});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_EQ(outcome.out, "");
  const std::vector<std::string> titles = textsOf(file, "title");
  ASSERT_EQ(titles.size(), 8u);
  EXPECT_THAT(titles[0],
              HasSubstr("0x1000000000 to 0x1000010000: local 64.0K, heat 16.0, hot 64.0K"));
  EXPECT_THAT(titles[5], HasSubstr("direct tier 40.0K, only zeros 24.0K, heat not known"));
  const std::vector<std::string> texts = textsOf(file, "text");
  std::string cells;
  for (const std::string& text : texts) cells += text.size() == 1 ? text : " ";
  EXPECT_THAT(cells, HasSubstr(" 9L5L3D1F0C?d0Z 0X "));
  EXPECT_THAT(cells, HasSubstr(" 0123456789? ")) << "the legend";
  EXPECT_THAT(texts, testing::Contains(HasSubstr("evil<&?[31m, process")));
  EXPECT_THAT(texts, testing::Contains(HasSubstr("cost: sampling")));
  const Outcome both = tidepool({"heat", child.text(), "--svg", file, "--json"});
  EXPECT_TRUE(json::accept(both.out));
  expectError(tidepool({"heat", child.text(), "--svg", scratch / "no/heat.svg"}), 1,
              {"cannot write", "no/heat.svg: No such file"});
}

TEST(Heat, TopHasALineOfIt) {
  const Heated child(writeMap);
  const Heated other([](StatsRegion&) {});
  const Outcome outcome = tidepool({"top", "--once", "--interval", "0.1"});
  EXPECT_THAT(outcome.out, HasSubstr("\n          heat 95310?00  hot 192K, 64.0K of it far\n"));
  EXPECT_THAT(outcome.out, testing::ContainsRegex(other.text() + "  evil[^\n]*\n( +[0-9]+  |$)"))
      << "no line where there is no map";
}

TEST(Heat, RefusesWithOneLine) {
  expectError(tidepool({"heat", "4194305"}), 1, {"no process 4194305", "tidepool ps"});
  expectError(tidepool({"heat", std::to_string(getpid())}), 1, {"not started by `tidepool run`"});
  const Heated none([](StatsRegion&) {});
  expectError(tidepool({"heat", none.text()}), 1, {"first heat map", "try again"});
  const Heated other([](StatsRegion& region) { region.heat().magic = 1; });
  expectError(tidepool({"heat", other.text()}), 1, {"a version of Tidepool"});
}

TEST(Heat, NothingInUseIsNoMistake) {
  const Heated empty([](StatsRegion& region) { region.heat().write(HeatMap()); });
  const Outcome outcome = tidepool({"heat", empty.text()});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, HasSubstr(": 0 in use"));
  EXPECT_EQ(json::parse(tidepool({"heat", empty.text(), "--json"}).out)["ranges"].size(), 0u);
}

TEST(Heat, WhatIsNotKnownIsSaid) {
  const Heated child([](StatsRegion& region) {
    HeatMap map;
    map.add(kBase, {HeatPlace::kLocal, 0, {}}, 3);
    region.heat().write(map);
  });
  const std::string text = tidepool({"heat", child.text()}).out;
  EXPECT_THAT(text, HasSubstr("    ?\n"));
  EXPECT_THAT(text, HasSubstr("nothing is known of its heat"));
}

}  // namespace
}  // namespace tidepool::cli
