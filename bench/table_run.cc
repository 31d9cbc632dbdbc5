// SPDX-License-Identifier: Apache-2.0
// Rows a second of sum-pooled look-ups through the C++ API, in a program that may run under
// `tidepool run`: tables are then in the run's far tier. Prints how much of the pool is in huge
// pages, too. Options: see usage().
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <random>
#include <string>
#include <vector>

#include "tidepool/tables.hpp"

namespace tp = tidepool::api;

namespace {

constexpr size_t kBags = 2048, kPerBag = 26;
constexpr uint32_t kDim = 64;
constexpr double kSkew = 1.05;

struct Settings {
  size_t tables = 4, rows = 2'000'000, batches = 100;
  double share = 0.10;
};

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

template <typename T>
T need(tp::Expected<T> result) {
  if (result) return std::move(*result);
  std::fprintf(stderr, "table_run: %s\n", result.failure().text().c_str());
  std::exit(1);
}

/// Shared memory of this process that is mapped in huge pages.
double hugeMib() {
  std::ifstream rollup("/proc/self/smaps_rollup");
  for (std::string word; rollup >> word;) {
    if (word == "ShmemPmdMapped:" && rollup >> word) return std::stod(word) / 1024;
  }
  return 0;
}

/// Zipf's law, about: the inverse of its continuous form.
std::vector<int64_t> batchOf(const Settings& s, std::mt19937_64& random) {
  const double top = std::pow(static_cast<double>(s.rows), 1 - kSkew) - 1;
  std::vector<int64_t> ids(kBags * kPerBag);
  for (int64_t& id : ids) {
    const double u = std::uniform_real_distribution<>()(random);
    const auto rank = static_cast<uint64_t>(std::pow(1 + u * top, 1 / (1 - kSkew)));
    id = static_cast<int64_t>(rank * 1'000'000'007 % s.rows);
  }
  return ids;
}

int run(const Settings& s) {
  auto context = need(tp::Context::open());
  std::vector<tp::Table> tables;
  for (size_t t = 0; t < s.tables; ++t) {
    const std::string name = "bench" + std::to_string(t);
    tp::TableParams params;
    params.name = name.c_str();
    params.rows = s.rows;
    params.dim = kDim;
    params.initializer = TIDEPOOL_UNIFORM;
    params.init_first = -0.01F;
    params.init_second = 0.01F;
    params.dram_bytes = static_cast<uint64_t>(s.share * static_cast<double>(s.rows * kDim * 4));
    tables.push_back(need(tp::Table::make(context, params)));
  }
  std::mt19937_64 random(1);
  std::vector<std::vector<int64_t>> ids;
  for (size_t i = 0; i < s.batches * s.tables; ++i) ids.push_back(batchOf(s, random));
  std::vector<int64_t> offsets;
  for (size_t bag = 0; bag <= kBags; ++bag) offsets.push_back(static_cast<int64_t>(bag * kPerBag));
  std::vector<std::vector<float>> values(s.tables, std::vector<float>(kBags * kDim));
  std::vector<double> times;
  for (size_t b = 0; b < s.batches; ++b) {
    std::vector<tp::Lookup> parts;
    for (size_t t = 0; t < s.tables; ++t) {
      parts.push_back({.table = tables[t],
                       .ids = ids[b * s.tables + t],
                       .offsets = offsets,
                       .values = values[t],
                       .pooling = TIDEPOOL_SUM});
    }
    const double start = now();
    if (const auto done = tp::lookUp(parts); !done) {
      std::fprintf(stderr, "table_run: %s\n", done.failure().text().c_str());
      return 1;
    }
    times.push_back(now() - start);
  }
  // The first half warms up.
  times.erase(times.begin(), times.begin() + static_cast<ptrdiff_t>(times.size() / 2));
  std::sort(times.begin(), times.end());
  const auto speed = [&](double time) {
    return static_cast<double>(s.tables * kBags * kPerBag) / time / 1e6;
  };
  std::printf("%.1f M rows/s (10..90 %%: %.1f-%.1f), %.0f MiB of the pool in huge pages\n",
              speed(times[times.size() / 2]), speed(times[times.size() * 9 / 10]),
              speed(times[times.size() / 10]), hugeMib());
  return 0;
}

int usage() {
  std::fprintf(
      stderr,
      "usage: tidepool run --dram SIZE --far cxl:SIZE -- table_run [--tables N] [--rows N] "
      "[--batches N] [--share X: of a table that may be in DRAM]\n");
  return 2;
}

}  // namespace

int main(int argc, char** argv) {
  Settings settings;
  for (int i = 1; i < argc; i += 2) {
    const std::string flag = argv[i];
    if (i + 1 == argc) return usage();
    if (flag == "--tables") {
      settings.tables = std::strtoul(argv[i + 1], nullptr, 10);
    } else if (flag == "--rows") {
      settings.rows = std::strtoul(argv[i + 1], nullptr, 10);
    } else if (flag == "--batches") {
      settings.batches = std::strtoul(argv[i + 1], nullptr, 10);
    } else if (flag == "--share") {
      settings.share = std::strtod(argv[i + 1], nullptr);
    } else {
      return usage();
    }
  }
  return run(settings);
}
