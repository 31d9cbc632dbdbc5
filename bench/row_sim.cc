// SPDX-License-Identifier: Apache-2.0
// Runs the production row policy, and known ones beside it, over generated embedding lookups;
// prints hit rates in percent. Everything it prints is simulation, nothing is timed. Single-thread.
#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

#include "bench/row_run.h"

namespace tidepool::bench {
namespace {

constexpr char kUsage[] =
    "usage: row_sim [--trace NAME|all] [--rows N] [--warm N] [--lookups N] [--shares S,S,...]\n"
    "               [--batch LOOKUPS] [--lookahead BATCHES] [--tier direct|fetch] [--seed N]\n"
    "               [--json]\n"
    "Without --trace: skew and rotating.\n"
    "columns: lru; s3fifo; lfu-cache (counts since a row came in); lfu (counts of all rows for\n"
    "  ever); static (the rows used most in what is measured); tidepool; ahead (tidepool with\n"
    "  lookahead); counting (counts of all rows, and Belady within the lookahead); frequency\n"
    "  (knows how often every row is used); bound (the same with "
    "lookahead);\n"
    "  belady (with bypass); way: from tidepool (0) to belady (1)\n"
    "traces:";

struct Arguments {
  std::string trace;
  uint32_t rows = 1 << 20;
  size_t warm = size_t{6} << 20, lookups = size_t{6} << 20;
  std::vector<double> shares = {0.005, 0.015, 0.05, 0.2};
  // 2,048 samples with 8 lookups each in this table, near the mean of MLPerf's DLRM-v2 tables.
  size_t batch = 16384;
  size_t lookahead = 16;
  FarTier tier = FarTier::kDirect;
  uint64_t seed = 1;
  bool json = false;
};

std::vector<double> parseShares(const std::string& text) {
  std::vector<double> shares;
  for (size_t at = 0; at < text.size();) {
    const size_t comma = std::min(text.find(',', at), text.size());
    shares.push_back(std::atof(text.substr(at, comma - at).c_str()));
    at = comma + 1;
  }
  return shares;
}

bool set(Arguments& out, std::string_view key, const std::string& value) {
  const auto number = static_cast<size_t>(std::atoll(value.c_str()));
  if (key == "--trace") {
    out.trace = value;
  } else if (key == "--rows") {
    out.rows = static_cast<uint32_t>(number);
  } else if (key == "--warm") {
    out.warm = number;
  } else if (key == "--lookups") {
    out.lookups = number;
  } else if (key == "--shares") {
    out.shares = parseShares(value);
  } else if (key == "--batch") {
    out.batch = number;
  } else if (key == "--lookahead") {
    out.lookahead = number;
  } else if (key == "--tier") {
    out.tier = value == "fetch" ? FarTier::kFetch : FarTier::kDirect;
  } else if (key == "--seed") {
    out.seed = number;
  } else {
    return false;
  }
  return true;
}

bool parse(int argc, char** argv, Arguments& out) {
  for (int i = 1; i < argc; ++i) {
    if (std::string_view(argv[i]) == "--json") {
      out.json = true;
    } else if (i + 1 >= argc || !set(out, argv[i], argv[i + 1])) {
      return false;
    } else {
      ++i;
    }
  }
  for (const double share : out.shares) {
    if (share <= 0 || share > 1 || share * out.rows < 1) return false;
  }
  return out.rows > 0 && out.rows < UINT32_MAX && out.lookups > 0 && out.batch > 0 &&
         out.warm + out.lookups < UINT32_MAX && out.lookahead < NextUse::kMostAhead;
}

struct Named {
  std::string name;
  double rate;
};

/// Hit rates of everybody with so many slots, in the order of the columns.
struct Comparison {
  double share;
  uint32_t slots;
  std::vector<Named> rates = {};
  RowRunResult plain = {};
};

Comparison compare(const RowTrace& trace, double share, const Arguments& arguments) {
  Comparison result{.share = share, .slots = static_cast<uint32_t>(share * trace.rows)};
  const auto add = [&](const char* name, const Hits& hits) {
    result.rates.push_back({name, hitRate(trace, hits)});
  };
  for (const char* peer : {"lru", "s3fifo", "lfu-cache", "lfu", "static"}) {
    add(peer, runRowPeer(peer, trace, result.slots));
  }
  RowRun run{.slots = result.slots,
             .batch = arguments.batch,
             .tier = arguments.tier,
             .seed = arguments.seed};
  result.plain = runRowPolicy(trace, run);
  add("tidepool", result.plain.hits);
  run.lookahead = arguments.lookahead;
  if (run.lookahead > 0) {
    add("ahead", runRowPolicy(trace, run).hits);
    add("counting",
        runWindowedBelady(trace, result.slots, {run.batch, run.lookahead, Uses::kCounted}));
    add("frequency", runWindowedBelady(trace, result.slots, {1, 0}));
    add("bound", runWindowedBelady(trace, result.slots, {run.batch, run.lookahead}));
  }
  add("belady", runRowPeer("belady", trace, result.slots));
  return result;
}

double rateOf(const Comparison& comparison, std::string_view name) {
  for (const Named& rate : comparison.rates) {
    if (rate.name == name) return rate.rate;
  }
  return 0;
}

/// How far `name` goes from the policy without lookahead (0) to Belady (1).
double wayOf(const Comparison& comparison, std::string_view name) {
  const double from = rateOf(comparison, "tidepool"), to = rateOf(comparison, "belady");
  return to > from ? (rateOf(comparison, name) - from) / (to - from) : 1;
}

double bytesASlot(const Comparison& comparison) {
  return static_cast<double>(comparison.plain.metadata.value()) / comparison.slots;
}

void printTable(const RowTrace& trace, const std::vector<Comparison>& points) {
  std::printf("\n%s: %u rows, %zu lookups to warm up, %zu measured; hits in %%\n\n| DRAM |",
              trace.name.c_str(), trace.rows, trace.measured,
              trace.lookups.size() - trace.measured);
  for (const Named& rate : points[0].rates) std::printf(" %s |", rate.name.c_str());
  std::printf(" way of ahead | of bound | bytes a slot |\n|---|");
  for (size_t i = 0; i < points[0].rates.size() + 3; ++i) std::printf("---|");
  for (const Comparison& point : points) {
    std::printf("\n| %.1f %% |", point.share * 100);
    for (const Named& rate : point.rates) std::printf(" %.1f |", rate.rate * 100);
    std::printf(" %.2f | %.2f | %.1f |", wayOf(point, "ahead"), wayOf(point, "bound"),
                bytesASlot(point));
  }
  std::printf("\n");
  for (const Comparison& point : points) {
    std::printf("\n%.1f %% of rows in DRAM\n", point.share * 100);
    for (const Named& rate : point.rates) {
      std::printf("  %-10s %5.1f %s\n", rate.name.c_str(), rate.rate * 100,
                  std::string(static_cast<size_t>(rate.rate * 60 + 0.5), '#').c_str());
    }
  }
  std::fflush(stdout);
}

void printJson(const RowTrace& trace, const Arguments& arguments, const Comparison& point) {
  std::printf(
      "{\"trace\":\"%s\",\"rows\":%u,\"warm\":%zu,\"lookups\":%zu,\"batch\":%zu,\"lookahead\":%zu,"
      "\"tier\":\"%s\",\"seed\":%lu,\"share\":%g,\"slots\":%u,\"hit_ratio\":{",
      trace.name.c_str(), trace.rows, trace.measured, trace.lookups.size() - trace.measured,
      arguments.batch, arguments.lookahead, arguments.tier == FarTier::kFetch ? "fetch" : "direct",
      arguments.seed, point.share, point.slots);
  for (const Named& rate : point.rates) {
    std::printf("%s\"%s\":%.5f", &rate == point.rates.data() ? "" : ",", rate.name.c_str(),
                rate.rate);
  }
  std::printf(
      "},\"way_ahead\":%.4f,\"way_bound\":%.4f,\"metadata_bytes_a_slot\":%.2f,"
      "\"overflows\":%lu}\n",
      wayOf(point, "ahead"), wayOf(point, "bound"), bytesASlot(point), point.plain.overflows);
  std::fflush(stdout);
}

void runTrace(const std::string& name, const Arguments& arguments) {
  const RowTrace trace = makeRowTrace(
      name, {arguments.rows, arguments.warm + arguments.lookups, arguments.warm}, arguments.seed);
  std::vector<Comparison> points;
  for (const double share : arguments.shares) {
    points.push_back(compare(trace, share, arguments));
    if (arguments.json) printJson(trace, arguments, points.back());
  }
  if (!arguments.json) printTable(trace, points);
}

bool isTrace(const std::string& name) {
  for (const std::string& known : rowTraceNames()) {
    if (known == name) return true;
  }
  return false;
}

}  // namespace
}  // namespace tidepool::bench

int main(int argc, char** argv) {
  using namespace tidepool::bench;
  Arguments arguments;
  const bool understood = parse(argc, argv, arguments);
  const bool listed = arguments.trace.empty() || arguments.trace == "all";
  if (!understood || (!listed && !isTrace(arguments.trace))) {
    std::fputs(kUsage, stderr);
    for (const std::string& name : rowTraceNames()) std::fprintf(stderr, " %s", name.c_str());
    std::fputs("\n", stderr);
    return 2;
  }
  std::fputs("Simulation: production policy code over generated lookups; nothing is timed.\n",
             stderr);
  std::vector<std::string> names = {arguments.trace};
  if (arguments.trace.empty()) names = {"skew", "rotating"};
  if (arguments.trace == "all") names = rowTraceNames();
  for (const std::string& name : names) runTrace(name, arguments);
}
