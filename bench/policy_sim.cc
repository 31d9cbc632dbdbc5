// SPDX-License-Identifier: Apache-2.0
// Runs the production victim policy, and classic ones beside it, over page traces; prints faults
// and modelled time. Everything it prints is simulation, nothing is measured. Single-thread.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "bench/policy_engine.h"
#include "bench/policy_peers.h"
#include "bench/policy_trace.h"

namespace tidepool::bench {
namespace {

constexpr char kUsage[] =
    "usage: policy_sim [--text FILE] [--trace NAME] [--local SHARE] [--limbo PAGES] [--cpu SHARE]\n"
    "                  [--peers yes|no]\n"
    "traces: fasttext (needs --text), zipf-train, zipf-read, gups-shift, scan, scan+hot,\n"
    "        descent, merge-sort\n";

struct Arguments {
  std::string text, trace;
  double local = 0.245;  // of the footprint: a budget of 25 %, less metadata and what is kept free
  uint32_t limbo = 64;   // pages: evicted ones are gone as soon as they are written
  double cpu = 0.01;
  bool peers = true;
};

bool parse(int argc, char** argv, Arguments& out) {
  if (argc % 2 == 0) return false;
  for (int i = 1; i < argc; i += 2) {
    const std::string_view key = argv[i];
    const std::string value = argv[i + 1];
    if (key == "--text") {
      out.text = value;
    } else if (key == "--trace") {
      out.trace = value;
    } else if (key == "--local") {
      out.local = std::atof(value.c_str());
    } else if (key == "--limbo") {
      out.limbo = static_cast<uint32_t>(std::atoi(value.c_str()));
    } else if (key == "--cpu") {
      out.cpu = std::atof(value.c_str());
    } else if (key == "--peers") {
      out.peers = value == "yes";
    } else {
      return false;
    }
  }
  return out.local > 0 && out.limbo > 0 && out.cpu >= 0;
}

/// What had been counted at each phase's begin and at the end; per phase, faults and rescues of
/// each region.
struct Played {
  std::vector<Counts> at;
  std::vector<std::vector<uint64_t>> region_faults;
};

/// Index of the region each page is in.
std::vector<uint8_t> regionOfPages(const Trace& trace) {
  std::vector<uint8_t> of(trace.pages, 0);
  for (size_t r = 0; r < trace.regions.size(); ++r) {
    std::fill(of.begin() + static_cast<std::ptrdiff_t>(trace.regions[r].first_page), of.end(),
              static_cast<uint8_t>(r));
  }
  return of;
}

Played play(const Trace& trace, Model& model) {
  Played played;
  std::vector<Counts>& at = played.at;
  const std::vector<uint8_t> region = regionOfPages(trace);
  played.region_faults.assign(trace.phases.size(), std::vector<uint64_t>(trace.regions.size() + 1));
  size_t phase = 0;
  for (size_t i = 0; i < trace.accesses.size(); ++i) {
    while (phase < trace.phases.size() && trace.phases[phase].begin == i) {
      at.push_back(model.counts);
      ++phase;
    }
    model.counts.compute_ns += trace.phases[phase - 1].ns_per_access;
    const uint32_t page = trace.accesses[i] & ~kWriteBit;
    const uint64_t before = model.counts.faults + model.counts.rescues;
    model.access(page, trace.accesses[i] & kWriteBit, i);
    played.region_faults[phase - 1][region[page]] +=
        model.counts.faults + model.counts.rescues - before;
  }
  at.push_back(model.counts);
  return played;
}

void report(const Trace& trace, const std::string& policy, const Played& played) {
  const std::vector<Counts>& at = played.at;
  std::printf("| %s | %s |", trace.name.c_str(), policy.c_str());
  const Counts d = at[trace.measured + 1] - at[trace.measured];
  std::printf(" %lu | %lu | %lu | %.0f | %.2f |", d.faults, d.rescues, d.evictions,
              d.probe_ns / 1e6, d.overheadNs() / 1e9);
  for (size_t p = 0; p + 1 < at.size(); ++p) {
    const Counts other = at[p + 1] - at[p];
    if (p != trace.measured) {
      std::printf(" %s %lu+%lu", trace.phases[p].name.c_str(), other.faults, other.prefetched);
    }
  }
  std::printf(" | %.2f |", at.back().overheadNs() / 1e9);
  for (size_t r = 0; r < trace.regions.size(); ++r) {
    std::printf(" %s %lu", trace.regions[r].name.c_str(), played.region_faults[trace.measured][r]);
  }
  std::printf(trace.regions.empty() ? "\n" : " |\n");
  std::fflush(stdout);
}

void compare(const Trace& trace, const Arguments& arguments) {
  const auto capacity = static_cast<uint32_t>(trace.pages * arguments.local);
  std::printf("\n%s: %u pages, %u local, %zu accesses, measured phase \"%s\"\n\n",
              trace.name.c_str(), trace.pages, capacity, trace.accesses.size(),
              trace.phases[trace.measured].name.c_str());
  std::printf(
      "| trace | policy | faults | rescues | evictions | probing ms | overhead s | other "
      "phases: faults+prefetched | overhead of all s | faults and rescues of each region |\n"
      "|---|---|---|---|---|---|---|---|---|---|\n");
  if (arguments.peers) {
    for (const char* name : {"opt", "static", "lru", "clock", "s3fifo", "lrfu"}) {
      const std::unique_ptr<Model> peer = makePeer(name, trace, capacity);
      report(trace, name, play(trace, *peer));
    }
  }
  VictimConfig config;
  config.capacity = PageCount(capacity);
  config.sampling_cpu = arguments.cpu;
  EngineModel engine(trace.pages, config, arguments.limbo);
  report(trace, "tidepool", play(trace, engine));
}

void runAll(const Arguments& arguments) {
  const auto wanted = [&](std::string_view name) {
    return arguments.trace.empty() || arguments.trace == name;
  };
  if (!arguments.text.empty() && wanted("fasttext")) {
    std::ifstream file(arguments.text);
    compare(fasttextTrace({std::istreambuf_iterator<char>(file), {}}), arguments);
  }
  if (wanted("zipf-train")) compare(embeddingTrace(1), arguments);
  if (wanted("zipf-read")) compare(inferenceTrace(1), arguments);
  if (wanted("gups-shift")) compare(gupsTrace(1), arguments);
  if (wanted("scan")) compare(scanTrace(), arguments);
  if (wanted("scan+hot")) compare(scanAndHotTrace(1), arguments);
  if (wanted("descent")) compare(descentTrace(1), arguments);
  if (wanted("merge-sort")) compare(mergeSortTrace(1), arguments);
}

}  // namespace
}  // namespace tidepool::bench

int main(int argc, char** argv) {
  tidepool::bench::Arguments arguments;
  if (!tidepool::bench::parse(argc, argv, arguments)) {
    std::fputs(tidepool::bench::kUsage, stderr);
    return 2;
  }
  std::puts(
      "Simulation: production policy code over generated traces; no figure here is measured.");
  tidepool::bench::runAll(arguments);
}
