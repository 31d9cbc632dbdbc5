// SPDX-License-Identifier: Apache-2.0
// Rows a second of sum-pooled look-ups in embedding tables, ids from a trace of row_sim's, all
// tables in one call; every kind of tier beside one another in one run. Options: see usage().
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "allocator/table/table_space.h"
#include "bench/row_trace.h"

using namespace tidepool;

namespace {

struct Settings {
  size_t tables = 8, rows = 2'000'000, dim = 64, bags = 2048, per_bag = 26, batches = 200;
  double share = 0.10;
  std::string trace = "zipf-1.05";
  size_t threads = 0, ahead = 0;
  bool train = false, local = true;
  std::vector<std::string> far;
};

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

template <typename T>
T need(Result<T> result) {
  if (result) return std::move(*result);
  fprintf(stderr, "table_bags: %s\n", result.error().text());
  exit(1);
}
void need(Status status) {
  if (status) return;
  fprintf(stderr, "table_bags: %s\n", status.error().text());
  exit(1);
}

struct Batches {
  std::vector<std::vector<int64_t>> ids;  // [batch * tables + table]
  std::vector<int64_t> offsets;
};

Batches makeBatches(const Settings& s) {
  Batches made;
  made.ids.resize(s.batches * s.tables);
  const size_t each = s.bags * s.per_bag;
  for (size_t t = 0; t < s.tables; ++t) {
    const bench::RowTrace trace =
        bench::makeRowTrace(s.trace, {static_cast<uint32_t>(s.rows), each * s.batches, 0}, t + 1);
    if (trace.lookups.empty()) {
      fprintf(stderr, "table_bags: no trace called %s\n", s.trace.c_str());
      exit(2);
    }
    for (size_t b = 0; b < s.batches; ++b) {
      const auto first = trace.lookups.begin() + static_cast<ptrdiff_t>(b * each);
      made.ids[b * s.tables + t].assign(first, first + static_cast<ptrdiff_t>(each));
    }
  }
  for (size_t bag = 0; bag <= s.bags; ++bag) made.offsets.push_back(bag * s.per_bag);
  return made;
}

void run(const Settings& s, const Batches& batches, TableSpace& space, size_t tier,
         const char* name) {
  std::vector<std::unique_ptr<EmbeddingTable>> tables;
  for (size_t t = 0; t < s.tables; ++t) {
    TableOptions options;
    options.name = "bench" + std::to_string(t);
    options.rows = s.rows;
    options.format = {ElementType::kFloat32, s.train ? Optimizer::kRowwiseAdagrad : Optimizer::kSgd,
                      static_cast<uint32_t>(s.dim)};
    options.initializer = {Initializer::Kind::kUniform, -0.01f, 0.01f, t};
    options.dram = Bytes(
        static_cast<uint64_t>(s.share * static_cast<double>(s.rows * options.format.stride())));
    tables.push_back(need(space.createTable(options, tier)));
  }
  std::vector<float> out(s.tables * s.bags * s.dim);
  std::vector<double> times;
  std::vector<std::vector<BatchNumber>> numbers(s.batches);
  const auto announce = [&](size_t b) {
    if (b >= s.batches) return;
    std::vector<EmbeddingTable::PrefetchCall> calls;
    numbers[b].resize(s.tables);
    for (size_t t = 0; t < s.tables; ++t) {
      calls.push_back({tables[t].get(), batches.ids[b * s.tables + t], &numbers[b][t]});
    }
    need(EmbeddingTable::prefetches(calls, space.workers()));
  };
  for (size_t b = 0; b < std::min(s.ahead, s.batches); ++b) announce(b);
  for (size_t b = 0; b < s.batches; ++b) {
    const double start = now();
    if (s.ahead > 0) announce(b + s.ahead);
    std::vector<EmbeddingTable::BagCall> calls;
    std::vector<EmbeddingTable::UpdateCall> updates;
    for (size_t t = 0; t < s.tables; ++t) {
      const Batch batch{batches.ids[b * s.tables + t], batches.offsets};
      calls.push_back({tables[t].get(), batch, out.data() + t * s.bags * s.dim, s.dim});
      updates.push_back({tables[t].get(), batch, out.data() + t * s.bags * s.dim, s.dim});
    }
    need(EmbeddingTable::bags(calls, space.workers()));
    if (s.train) need(EmbeddingTable::updates(updates, space.workers()));
    for (size_t t = 0; s.ahead > 0 && t < s.tables; ++t) tables[t]->finished(numbers[b][t]);
    times.push_back(now() - start);
  }
  // The first half warms up.
  std::vector<double> later(times.begin() + static_cast<ptrdiff_t>(times.size() / 2), times.end());
  std::sort(later.begin(), later.end());
  TableCounts sum;
  for (auto& table : tables) {
    const TableCounts one = table->counts();
    sum.lookups += one.lookups;
    sum.hits += one.hits;
    sum.fetched += one.fetched;
    sum.prefetched += one.prefetched;
    sum.metadata += one.metadata;
    sum.dram += one.dram;
  }
  printf(
      "%-22s %7.2f M rows/s  (batch %.2f ms, 10..90 %%: %.2f-%.2f)  hits %.1f %%  fetched %.2f M  "
      "ahead %.2f M  dram %.0f MiB, metadata %.1f\n",
      name, static_cast<double>(s.tables * s.bags * s.per_bag) / later[later.size() / 2] / 1e6,
      later[later.size() / 2] * 1e3, later[later.size() / 10] * 1e3,
      later[later.size() * 9 / 10] * 1e3,
      100.0 * static_cast<double>(sum.hits) / static_cast<double>(sum.lookups),
      static_cast<double>(sum.fetched) / 1e6, static_cast<double>(sum.prefetched) / 1e6,
      static_cast<double>(sum.dram.value()) / kMiB,
      static_cast<double>(sum.metadata.value()) / kMiB);
  fflush(stdout);
}

int usage() {
  fprintf(
      stderr,
      "usage: table_bags [--tables N] [--rows N] [--dim N] [--bags N] [--per-bag N] "
      "[--batches N] [--trace NAME] [--share X] [--threads N] [--ahead N] [--train] [--far-only] "
      "[--far SPEC]...\n");
  return 2;
}

}  // namespace

int main(int argc, char** argv) {
  Settings s;
  for (int i = 1; i < argc; ++i) {
    const std::string flag = argv[i];
    if (flag == "--train" || flag == "--far-only") {
      (flag == "--train" ? s.train : s.local) = flag == "--train";
      continue;
    }
    if (i + 1 == argc) return usage();
    const char* value = argv[++i];
    if (flag == "--tables")
      s.tables = strtoul(value, nullptr, 10);
    else if (flag == "--rows")
      s.rows = strtoul(value, nullptr, 10);
    else if (flag == "--dim")
      s.dim = strtoul(value, nullptr, 10);
    else if (flag == "--bags")
      s.bags = strtoul(value, nullptr, 10);
    else if (flag == "--per-bag")
      s.per_bag = strtoul(value, nullptr, 10);
    else if (flag == "--batches")
      s.batches = strtoul(value, nullptr, 10);
    else if (flag == "--trace")
      s.trace = value;
    else if (flag == "--share")
      s.share = strtod(value, nullptr);
    else if (flag == "--threads")
      s.threads = strtoul(value, nullptr, 10);
    else if (flag == "--ahead")
      s.ahead = strtoul(value, nullptr, 10);
    else if (flag == "--far")
      s.far.push_back(value);
    else
      return usage();
  }
  std::vector<FarSpec> far;
  for (const std::string& text : s.far) far.push_back(need(parseFarSpec(text)));
  auto space = need(TableSpace::create(far, s.threads, Nanoseconds(20'000'000'000)));
  const Batches batches = makeBatches(s);
  if (s.local) run(s, batches, *space, 0, "local");
  for (size_t tier = 1; tier <= far.size(); ++tier)
    run(s, batches, *space, tier, s.far[tier - 1].c_str());
  return 0;
}
